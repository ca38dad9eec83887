//! The chat template of one checkpoint.

use serde_json::{Map, Value as Json, json};

use super::{conversation::TemplateConversation, fallback, sandbox::Program};
use crate::{PictureMarks, PromptText, Tokenizer, reasoning::ReasoningFormat, tools::ToolFormat};
use thermocline_base::error::Result;
use thermocline_formats::format::{Checkpoint, TokenizerSource};

/// One turn of a conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChatMessage<'a> {
    /// Role: `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// Text of the message.
    pub content: &'a str,
    /// Further fields, in OpenAI's form: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Option<&'a Map<String, Json>>,
    /// Number of pictures before the text.
    pub pictures: usize,
}

impl<'a> ChatMessage<'a> {
    /// A message without further fields.
    pub const fn new(role: &'a str, content: &'a str) -> Self {
        ChatMessage { role, content, fields: None, pictures: 0 }
    }
}

/// Inputs of a rendering besides the messages.
#[derive(Debug, Clone, Copy)]
pub struct RenderOptions<'a> {
    /// True if the text must end where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Definitions of tools, in OpenAI's form.
    pub tools: &'a [Json],
    /// Further variables of the template.
    pub variables: Option<&'a Map<String, Json>>,
    /// A tokenizer whose control tokens are not recognised in messages, tools and variables; `None`
    /// recognises them.
    pub guard: Option<&'a Tokenizer>,
    /// How pictures are marked; `None` if messages with pictures are only rendered.
    pub marks: Option<&'a PictureMarks>,
}

impl RenderOptions<'_> {
    /// A rendering without tools, variables and guard.
    pub const fn new(add_generation_prompt: bool) -> Self {
        RenderOptions { add_generation_prompt, tools: &[], variables: None, guard: None, marks: None }
    }
}

/// The source of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model's own template, under this key.
    Model(String),
    /// One of our templates.
    Fallback {
        /// Name of the format: `ChatML`, `plain`.
        format: &'static str,
        /// Reason for choosing this template.
        choice: String,
        /// Error of the model's own template, in one line; `None` if it has no template.
        failure: Option<String>,
    },
}

impl TemplateOrigin {
    /// The error of the model's own template in one line, if one of our templates replaced it.
    pub fn failure(&self) -> Option<&str> {
        match self {
            TemplateOrigin::Model(_) => None,
            TemplateOrigin::Fallback { failure, .. } => failure.as_deref(),
        }
    }
}

impl std::fmt::Display for TemplateOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TemplateOrigin::Model(key) => write!(f, "the model's own (`{key}`)"),
            TemplateOrigin::Fallback { format, choice, failure } => {
                let reason = failure.as_deref().unwrap_or("the file has no chat template");
                write!(f, "{format} format: {reason}; {choice}")
            }
        }
    }
}

/// Turns messages into the text format that a model was trained on.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    program: Program,
    origin: TemplateOrigin,
    stops: &'static [&'static str],
    tokens: SpecialTexts,
    reasoning: ReasoningFormat,
    tools: ToolFormat,
    /// The model's own template for requests with tools, if it has one.
    tool_use: Option<Box<ChatTemplate>>,
}

/// Texts of the special tokens that templates refer to; empty if the model lacks them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialTexts {
    pub bos: String,
    pub eos: String,
    pub padding: String,
}

impl ChatTemplate {
    /// The checkpoint's template, with its template `tool_use` for requests with tools. If there is
    /// none, or it fails on a test question, one of our templates replaces it.
    /// [`ChatTemplate::origin`] reports the replacement.
    pub fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Self {
        let mut template = Self::named(checkpoint, tokenizer, "default");
        if let Some((key, source)) = find(checkpoint, "tool_use") {
            let tool_use = Self::own(source, &key, tokenizer);
            match tool_use.fault(&sample_tools()) {
                None => template.tool_use = Some(Box::new(tool_use)),
                Some(fault) => tracing::warn!(fault, "the chat template for tools is not used"),
            }
        }
        template
    }

    /// The checkpoint's template called `name`, for checkpoints with several (`default`,
    /// `tool_use`, `rag`).
    pub fn named(checkpoint: &Checkpoint, tokenizer: &Tokenizer, name: &str) -> Self {
        let model = checkpoint.metadata.str("general.name").ok().flatten().unwrap_or_default();
        match find(checkpoint, name) {
            Some((key, source)) => Self::from_source(source, &key, tokenizer, model),
            None => Self::fallback(tokenizer, model, None),
        }
    }

