//! The chat template of one checkpoint.

use minijinja::{Value, context, value::Serde};
use serde_json::{Map, Value as Json};

use super::{fallback, sandbox, tool_text};
use crate::{
    error::{Error, Result},
    format::{Checkpoint, TokenizerSource},
    tokenizer::{
        Tokenizer,
        reasoning::{ReasoningFormat, transcript::Thoughts},
        tools::ToolFormat,
    },
};

/// One turn of a conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChatMessage<'a> {
    /// Role: `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// Text of the message.
    pub content: &'a str,
    /// Further fields, in OpenAI's form: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Option<&'a Map<String, Json>>,
}

impl<'a> ChatMessage<'a> {
    /// A message without further fields.
    pub const fn new(role: &'a str, content: &'a str) -> Self {
        ChatMessage { role, content, fields: None }
    }
}

/// Values of a rendering beside the messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RenderOptions<'a> {
    /// End where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Definitions of tools, in OpenAI's form.
    pub tools: &'a [Json],
    /// Further variables of the template.
    pub variables: Option<&'a Map<String, Json>>,
}

impl RenderOptions<'_> {
    /// A rendering without tools and variables.
    pub const fn new(add_generation_prompt: bool) -> Self {
        RenderOptions { add_generation_prompt, tools: &[], variables: None }
    }
}

/// Where a template came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model's own, under this key.
    Model(String),
    /// One of ours.
    Fallback {
        /// Name of the format: `ChatML`, `plain`.
        format: &'static str,
        /// Why this one, and what was wrong with the model's own.
        reason: String,
    },
}

impl std::fmt::Display for TemplateOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TemplateOrigin::Model(key) => write!(f, "the model's own (`{key}`)"),
            TemplateOrigin::Fallback { format, reason } => write!(f, "{format} format: {reason}"),
        }
    }
}

/// Turns messages into the text a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
    origin: TemplateOrigin,
    stops: &'static [&'static str],
    tokens: SpecialTexts,
    reasoning: ReasoningFormat,
    tools: ToolFormat,
}

/// Texts of the special tokens templates refer to; empty where the model has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SpecialTexts {
    bos: String,
    eos: String,
    padding: String,
}

impl ChatTemplate {
    /// The checkpoint's template. Where there is none, or where it fails on a first question, one of ours takes its
    /// place; [`ChatTemplate::origin`] says so.
    pub fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Self {
        Self::named(checkpoint, tokenizer, "default")
    }

    /// The checkpoint's template called `name`, of those that bring several (`default`, `tool_use`, `rag`).
    pub fn named(checkpoint: &Checkpoint, tokenizer: &Tokenizer, name: &str) -> Self {
        let model = checkpoint.metadata.str("general.name").ok().flatten().unwrap_or_default();
        match find(checkpoint, name) {
            Some((key, source)) => Self::from_source(source, &key, tokenizer, model),
            None => Self::fallback(tokenizer, model, "the file has no chat template"),
        }
    }

    /// A template given as text, found under `key`; ours if it fails on a first question.
    pub fn from_source(source: &str, key: &str, tokenizer: &Tokenizer, model: &str) -> Self {
        let template = ChatTemplate {
            source: source.to_owned(),
            origin: TemplateOrigin::Model(key.to_owned()),
            stops: &[],
            tokens: SpecialTexts::of(tokenizer),
            reasoning: ReasoningFormat::detect(tokenizer, source),
            tools: ToolFormat::detect(tokenizer, source),
        };
        match template.render(&[ChatMessage::new("user", "Hello")], true) {
            Ok(text) if text.contains("Hello") => template,
            Ok(_) => Self::fallback(tokenizer, model, &format!("the one under `{key}` leaves out what the user says")),
            Err(error) => Self::fallback(tokenizer, model, &format!("the one under `{key}` fails: {error}")),
        }
    }

    /// The template of ours that fits the vocabulary, and the model's name where that tells nothing.
    pub fn fallback(tokenizer: &Tokenizer, model: &str, reason: &str) -> Self {
        let (format, why) = fallback::choose(tokenizer, model);
        ChatTemplate {
            source: format.source.to_owned(),
            origin: TemplateOrigin::Fallback { format: format.name, reason: format!("{reason}; {why}") },
            stops: format.stops,
            tokens: SpecialTexts::of(tokenizer),
            reasoning: ReasoningFormat::detect(tokenizer, format.source),
            tools: ToolFormat::detect(tokenizer, format.source),
        }
    }

    /// Where the template came from, and if it is ours, why.
    pub fn origin(&self) -> &TemplateOrigin {
        &self.origin
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts after which an answer is over, besides the tokens for which [`Tokenizer::is_end`] holds.
    pub fn stop_strings(&self) -> &'static [&'static str] {
        self.stops
    }

