//! Messages of content blocks.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::Role;

use crate::{
    error::ApiError,
    fields::{Hint, Ignored, ListItem, TextOr, invalid},
    request_message::RequestMessage,
};

/// Beginning of the line that agents put before their system prompts.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// A message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", rename = "role: user, assistant or system")]
pub enum BlockMessage {
    User(BlockContent<UserBlock>),
    Assistant(BlockContent<AnswerBlock>),
    System(BlockContent<SystemBlock>),
}

/// The fields of a message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(bound = "T: Deserialize<'de> + ListItem")]
pub struct BlockContent<T> {
    content: TextOr<T>,
    id: Hint,
}

/// A block of a user message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text, image or tool_result (nothing else can be read)")]
pub enum UserBlock {
    Text(BlockText),
    Image(ImageBlock),
    ToolResult {
        tool_use_id: Option<String>,
        content: Option<TextOr<ResultBlock>>,
        is_error: Option<bool>,
        cache_control: Ignored,
    },
}

/// A block of an assistant message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text, thinking or tool_use")]
pub enum AnswerBlock {
    Text(BlockText),
    Thinking { thinking: Option<String>, signature: Ignored, cache_control: Hint },
    RedactedThinking,
    ToolUse { id: Option<String>, name: String, input: Option<Value>, cache_control: Ignored, caller: Hint },
}

/// A block of a system message.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text")]
pub enum SystemBlock {
    Text(BlockText),
}

/// A block of a tool's result.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text or image (nothing else can be read)")]
pub enum ResultBlock {
    Text(BlockText),
    Image(ImageBlock),
}

/// The fields of a picture.
#[derive(Debug, PartialEq, Deserialize)]
pub struct ImageBlock {
    source: ImageSource,
    cache_control: Ignored,
}

/// Where the file of a picture is: in the request, or elsewhere.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: base64 or url")]
enum ImageSource {
    Base64 { data: String, media_type: Ignored },
    Url { url: String },
}

/// A block that must be text.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text (nothing else can be read)")]
pub enum TextBlock {
    Text(BlockText),
}

/// The fields of a text block.
#[derive(Debug, PartialEq, Deserialize)]
pub struct BlockText {
    text: String,
    cache_control: Ignored,
    citations: Ignored,
}

impl ListItem for UserBlock {
    const NAME: &'static str = "content blocks";
}

impl ListItem for ResultBlock {
    const NAME: &'static str = "content blocks";
}

impl ImageBlock {
    /// The picture as base64 or an address.
    fn picture(self) -> String {
        match self.source {
            ImageSource::Base64 { data, .. } => data,
            ImageSource::Url { url } => url,
        }
    }
}

impl ListItem for AnswerBlock {
    const NAME: &'static str = "content blocks";
}

impl ListItem for SystemBlock {
    const NAME: &'static str = "content blocks";
}

impl ListItem for TextBlock {
    const NAME: &'static str = "text blocks";
}

impl TextBlock {
    /// The text.
    fn text(self) -> Result<String, ApiError> {
        let TextBlock::Text(block) = self;
        Ok(block.text)
    }
}

/// Builds the system prompt. Unless the server is `strict`, it drops an agent's billing header. The
/// header changes with every turn, so the KV cache of everything after it could not be reused.
pub fn system_message(mut system: TextOr<TextBlock>, strict: bool) -> Result<Option<RequestMessage>, ApiError> {
    let billed = !strict && remove_billing_line(&mut system);
    let text = system.text(TextBlock::text)?;
    Ok((!billed || !text.is_empty()).then(|| RequestMessage::new(Role::System, text)))
}

/// Removes the first line of a system prompt if it is an agent's billing header. Returns `false` if
/// it is not.
fn remove_billing_line(system: &mut TextOr<TextBlock>) -> bool {
    let first = match system {
        TextOr::Text(text) => Some(text),
        TextOr::List(blocks) => {
            let mut texts = blocks.iter_mut().map(|TextBlock::Text(block)| &mut block.text);
            texts.find(|text| !text.is_empty())
        }
    };
    let Some(text) = first else { return false };
    let billed = text.get(..BILLING_HEADER.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(BILLING_HEADER));
    if billed {
        let end = text.find('\n').map_or(text.len(), |at| at + 1);
        text.drain(..end);
    }
    billed
}