    /// A template from its source text, found under `key`. One of our templates replaces it if it
    /// fails on a test question.
    pub fn from_source(source: &str, key: &str, tokenizer: &Tokenizer, model: &str) -> Self {
        let template = Self::own(source, key, tokenizer);
        match template.fault(&[]) {
            None => template,
            fault => Self::fallback(tokenizer, model, fault),
        }
    }

    fn own(source: &str, key: &str, tokenizer: &Tokenizer) -> Self {
        Self::new(source, TemplateOrigin::Model(key.to_owned()), tokenizer)
    }

    fn new(source: &str, origin: TemplateOrigin, tokenizer: &Tokenizer) -> Self {
        ChatTemplate {
            source: source.to_owned(),
            program: Program::compile(source),
            origin,
            stops: &[],
            tokens: SpecialTexts::of(tokenizer),
            reasoning: ReasoningFormat::detect(tokenizer, source),
            tools: ToolFormat::detect(tokenizer, source),
            tool_use: None,
        }
    }

    /// Error of a model's own template on a test question, in one line.
    fn fault(&self, tools: &[Json]) -> Option<String> {
        let TemplateOrigin::Model(key) = &self.origin else { return None };
        let options = RenderOptions { tools, ..RenderOptions::new(true) };
        match self.render_with(&[ChatMessage::new("user", "Hello")], options) {
            Ok(text) if text.plain().contains("Hello") => None,
            Ok(_) => Some(format!("the template under `{key}` omits the user's message")),
            Err(error) => {
                let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
                Some(format!("the template under `{key}` fails: {error}"))
            }
        }
    }

    /// One of our templates that fits the vocabulary, or the model's name if the vocabulary is not
    /// conclusive. `failure` is the error of the model's own template.
    pub fn fallback(tokenizer: &Tokenizer, model: &str, failure: Option<String>) -> Self {
        let (format, choice) = fallback::choose(tokenizer, model);
        let origin = TemplateOrigin::Fallback { format: format.name, choice, failure };
        ChatTemplate { stops: format.stops, ..Self::new(format.source, origin, tokenizer) }
    }

    /// The source of the template, with the reason if it is one of ours.
    pub fn origin(&self) -> &TemplateOrigin {
        &self.origin
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts that end an answer, in addition to the tokens for which [`Tokenizer::is_end`] holds.
    pub fn stop_strings(&self) -> &'static [&'static str] {
        self.stops
    }

    /// How the model marks its thoughts.
    pub fn reasoning(&self) -> &ReasoningFormat {
        &self.reasoning
    }

    /// How the model writes tool calls.
    pub fn tools(&self) -> &ToolFormat {
        self.tool_use.as_ref().map_or(&self.tools, |tool_use| &tool_use.tools)
    }

    /// True if the template passes tools to the model in a form of its own.
    pub fn knows_tools(&self) -> bool {
        self.tool_use.is_some() || self.source.contains("tools")
    }

    /// Renders a conversation. With `add_generation_prompt`, the text ends where the model's answer
    /// begins.
    ///
    /// The thoughts in earlier answers, which are [transcripts](crate::reasoning::transcript), are
    /// passed to the template separately, as `reasoning_content` and `thinking`. Templates drop
    /// them or write them as the model would.
    ///
    /// If a template has no system role, each system message moves to the front of the next user
    /// message. Errors are [`Error::Template`](thermocline_base::error::Error::Template): the
    /// template raised an error or exceeded a limit.
    pub fn render(&self, messages: &[ChatMessage<'_>], add_generation_prompt: bool) -> Result<String> {
        Ok(self.render_with(messages, RenderOptions::new(add_generation_prompt))?.plain().into_owned())
    }

    /// Renders the prompt of a conversation with tool definitions and further variables. If a
    /// template does not write definitions, calls or results, or fails on them, they are written as
    /// text in the messages. If it does not write pictures, or fails on them, their marks are
    /// written before the texts.
    pub fn render_with(&self, messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Result<PromptText> {
        let template = self.tool_use.as_deref().filter(|_| !options.tools.is_empty()).unwrap_or(self);
        let conversation = TemplateConversation::new(messages, options);
        let pictures: usize = messages.iter().map(|message| message.pictures).sum();
        let Some(marks) = options.marks.filter(|_| pictures > 0) else {
            return template.render_conversation(conversation).map(PromptText::guarded);
        };
        let marked = conversation.with_marks(marks);
        let text = match template.render_conversation(conversation) {
            Ok(text) if marks.count(&text) == pictures => text,
            Ok(_) | Err(_) => template.render_conversation(marked)?,
        };
        Ok(PromptText::guarded(marks.expand(text)))
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn special_texts(&self) -> &SpecialTexts {
        &self.tokens
    }
}

impl SpecialTexts {
    fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default()
        };
        SpecialTexts { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()), padding: text(tokenizer.padding()) }
    }
}