    /// How the model marks its thoughts.
    pub fn reasoning(&self) -> &ReasoningFormat {
        &self.reasoning
    }

    /// How the model writes calls of tools.
    pub fn tools(&self) -> &ToolFormat {
        &self.tools
    }

    /// The text of a conversation, to be encoded with [`EncodeOptions::CHAT`](crate::tokenizer::EncodeOptions::CHAT);
    /// with `add_generation_prompt`, up to where the model's answer begins.
    ///
    /// The thoughts of earlier answers, which are [transcripts](crate::tokenizer::reasoning::transcript), are given to the template
    /// apart from what was said, as `reasoning_content` and `thinking`; templates drop them or write them as the model would.
    ///
    /// A template that knows no system role gets the system message in front of the first user message. Errors are
    /// [`Error::Template`]: what the template raised, or what it asked too much of.
    pub fn render(&self, messages: &[ChatMessage<'_>], add_generation_prompt: bool) -> Result<String> {
        self.render_with(messages, RenderOptions::new(add_generation_prompt))
    }

    /// [`ChatTemplate::render`] with the definitions of tools and further variables. A template that writes no definitions, or fails
    /// on them, gets messages in which the definitions, calls and results are [text](tool_text).
    pub fn render_with(&self, messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Result<String> {
        let about_tools = |message: &ChatMessage<'_>| {
            message.role == "tool" || message.fields.is_some_and(|fields| fields.contains_key("tool_calls"))
        };
        if options.tools.is_empty() && !messages.iter().any(about_tools) {
            return self.render_with_system(messages, options);
        }
        let native = self.render_with_system(messages, options);
        if native.as_ref().is_ok_and(|text| tool_text::mentions_all(text, options.tools, messages)) {
            return native;
        }
        let plain = tool_text::as_text(messages, options.tools);
        let plain: Vec<_> = plain.iter().map(|(role, content)| ChatMessage::new(role, content)).collect();
        self.render_with_system(&plain, RenderOptions { tools: &[], ..options })
    }

    fn render_with_system(&self, messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Result<String> {
        let plain = self.render_as_is(messages, options);
        let Some((system, rest)) = messages.split_first().filter(|(first, _)| first.role == "system") else {
            return plain;
        };
        if plain.as_ref().is_ok_and(|text| text.contains(system.content.trim())) {
            return plain;
        }
        let Some(at) = rest.iter().position(|message| message.role == "user") else { return plain };
        let joined = format!("{}\n\n{}", system.content.trim(), rest[at].content);
        let mut merged = rest.to_vec();
        merged[at].content = &joined;
        self.render_as_is(&merged, options).or(plain)
    }

    fn render_as_is(&self, messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Result<String> {
        let rendered = self.render_in_form(messages, options, ArgumentsForm::Objects);
        let has_calls =
            |message: &ChatMessage<'_>| message.fields.is_some_and(|fields| fields.contains_key("tool_calls"));
        if rendered.is_err() && messages.iter().any(has_calls) {
            return self.render_in_form(messages, options, ArgumentsForm::Texts).or(rendered);
        }
        rendered
    }

    fn render_in_form(
        &self,
        messages: &[ChatMessage<'_>],
        options: RenderOptions<'_>,
        form: ArgumentsForm,
    ) -> Result<String> {
        let RenderOptions { add_generation_prompt, tools, variables } = options;
        let fields = |message: &ChatMessage<'_>| message.fields.map_or(0, |fields| json_size(fields.values()));
        let said: usize =
            messages.iter().map(|message| message.role.len() + message.content.len() + fields(message)).sum();
        let input = said + json_size(tools) + variables.map_or(0, |map| json_size(map.values()));
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| {
                let ChatMessage { role, content, .. } = *message;
                let base = match Thoughts::of(content) {
                    Thoughts { thinking: Some(thinking), answer, .. } if role == "assistant" => {
                        let (thinking, content) = (thinking.trim_matches('\n'), answer.trim_start_matches('\n'));
                        context! { role, content, reasoning_content => thinking, thinking }
                    }
                    _ => context! { role, content },
                };
                match message.fields.filter(|fields| !fields.is_empty()) {
                    Some(fields) => context! { ..base, ..Value::from(Serde(with_arguments(fields, form))) },
                    None => base,
                }
            })
            .collect();
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => self.tokens.bos.as_str(),
            eos_token => self.tokens.eos.as_str(),
            pad_token => self.tokens.padding.as_str(),
            tools => if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) },
            documents => Value::from(()),
            ..variables.map(|map| Value::from(Serde(map))).unwrap_or_default(),
        };
        sandbox::render(&self.source, &context, input).map_err(Error::Template)
    }
}

