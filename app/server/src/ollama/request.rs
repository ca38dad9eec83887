//! Requests for chats, texts and embeddings.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::{Prompt, Request, Role};

use crate::{
    answer_form::RequestedGrammar,
    embeddings::EmbeddingFields,
    error::ApiError,
    fields::{FieldLimit, Ignored, TextOr, accept_only, each, invalid, parse_fields},
    openai::{CallObject, TextPart, read_tools},
    picture_fetch::PictureFetch,
    request::RequestedAnswer,
    request_message::{ROLES, RequestMessage, chat_prompt, role_of},
    sampling_fields::{SamplingFields, set},
    thoughts::{Effort, RequestedThoughts},
};
use thermocline_host::units::Limit;

/// The fields of chats and texts.
#[derive(Debug, PartialEq, Deserialize)]
struct CommonFields {
    model: Option<String>,
    stream: Option<bool>,
    format: Option<Value>,
    think: Option<Think>,
    options: Option<(SamplingFields, OptionFields)>,
    keep_alive: Ignored,
    truncate: Ignored,
    shift: Ignored,
}

/// The options besides sampling. Options about loading a model are ignored, because the server's
/// own command line decides them.
#[derive(Debug, PartialEq, Deserialize)]
struct OptionFields {
    num_predict: Option<FieldLimit>,
    mirostat: Option<Value>,
    num_ctx: Ignored,
    num_batch: Ignored,
    num_gpu: Ignored,
    main_gpu: Ignored,
    num_thread: Ignored,
    num_keep: Ignored,
    numa: Ignored,
    low_vram: Ignored,
    use_mmap: Ignored,
    use_mlock: Ignored,
    penalize_newline: Ignored,
}

/// The fields of chats alone.
#[derive(Debug, PartialEq, Deserialize)]
struct OllamaChatFields {
    messages: Option<Vec<ChatMessageFields>>,
    tools: Option<Vec<Value>>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct ChatMessageFields {
    role: Option<String>,
    content: Option<TextOr<TextPart>>,
    thinking: Option<String>,
    tool_calls: Option<Vec<CallObject>>,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    images: Option<Vec<String>>,
}

/// The fields of texts alone.
#[derive(Debug, PartialEq, Deserialize)]
struct GenerateFields {
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<Value>,
    images: Option<Vec<String>>,
}

/// The fields of an embedding request that OpenAI's lacks.
#[derive(Debug, PartialEq, Deserialize)]
struct EmbedFields {
    prompt: Option<Value>,
    options: Ignored,
}

/// Turns thoughts on or off, or sets their effort.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
enum Think {
    On(bool),
    Effort(Effort),
}

impl TryFrom<Value> for Think {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        match (&value, value.as_str()) {
            (Value::Bool(on), _) => Ok(Think::On(*on)),
            (_, Some("low")) => Ok(Think::Effort(Effort::Low)),
            (_, Some("medium")) => Ok(Think::Effort(Effort::Medium)),
            (_, Some("high")) => Ok(Think::Effort(Effort::High)),
            _ => Err("true, false, low, medium or high"),
        }
    }
}

/// Reads a body of `/api/chat`. `None` for a request without messages, which only loads the model.
pub fn read_chat(body: &[u8], defaults: &Request, fetch: &PictureFetch) -> Result<Option<RequestedAnswer>, ApiError> {
    let (common, chat): (CommonFields, OllamaChatFields) = parse_fields(body, false)?;
    let messages = each(chat.messages.unwrap_or_default(), "messages", |_, message| message.read())?;
    let mut asked = common.read(defaults)?;
    asked.tools = read_tools(chat.tools)?;
    let empty = messages.is_empty();
    asked.prompts.push(chat_prompt(messages, false, fetch)?);
    Ok((!empty).then_some(asked))
}