/// A tool for a test question.
fn sample_tools() -> [Json; 1] {
    let parameters = json!({ "type": "object", "properties": {} });
    [json!({ "type": "function", "function": { "name": "now", "description": "The time.", "parameters": parameters } })]
}

/// The template called `name` and its key.
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
            Some(("chat_template".to_owned(), configured_template(tokenizer_config, name)?))
        }
    }
}

/// The template called `name` in `tokenizer_config.json`, where a single template is called
/// `default`.
pub(crate) fn configured_template<'c>(config: &'c Json, name: &str) -> Option<&'c str> {
    match config.get("chat_template")? {
        Json::String(template) => Some(template.as_str()).filter(|_| name == "default"),
        Json::Array(templates) => templates.iter().find(|it| it["name"] == name)?.get("template")?.as_str(),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::test_vocabulary::vocabulary;
    use thermocline_formats::format::{Array, Container, Value as Meta};

    /// A byte-level vocabulary with these special tokens.
    pub(crate) fn checkpoint(special: &[&str], template: Option<&str>) -> Checkpoint {
        let mut tokens: Vec<String> = special.iter().map(|&text| text.to_owned()).collect();
        tokens.extend(('!'..='~').map(String::from));
        let mut metadata = vocabulary("gpt2", tokens, |id| if id < special.len() { 3 } else { 1 });
        metadata.set("tokenizer.ggml.pre", Meta::String("gpt-2".into()));
        metadata.set("tokenizer.ggml.merges", Meta::Array(Array::String(vec![])));
        metadata.set("tokenizer.ggml.bos_token_id", Meta::U32(0));
        metadata.set("tokenizer.ggml.eos_token_id", Meta::U32(1));
        if let Some(template) = template {
            metadata.set("tokenizer.chat_template", Meta::String(template.to_owned()));
        }
        Checkpoint::new("m.gguf".into(), Container::Gguf(3), metadata, TokenizerSource::Metadata, vec![])
            .expect("empty")
    }

    pub(in crate::chat) fn template(special: &[&str], source: Option<&str>) -> ChatTemplate {
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
            ("nothing", "omits the user's message"),
            ("{{ raise_exception('not\nsupported') }}", "not supported"),
        ] {
            let template = template(&["<|im_start|>", "<|im_end|>"], Some(source));
            let (origin, failure) = (template.origin().to_string(), template.origin().failure().unwrap_or_default());
            assert!(origin.starts_with("ChatML format") && origin.contains(reason), "{origin}");
            assert!(failure.contains(reason) && !failure.contains('\n'), "{failure}");
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
        let none = template(&["<s>", "</s>"], None);
        assert_eq!((none.stop_strings(), none.origin().failure()), (&["\nUser:"][..], None));
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
    fn template_for_tools_is_used_when_there_are_tools() {
        let general = "{{ messages[0].content }}";
        let special =
            "{% for t in tools %}[{{ t.function.name }}]{% endfor %}<tools>{{ messages[0].content }}[TOOL_CALLS]";
        let mut gguf = checkpoint(&["<s>", "</s>"], Some(general));
        let key = "tokenizer.chat_template.tool_use";
        gguf.metadata.set(key, Meta::String(special.to_owned()));
        let mut folder = checkpoint(&["<s>", "</s>"], None);
        let tokenizer_config = json!({"chat_template": [{"name": "default", "template": general}, {"name": "tool_use", "template": special}]});
        folder.tokenizer = TokenizerSource::HuggingFace { tokenizer_json: String::new(), tokenizer_config };
        let mut broken = gguf.clone();
        broken.metadata.set(key, Meta::String("{{ messages | no_such_filter }}".to_owned()));
        let tokenizer = Tokenizer::from_checkpoint(&gguf).expect("a vocabulary");
        let tools = sample_tools();
        for (checkpoint, works) in [(&gguf, true), (&folder, true), (&broken, false)] {
            let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer);
            let render = |tools| {
                let options = RenderOptions { tools, ..RenderOptions::new(true) };
                template.render_with(&TALK[1..2], options).expect("renders").plain().into_owned()
            };
            assert_eq!(render(&[]), "Hi");
            assert_eq!(render(&tools) == "[now]<tools>Hi[TOOL_CALLS]", works, "{}", render(&tools));
            assert_eq!(template.knows_tools(), works);
            let format = ToolFormat::detect(&tokenizer, if works { special } else { general });
            assert_eq!(template.tools(), &format);
        }
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

    /// A template that writes the given text for a picture. The text of a message is trimmed.
    fn seeing(written: &str) -> String {
        format!(
            "{{% for m in messages %}}[{{{{ m.role }}}}]{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{{% for p in \
             m.content %}}{{% if p.type == 'image' %}}{written}{{% else %}}{{{{ p.text | trim }}}}{{% endif %}}{{% endfor %}}\
             {{% endif %}}{{% endfor %}}"
        )
    }

    /// The third picture is in the second message.
    #[test]
    fn pictures_of_minicpm_have_their_numbers() {
        let marks = ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"];
        for (more, token) in [(&["<unk>"][..], "<unk>"), (&["<unk>", "<|image_pad|>"], "<|image_pad|>")] {
            let special = [&["<s>", "</s>"], &marks[..], more].concat();
            let source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
            let checkpoint = checkpoint(&special, Some(source));
            let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a vocabulary");
            let template = ChatTemplate::from_checkpoint(&checkpoint, &tokenizer);
            let marks = tokenizer.picture_marks(&checkpoint.metadata).expect("no key").expect("a known token");
            let options = RenderOptions { guard: Some(&tokenizer), marks: Some(&marks), ..RenderOptions::new(false) };
            let said = format!("What is {token}?");
            let messages = [2, 1].map(|pictures| ChatMessage { pictures, ..ChatMessage::new("user", &said) });
            let text = template.render_with(&messages, options).expect("renders");
            let picture = |number: usize| format!("<image_id>{number}</image_id><image>{token}\n");
            assert_eq!(text.plain(), format!("[{}{}{said}][{}{said}]", picture(0), picture(1), picture(2)));
            let ids = tokenizer.encode_prompt(&text).expect("encodes");
            assert_eq!(ids.iter().filter(|id| **id == marks.token).count(), 3);
            assert_eq!(tokenizer.picture_part_end("</slice>"), tokenizer.token_id("</slice>"));
            assert_eq!(tokenizer.picture_part_end("no token"), None);
        }
    }

    #[test]
    fn pictures_have_the_marks_of_their_family() {
        let gemma3 = ["<start_of_image>", "<image_soft_token>", "<end_of_image>"];
        let short = ["<start_of_image>", "<pad>", "<end_of_image>"];
        let gemma4 = ["<|image>", "<|image|>", "<image|>"];
        let qwen = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];
        for (special, written, expected) in [
            (gemma3, "<start_of_image>", "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"),
            (short, "<start_of_image>", "\n\n<start_of_image><pad><end_of_image>\n\n"),
            (gemma4, "<|image|>", "<|image><|image|><image|>"),
            (qwen, "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|image_pad|><|vision_end|>"),
        ] {
            let special = [&["<s>", "</s>"], &special[..]].concat();
            // The last template knows no pictures, and the one before it fails on them.
            for source in [&seeing(written), "{{ '[user]' + messages[0].content }}", "[user]{{ messages[0].content }}"]
            {
                let checkpoint = checkpoint(&special, Some(source));
                let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a vocabulary");
                let template = ChatTemplate::from_checkpoint(&checkpoint, &tokenizer);
                let marks = tokenizer.picture_marks(&checkpoint.metadata).expect("no key").expect("a known token");
                let (guard, marks) = (Some(&tokenizer), Some(&marks));
                let options = RenderOptions { guard, marks, ..RenderOptions::new(false) };
                // Text of a user is never a mark.
                let said = format!("What is {written}?");
                let message = ChatMessage { pictures: 2, ..ChatMessage::new("user", &said) };
                let text = template.render_with(&[message], options).expect("renders");
                assert_eq!(text.plain(), format!("[user]{expected}{expected}{said}"), "{source}");
                let ids = tokenizer.encode_prompt(&text).expect("encodes");
                let token = marks.map(|marks| marks.token);
                assert_eq!(ids.iter().filter(|id| Some(**id) == token).count(), 2);
            }
        }
    }
}