/// Form in which a template is given the arguments of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentsForm {
    /// Most templates' form.
    Objects,
    /// JSON texts: OpenAI's form, for templates that append them to other text.
    Texts,
}

/// `fields` with the arguments of its calls in a form.
fn with_arguments(fields: &Map<String, Json>, form: ArgumentsForm) -> Map<String, Json> {
    let mut fields = fields.clone();
    let calls = fields.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        match (form, &*arguments) {
            (ArgumentsForm::Objects, Json::String(text)) => {
                if let Ok(object @ Json::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            (ArgumentsForm::Texts, Json::Object(_)) => *arguments = Json::String(arguments.to_string()),
            _ => {}
        }
    }
    fields
}

/// Bytes of text in JSON values, about.
fn json_size<'a>(values: impl IntoIterator<Item = &'a Json>) -> usize {
    let size = |value: &Json| match value {
        Json::String(text) => text.len(),
        Json::Array(list) => 2 + json_size(list),
        Json::Object(map) => 2 + map.keys().map(|key| key.len() + 4).sum::<usize>() + json_size(map.values()),
        _ => 8,
    };
    values.into_iter().map(size).sum()
}

impl SpecialTexts {
    fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default()
        };
        SpecialTexts { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()), padding: text(tokenizer.padding()) }
    }
}