/// Reads a body of `/api/generate`: a chat of one message or, with `raw`, a text to continue.
/// `None` for a request without a prompt, which only loads the model.
pub fn read_generate(
    body: &[u8],
    defaults: &Request,
    fetch: &PictureFetch,
) -> Result<Option<RequestedAnswer>, ApiError> {
    let (common, fields): (CommonFields, GenerateFields) = parse_fields(body, false)?;
    accept_only(fields.template.as_ref(), "template", &[json!("")])?;
    let mut asked = common.read(defaults)?;
    asked.suffix = fields.suffix.filter(|suffix| !suffix.is_empty());
    let prompt = fields.prompt.unwrap_or_default();
    let empty = prompt.is_empty();
    if fields.raw == Some(true) || asked.suffix.is_some() {
        if asked.thoughts != RequestedThoughts::default() {
            let message = "think: expected none in a request without a chat, got a value";
            return Err(ApiError::invalid_field("think", message));
        }
        if let Some(images) = fields.images {
            return Err(invalid("images", "none in a request without a chat", &json!(images.len())));
        }
        asked.prompts.push(Prompt::Text(prompt));
    } else {
        let system = fields.system.filter(|text| !text.is_empty());
        let system = system.map(|text| RequestMessage::new(Role::System, text));
        let pictures = fields.images.unwrap_or_default();
        let user = RequestMessage { pictures, ..RequestMessage::new(Role::User, prompt) };
        asked.prompts.push(chat_prompt(system.into_iter().chain([user]).collect(), false, fetch)?);
    }
    Ok((!empty).then_some(asked))
}

/// Reads a body of `/api/embed`.
pub fn read_embed(body: &[u8]) -> Result<EmbeddingFields, ApiError> {
    let (fields, _): (EmbeddingFields, EmbedFields) = parse_fields(body, false)?;
    Ok(EmbeddingFields { truncate: fields.truncate.or(Some(true)), ..fields })
}

/// Reads a body of `/api/embeddings`, which has one text.
pub fn read_embeddings(body: &[u8]) -> Result<EmbeddingFields, ApiError> {
    let (fields, EmbedFields { prompt, .. }): (EmbeddingFields, _) = parse_fields(body, false)?;
    Ok(EmbeddingFields { input: prompt, truncate: Some(true), ..fields })
}

impl CommonFields {
    fn read(self, defaults: &Request) -> Result<RequestedAnswer, ApiError> {
        let mut asked = RequestedAnswer::new(Vec::new(), defaults);
        (asked.model, asked.stream) = (self.model, self.stream.unwrap_or(true));
        asked.grammar = match self.format {
            None => None,
            Some(Value::String(word)) if word.is_empty() => None,
            Some(Value::String(word)) if word == "json" => Some(RequestedGrammar::any_object("format")),
            Some(schema @ Value::Object(_)) => Some(RequestedGrammar::of_schema(&schema, false, "format")?),
            Some(other) => return Err(invalid("format", "\"json\" or a JSON schema", &other)),
        };
        match self.think {
            None => {}
            Some(Think::Effort(effort)) => asked.thoughts.think(effort),
            Some(Think::On(on)) => {
                asked.thoughts.enable(on);
                asked.thoughts.budget = (!on).then_some(Limit::Of(0));
            }
        }
        if let Some((sampling, options)) = self.options {
            sampling.apply(&mut asked.settings, false).map_err(|error| error.under("options"))?;
            set(&mut asked.settings.max_tokens, options.num_predict.map(|most| most.0.count()));
            accept_only(options.mirostat.as_ref(), "options.mirostat", &[json!(0)])?;
        }
        Ok(asked)
    }
}

impl ChatMessageFields {
    fn read(self) -> Result<RequestMessage, ApiError> {
        let role = self.role.unwrap_or_default();
        let role = role_of(&role).ok_or_else(|| invalid("role", ROLES, &role.as_str().into()))?;
        if self.tool_calls.is_some() && role != Role::Assistant {
            return Err(ApiError::unsupported("tool_calls"));
        }
        if self.tool_call_id.is_some() && role != Role::Tool {
            return Err(ApiError::unsupported("tool_call_id"));
        }
        let mut pictures = self.images.unwrap_or_default();
        let content = self.content.map_or(Ok(String::new()), |content| content.text(|part| part.read(&mut pictures)));
        let mut message = RequestMessage::new(role, content.map_err(|error| error.under("content"))?);
        if role == Role::Assistant {
            message.thoughts = self.thinking.unwrap_or_default();
        }
        message.calls = self.tool_calls.unwrap_or_default().into_iter().map(|call| call.0).collect();
        Ok(RequestMessage { call_id: self.tool_call_id, name: self.tool_name, pictures, ..message })
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Grammar, Message, sampling::JsonSchema};