impl BlockMessage {
    /// Adds the message's content to the messages of a chat. Tool results become messages of their
    /// own.
    pub fn read(self, into: &mut Vec<RequestMessage>) -> Result<(), ApiError> {
        match self {
            BlockMessage::User(BlockContent { content, .. }) => {
                let mut pictures = Vec::new();
                let said = read_words(content, |block| match block {
                    UserBlock::Text(block) => Ok(block.text),
                    UserBlock::Image(block) => {
                        pictures.push(block.picture());
                        Ok(String::new())
                    }
                    UserBlock::ToolResult { tool_use_id, content, is_error, .. } => {
                        into.push(result(tool_use_id, content, is_error == Some(true))?);
                        Ok(String::new())
                    }
                })?;
                let said = said.or((!pictures.is_empty()).then(String::new));
                into.extend(said.map(|text| RequestMessage { pictures, ..RequestMessage::new(Role::User, text) }));
            }
            BlockMessage::System(BlockContent { content, .. }) => {
                let said = read_words(content, |SystemBlock::Text(block)| Ok(block.text))?;
                into.extend(said.map(|text| RequestMessage::new(Role::System, text)));
            }
            BlockMessage::Assistant(BlockContent { content, .. }) => {
                let mut message = RequestMessage::new(Role::Assistant, "");
                let (thoughts, calls) = (&mut message.thoughts, &mut message.calls);
                let text = content.text(|block| {
                    match block {
                        AnswerBlock::Text(block) => return Ok(block.text),
                        AnswerBlock::Thinking { thinking, .. } => *thoughts += &thinking.unwrap_or_default(),
                        AnswerBlock::RedactedThinking => {}
                        AnswerBlock::ToolUse { id, name, input, .. } => {
                            let input = input.unwrap_or_else(|| json!({})).to_string();
                            calls.push(RequestMessage::call(id.as_deref(), &name, &input));
                        }
                    }
                    Ok(String::new())
                })?;
                message.content = text;
                into.push(message);
            }
        }
        Ok(())
    }
}

/// Reads the result of a tool.
fn result(
    call: Option<String>,
    content: Option<TextOr<ResultBlock>>,
    failed: bool,
) -> Result<RequestMessage, ApiError> {
    let mut pictures = Vec::new();
    let text = content.unwrap_or(TextOr::Text(String::new())).text(|block| match block {
        ResultBlock::Text(block) => Ok(block.text),
        ResultBlock::Image(block) => {
            pictures.push(block.picture());
            Ok(String::new())
        }
    })?;
    let failed = if failed { "Error: " } else { "" };
    Ok(RequestMessage { pictures, ..RequestMessage::result(call, format!("{failed}{text}")) })
}

/// Returns a text, or the joined text of blocks; `None` if the blocks have no text.
fn read_words<T>(
    content: TextOr<T>,
    read: impl FnMut(T) -> Result<String, ApiError>,
) -> Result<Option<String>, ApiError> {
    match content {
        TextOr::Text(text) => Ok(Some(text)),
        TextOr::List(blocks) if blocks.is_empty() => {
            Err(invalid("content", "a string or a list of content blocks", &json!([])))
        }
        blocks => Ok(Some(blocks.text(read)?).filter(|text| !text.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::read_fields;

    #[test]
    fn pictures_of_messages_and_of_results_are_read() {
        let image = |data: &str| {
            let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
            json!({ "type": "image", "source": source })
        };
        let text = json!({ "type": "text", "text": "What is it?" });
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [image("b")] });
        let mut messages = Vec::new();
        for content in [json!([image("a"), text]), json!([result]), json!([image("c")])] {
            let message: BlockMessage = read_fields(&json!({ "role": "user", "content": content }), "", true).unwrap();
            message.read(&mut messages).unwrap();
        }
        let read: Vec<_> = messages.iter().map(|it| (it.role, &*it.content, &*it.pictures[0])).collect();
        assert_eq!(read, [(Role::User, "What is it?", "a"), (Role::Tool, "", "b"), (Role::User, "", "c")]);
    }

    #[test]
    fn billing_line_before_the_system_prompt_is_left_out_unless_strict() {
        let line = "x-anthropic-billing-header: cc_version=2.1.0; cch=0a1b2;";
        let block = |text: &str| json!({ "type": "text", "text": text });
        let read = |system: &Value, strict: bool| {
            let system = read_fields(system, "system", strict).unwrap();
            system_message(system, strict).unwrap().map(|message| message.content)
        };
        for (system, wanted) in [
            (json!([block(line), block("Be brief.")]), Some("Be brief.")),
            (json!([block(""), block(&format!("{line}\nBe brief."))]), Some("Be brief.")),
            (json!(format!("{line}\nBe brief.\n{line}")), Some(&*format!("Be brief.\n{line}"))),
            (json!(line), None),
            (json!(format!("Be brief.\n{line}")), Some(&*format!("Be brief.\n{line}"))),
            (json!(""), Some("")),
        ] {
            assert_eq!(read(&system, false).as_deref(), wanted, "{system}");
        }
        assert_eq!(read(&json!(line), true).as_deref(), Some(line));
    }
}
