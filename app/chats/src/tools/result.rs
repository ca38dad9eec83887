//! The result of a call as the model reads it, and the limits on data from servers.

use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::tool::clean;

/// Limits on the time and the data of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolLimits {
    /// Time limit for starting a server and reading its tool list.
    pub connect: Duration,
    /// Time limit for one call.
    pub call: Duration,
    /// Largest message in bytes.
    pub message: usize,
    /// Largest result in bytes. The rest is left out.
    pub result: usize,
    /// Largest number of tools of one server. Further tools are left out.
    pub tools: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        ToolLimits {
            // The first start of a package may download it.
            connect: Duration::from_secs(60),
            call: Duration::from_secs(120),
            message: 8 << 20,
            result: 16 << 10,
            tools: 64,
        }
    }
}

/// The text of a result, or an error if the tool reports one.
pub(super) fn text(result: CallToolResult, most: usize) -> Result<String, String> {
    let mut text = String::new();
    for block in &result.content {
        if !text.is_empty() {
            text.push('\n');
        }
        match block {
            ContentBlock::Text(content) => text.push_str(&content.text),
            ContentBlock::Image(image) => text.push_str(&left_out("an image", &image.mime_type)),
            ContentBlock::Audio(audio) => text.push_str(&left_out("sound", &audio.mime_type)),
            ContentBlock::Resource(embedded) => match &embedded.resource {
                ResourceContents::TextResourceContents { text: content, .. } => text.push_str(content),
                _ => text.push_str(&left_out("a file", "binary")),
            },
            ContentBlock::ResourceLink(link) => text.push_str(&link.uri),
            _ => text.push_str(&left_out("content", "of a later version of the protocol")),
        }
        if text.len() > most {
            break;
        }
    }
    if text.is_empty()
        && let Some(structured) = &result.structured_content
    {
        text = structured.to_string();
    }
    let text = shortened(&clean(&text), most);
    if result.is_error == Some(true) { Err(text) } else { Ok(text) }
}

fn left_out(what: &str, kind: &str) -> String {
    let kind: String = kind.chars().take(40).collect();
    format!("[{what} ({kind}), which is not given to the model]")
}

/// The first `most` bytes of `text`, with a note if the text is longer.
pub fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}\n[the result is longer: {end} of {} bytes are given]", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(result: serde_json::Value) -> Result<String, String> {
        text(serde_json::from_value(result).unwrap(), 100)
    }

    #[test]
    fn result_is_plain_text_of_limited_length() {
        let blocks = json!({ "content": [
            { "type": "text", "text": "one\u{1b}[31m" },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "two" } },
        ] });
        assert_eq!(of(blocks).unwrap(), "one[31m\n[an image (image/png), which is not given to the model]\ntwo");
        let long = of(json!({ "content": [{ "type": "text", "text": "é".repeat(100) }] })).unwrap();
        assert!(
            long.starts_with("éé") && long.ends_with("[the result is longer: 100 of 200 bytes are given]"),
            "{long}"
        );
        let failed = of(json!({ "content": [{ "type": "text", "text": "no such file" }], "isError": true }));
        assert_eq!(failed.unwrap_err(), "no such file");
        assert_eq!(of(json!({ "content": [], "structuredContent": { "a": 1 } })).unwrap(), "{\"a\":1}");
    }
}