    use super::*;

    type BodyReader = fn(&[u8], &Request, &PictureFetch) -> Result<Option<RequestedAnswer>, ApiError>;

    fn read(read: BodyReader, body: &Value) -> Result<Option<RequestedAnswer>, ApiError> {
        read(body.to_string().as_bytes(), &Request::new(Prompt::Tokens(Vec::new())), &PictureFetch::default())
    }

    #[test]
    fn chats_have_options_format_and_thoughts() {
        let call = json!({ "function": { "name": "f", "arguments": { "x": 1 } } });
        let body = json!({
            "model": "m", "keep_alive": "5m", "think": false, "format": "json",
            "options": { "temperature": 0.5, "num_predict": 7, "num_ctx": 4096, "seed": -1, "stop": ["x"] },
            "messages": [
                { "role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call] },
                { "role": "tool", "tool_name": "f", "content": "7" },
            ],
        });
        let asked = read(read_chat, &body).unwrap().unwrap();
        let answer = RequestMessage {
            thoughts: "Hm.".to_owned(),
            calls: vec![call],
            ..RequestMessage::new(Role::Assistant, "")
        };
        let result = RequestMessage { name: Some("f".to_owned()), ..RequestMessage::new(Role::Tool, "7") };
        assert_eq!(asked.prompts, [Prompt::Chat(vec![answer.into(), result.into()])]);
        let settings = &asked.settings;
        assert_eq!((settings.sampling.temperature, settings.sampling.seed), (0.5, None));
        assert_eq!((settings.max_tokens, &settings.stop), (Some(7), &vec!["x".to_owned()]));
        assert_eq!((asked.model.as_deref(), asked.stream), (Some("m"), true));
        assert_eq!(asked.thoughts.budget, Some(Limit::Of(0)));
        assert_eq!(Value::Object(asked.thoughts.variables), json!({ "enable_thinking": false }));
        let grammar = Grammar::JsonSchema(JsonSchema::any_object());
        assert_eq!(asked.grammar, Some(RequestedGrammar { field: "format".to_owned(), grammar }));
    }

    #[test]
    fn generate_is_a_chat_unless_raw_and_nothing_without_a_prompt() {
        let body = json!({ "prompt": "hi", "system": "Be brief.", "stream": false, "options": { "num_predict": -1 } });
        let chat = read(read_generate, &body).unwrap().unwrap();
        let messages = vec![Message::new(Role::System, "Be brief."), Message::new(Role::User, "hi")];
        assert_eq!(chat.prompts, [Prompt::Chat(messages)]);
        assert_eq!((chat.stream, chat.settings.max_tokens), (false, None));
        let raw = read(read_generate, &json!({ "prompt": "hi", "raw": true })).unwrap().unwrap();
        assert_eq!((raw.prompts, raw.stream), (vec![Prompt::Text("hi".to_owned())], true));
        assert_eq!(read(read_generate, &json!({ "model": "m" })).unwrap(), None);
        let infill = read(read_generate, &json!({ "prompt": "a", "suffix": "b" })).unwrap().unwrap();
        assert_eq!((infill.prompts, infill.suffix), (vec![Prompt::Text("a".to_owned())], Some("b".to_owned())));
    }

    #[test]
    fn errors_name_the_field() {
        for (body, says) in [
            (json!({ "options": { "mirostat": 2 } }), "options.mirostat: expected 0"),
            (json!({ "options": { "warp": 1 } }), "`options.warp` is not supported"),
            (json!({ "options": { "stop": 1 } }), "options.stop: expected a string"),
            (json!({ "format": "xml" }), "format: expected"),
            (json!({ "think": "hard" }), "think: expected"),
            (
                json!({ "messages": [{ "role": "user", "content": "a", "images": "b" }] }),
                "messages[0].images: expected a list",
            ),
            (json!({ "messages": [], "warp": 1 }), "`warp` is not supported"),
        ] {
            let error = read(read_chat, &body).unwrap_err();
            assert!(error.message.contains(says), "{error:?}");
        }
        let error = read(read_generate, &json!({ "prompt": "a", "raw": true, "think": true })).unwrap_err();
        assert!(error.message.contains("think: expected"));
    }
}