/// The template called `name`, and the key it was found under.
fn find<'a>(checkpoint: &'a Checkpoint, name: &str) -> Option<(String, &'a str)> {
    match &checkpoint.tokenizer {
        TokenizerSource::Metadata => {
            let named = format!("tokenizer.chat_template.{name}");
            let keys = if name == "default" { vec!["tokenizer.chat_template".to_owned(), named] } else { vec![named] };
            keys.into_iter().find_map(|key| {
                let source = checkpoint.metadata.str(&key).ok()??;
                Some((key, source))
            })
        }
        TokenizerSource::HuggingFace { tokenizer_config, .. } => {
            let templates = tokenizer_config.get("chat_template")?;
            let source = match templates.as_array() {
                Some(list) => list
                    .iter()
                    .find(|entry| entry.get("name").and_then(serde_json::Value::as_str) == Some(name))?
                    .get("template")?
                    .as_str()?,
                None => templates.as_str().filter(|_| name == "default")?,
            };
            Some(("chat_template".to_owned(), source))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::{Array, Container, Metadata, Value as Meta};

    /// A byte-level vocabulary with these special tokens.
    fn checkpoint(special: &[&str], template: Option<&str>) -> Checkpoint {
        let mut metadata = Metadata::new("m.gguf");
        let mut tokens: Vec<String> = special.iter().map(|&text| text.to_owned()).collect();
        tokens.extend(('!'..='~').map(String::from));
        let types = (0..tokens.len()).map(|id| if id < special.len() { 3 } else { 1 }).collect();
        metadata.set("tokenizer.ggml.model", Meta::String("gpt2".into()));
        metadata.set("tokenizer.ggml.pre", Meta::String("gpt-2".into()));
        metadata.set("tokenizer.ggml.tokens", Meta::Array(Array::String(tokens)));
        metadata.set("tokenizer.ggml.token_type", Meta::Array(Array::I32(types)));
        metadata.set("tokenizer.ggml.merges", Meta::Array(Array::String(vec![])));
        metadata.set("tokenizer.ggml.bos_token_id", Meta::U32(0));
        metadata.set("tokenizer.ggml.eos_token_id", Meta::U32(1));
        if let Some(template) = template {
            metadata.set("tokenizer.chat_template", Meta::String(template.to_owned()));
        }
        Checkpoint::new("m.gguf".into(), Container::Gguf(3), metadata, TokenizerSource::Metadata, vec![])
            .expect("empty")
    }

    fn template(special: &[&str], source: Option<&str>) -> ChatTemplate {
        let checkpoint = checkpoint(special, source);
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a vocabulary");
        ChatTemplate::from_checkpoint(&checkpoint, &tokenizer)
    }

    const TALK: [ChatMessage<'static>; 4] = [
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", "Hi"),
        ChatMessage::new("assistant", "Hello."),
        ChatMessage::new("user", "Bye"),
    ];

    #[test]
    fn models_own_template_is_used() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
        let template = template(&["<s>", "</s>"], Some(source));
        assert_eq!(template.origin().to_string(), "the model's own (`tokenizer.chat_template`)");
        let text = template.render(&TALK[1..], true).expect("renders");
        assert_eq!(text, "<s>[user]Hi</s>[assistant]Hello.</s>[user]Bye</s>[assistant]");
        assert!(!template.render(&TALK, false).expect("renders").ends_with("[assistant]"));
    }

    #[test]
    fn system_message_merges_into_the_first_user_message_without_its_role() {
        let body = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let raises =
            format!("{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system') }}}}{{% endif %}}{body}");
        let silent = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        for source in [raises.as_str(), silent] {
            let text = template(&["<s>", "</s>"], Some(source)).render(&TALK, true).expect("renders");
            assert_eq!(text, "<user>Be brief.\n\nHi<assistant>Hello.<user>Bye", "{source}");
        }
    }

    #[test]
    fn thoughts_of_earlier_answers_are_given_apart() {
        let source = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% endfor %}";
        let template = template(&["<s>", "</s>"], Some(source));
        let render = |role, content| {
            let messages = [ChatMessage::new("user", "Hello"), ChatMessage::new(role, content)];
            template.render(&messages, false).expect("renders")
        };
        assert_eq!(render("assistant", "<think>\nHm\n</think>\n\nYes"), "<user>Hello<assistant>(Hm)Yes");
        assert_eq!(render("assistant", "<think>\nHm"), "<user>Hello<assistant>(Hm)");
        assert_eq!(render("assistant", "Yes"), "<user>Hello<assistant>Yes");
        assert_eq!(render("user", "<think>x</think>"), "<user>Hello<user><think>x</think>");
    }

    #[test]
    fn errors_of_a_later_turn_are_returned() {
        let source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
        let template = template(&["<s>", "</s>"], Some(source));
        assert!(matches!(template.origin(), TemplateOrigin::Model(_)));
        let error = template.render(&TALK[2..], true).expect_err("starts with the assistant");
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn broken_templates_fall_back_to_ours_with_a_reason() {
        for (source, reason) in [
            ("{{ 'a' * 100000000 }}", "too much text"),
            ("{% for i in range(99999) %}{% endfor %}", "too long"),
            ("{% if %}", "unexpected"),
            ("nothing", "leaves out what the user says"),
        ] {
            let template = template(&["<|im_start|>", "<|im_end|>"], Some(source));
            let origin = template.origin().to_string();
            assert!(origin.starts_with("ChatML format") && origin.contains(reason), "{origin}");
            let text = template.render(&TALK[..2], true).expect("ours works");
            let expected =
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn fallback_template_is_chosen_by_the_vocabulary() {
        let render = |special: &[&str]| template(special, None).render(&TALK, true).expect("renders");
        assert_eq!(render(&["<s>", "</s>"]), "Be brief.\n\nUser: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:");
        assert_eq!(template(&["<s>", "</s>"], None).stop_strings(), ["\nUser:"]);
        assert_eq!(
            render(&["<b>", "<e>", "<|start_header_id|>", "<|eot_id|>"]),
            "<b><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        );
        assert_eq!(
            render(&["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        );
        assert_eq!(
            render(&["<s>", "<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"]),
            "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|><|start|>user<|message|>Bye<|end|><|start|>assistant"
        );
        assert_eq!(
            render(&["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]),
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n"
        );
        assert_eq!(
            render(&["<s>", "</s>", "<|user|>", "<|assistant|>"]),
            "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n<|user|>\nBye</s>\n<|assistant|>\n"
        );
        assert_eq!(
            render(&["<s>", "</s>", "[INST]", "[/INST]"]),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]"
        );
    }

    #[test]
    fn tokenizer_config_has_one_chat_template_or_several_by_name() {
        let several = json!({"chat_template": [{"name": "default", "template": "D{{ messages[0].content }}"}, {"name": "rag", "template": "R{{ messages[0].content }}"}]});
        let one = json!({"chat_template": "D{{ messages[0].content }}"});
        let base = checkpoint(&["<s>", "</s>"], None);
        let tokenizer = Tokenizer::from_checkpoint(&base).expect("a vocabulary");
        let render = |config: &serde_json::Value, name: &str| {
            let mut checkpoint = base.clone();
            let (tokenizer_json, tokenizer_config) = (String::new(), config.clone());
            checkpoint.tokenizer = TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config };
            ChatTemplate::named(&checkpoint, &tokenizer, name).render(&TALK[1..2], false).expect("renders")
        };
        assert_eq!((render(&several, "default"), render(&several, "rag")), ("DHi".to_owned(), "RHi".to_owned()));
        assert_eq!((render(&one, "default"), render(&one, "rag")), ("DHi".to_owned(), "User: Hi\n".to_owned()));
    }

    #[test]
    fn long_conversations_render() {
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m.role + ': ' + (m.content | trim) + '\n' }}{% endfor %}";
        let template = template(&["<s>", "</s>"], Some(source));
        let long = "word ".repeat(20_000);
        let messages: Vec<ChatMessage<'_>> =
            (0..1000).map(|at| ChatMessage::new("user", if at % 50 == 0 { &long } else { "short" })).collect();
        assert!(template.render(&messages, true).expect("renders").len() > 20 * long.len() - 100);
    }
}
