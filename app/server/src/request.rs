//! Protocol-independent requests for answers, and the engine's requests made from them.

use thermocline_engine::session::{ContextPolicy, LogprobsRequest, Prompt, Request};

use super::{
    answer_form::{AnswerForm, RequestedGrammar, RequestedTool, ToolChoice},
    answer_reader::RequestedTools,
    error::ApiError,
    served_model::ServedModel,
    thoughts::RequestedThoughts,
    undecided_answer::CallsOrForm,
};
use thermocline_host::units::Limit;

/// The answer that a client asks for. Every protocol parses its bodies into this type.
#[derive(Debug, PartialEq)]
pub struct RequestedAnswer {
    /// Name of the model.
    pub model: Option<String>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Text after the answer. The model then fills in the middle.
    pub suffix: Option<String>,
    /// The answers to each prompt.
    pub choices: ChoiceFields,
    /// Settings of the engine's requests. The prompt in it is not used.
    pub settings: Request,
    /// The thoughts before the answer.
    pub thoughts: RequestedThoughts,
    /// Tools that the model may call.
    pub tools: Vec<RequestedTool>,
    /// The choice among the tools.
    pub tool_choice: ToolChoice,
    /// Grammar of the answer.
    pub grammar: Option<RequestedGrammar>,
    /// Send the answer while it is generated.
    pub stream: bool,
    /// End a stream with token counts.
    pub include_usage: bool,
}

/// The answers to each prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceFields {
    /// Answers that are returned per prompt.
    pub answers: usize,
    /// Answers that are generated per prompt. The most likely ones are returned.
    pub best_of: usize,
    /// Whether the text begins with the prompt.
    pub echo: bool,
    /// Log probabilities to return.
    pub logprobs: Option<LogprobsRequest>,
}

/// A validated request.
#[derive(Debug, PartialEq)]
pub struct CompletionRequest {
    /// The engine's requests: all of the first prompt, then all of the next.
    pub requests: Vec<Request>,
    /// How many requests answer one prompt, and what is reported of each answer.
    pub choices: ChoiceFields,
    /// Texts of the prompts, if the answers begin with them.
    pub echoes: Vec<String>,
    /// Send the answer while it is generated.
    pub stream: bool,
    /// End a stream with token counts.
    pub include_usage: bool,
    /// Tools that the model may call.
    pub tools: Option<RequestedTools>,
    /// Field that asks for the answer's grammar, if any.
    pub grammar_field: Option<String>,
    /// The tools and the grammar, if the answers may call tools or follow a grammar.
    pub may_be: Option<CallsOrForm>,
}

impl RequestedAnswer {
    /// Asks for one answer to each prompt, with default settings.
    pub fn new(prompts: Vec<Prompt>, defaults: &Request) -> Self {
        RequestedAnswer {
            model: None,
            prompts,
            suffix: None,
            choices: ChoiceFields { answers: 1, best_of: 1, echo: false, logprobs: None },
            settings: defaults.clone(),
            thoughts: RequestedThoughts::default(),
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            grammar: None,
            stream: false,
            include_usage: false,
        }
    }
}

impl ChoiceFields {
    /// Builds the engine's requests: for each prompt one per answer, with consecutive seeds.
    fn requests(&self, prompts: Vec<Prompt>, base: &Request) -> Vec<Request> {
        let request = |prompt: &Prompt, at: usize| {
            let mut request = Request { prompt: prompt.clone(), ..base.clone() };
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(at as u64));
            request
        };
        prompts.iter().flat_map(|prompt| (0..self.best_of).map(move |at| request(prompt, at))).collect()
    }
}

impl CompletionRequest {
    /// Builds the request to `model`. It refuses what the engine cannot do and names the field. A
    /// `strict` server refuses another model's name.
    pub fn new(asked: RequestedAnswer, model: &ServedModel, strict: bool) -> Result<Self, ApiError> {
        let RequestedAnswer { choices, stream, include_usage, .. } = asked;
        if let Some(name) = asked.model.filter(|name| strict && *name != model.name) {
            return Err(ApiError::model_not_found(&name, &model.name));
        }
        let prompts = match &asked.suffix {
            Some(suffix) => infill_prompts(asked.prompts, suffix, model)?,
            None => asked.prompts,
        };
        check_pictures(&prompts, model)?;
        let mut request = asked.settings;
        request.sampling.validate(model.engine.config().n_vocab).map_err(|error| ApiError::from(&error))?;
        let format = model.engine.chat_template().tools();
        let form = AnswerForm::new(&asked.tools, &asked.tool_choice, asked.grammar, format)?;
        let may_be = form.calls_or_form();
        request.thought_budget = asked.thoughts.budget.and_then(Limit::count).or(request.thought_budget);
        request.chat.variables.extend(asked.thoughts.variables);
        request.chat.tools = form.tools.as_ref().map(|tools| tools.definitions.clone()).unwrap_or_default();
        request.chat.call_format = form.tools.as_ref().map(|tools| tools.format.clone());
        request.grammar = form.grammar.as_ref().filter(|_| may_be.is_none()).map(|it| it.grammar.clone());
        request.logprobs = choices.logprobs.or((choices.best_of > choices.answers).then(LogprobsRequest::default));
        // Clients that score a prompt expect one token after it, even if that is the end of text.
        let scores_prompt = choices.logprobs.is_some_and(|it| it.prompt);
        request.ignore_eos = scores_prompt && request.max_tokens == Some(1);
        if choices.echo {
            request.on_full = ContextPolicy::Stop;
        }
        if stream && choices.best_of > choices.answers {
            let message = "best_of: expected the value of n in a stream, got more";
            return Err(ApiError::invalid_field("best_of", message));
        }
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(ids) => model.engine.tokenizer().decode(ids, true),
            Prompt::Chat(_) | Prompt::Continue(_) | Prompt::Pair { .. } => String::new(),
        };
        let echoes = if choices.echo { prompts.iter().map(text).collect() } else { Vec::new() };
        let requests = choices.requests(prompts, &request);
        let grammar_field = form.grammar.map(|it| it.field);
        let tools = form.tools;
        Ok(CompletionRequest { requests, choices, echoes, stream, include_usage, tools, grammar_field, may_be })
    }
}

/// Refuses pictures that the model does not read.
fn check_pictures(prompts: &[Prompt], model: &ServedModel) -> Result<(), ApiError> {
    prompts.iter().flat_map(Prompt::pictures).try_for_each(|picture| match model.engine.picture_tokens(picture) {
        Ok(_) => Ok(()),
        Err(error) => Err(ApiError::from(&error)),
    })
}

/// Builds prompts to fill in the text between each of `prompts`, which must be texts, and `suffix`.
fn infill_prompts(prompts: Vec<Prompt>, suffix: &str, model: &ServedModel) -> Result<Vec<Prompt>, ApiError> {
    let refused = |message: &str| ApiError::invalid_field("suffix", format!("suffix: expected {message}"));
    let infill = |prompt: Prompt| {
        let Prompt::Text(prefix) = prompt else { return Err(refused("none with a prompt of tokens, got one")) };
        match model.engine.tokenizer().infill_prompt(&prefix, suffix) {
            Ok(Some(ids)) => Ok(Prompt::Tokens(ids)),
            Ok(None) => Err(refused("none, because the model's vocabulary has no fill-in-the-middle tokens, got one")),
            Err(error) => Err(ApiError::from(&error)),
        }
    };
    prompts.into_iter().map(infill).collect()
}
