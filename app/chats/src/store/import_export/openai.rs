//! Import of the messages of a request, as clients of OpenAI's API and `/save` of the terminal chat
//! write them: `{"messages": [{"role": "user", "content": "..."}]}`. Content may be a list of texts
//! and pictures. A picture is a data URL.

use serde_json::Value;

use super::{FileChat, ReadFile, attached::FileAttachment, bad, chat};
use crate::store::{Speaker, StoreError};

/// Reads an object with `messages`. Returns `None` for any other object.
///
/// # Errors
/// [`StoreError::Import`] names the message that cannot be read.
pub(super) fn read(object: &Value) -> Option<Result<ReadFile, StoreError>> {
    let list = object.get("messages")?.as_array()?;
    Some(read_chat(list).map(|chat| ReadFile::whole(vec![chat])))
}

fn read_chat(list: &[Value]) -> Result<FileChat, StoreError> {
    let mut chat = FileChat::now();
    for (n, message) in list.iter().enumerate() {
        let (text, pictures) = read_content(&message["content"], n)?;
        let speaker = match message["role"].as_str() {
            Some("system" | "developer") => {
                if !pictures.is_empty() {
                    let expected = "a text, because a system prompt has no pictures";
                    return Err(bad(format!("content of message {n}"), expected, "a picture"));
                }
                chat.instruct(&text);
                continue;
            }
            Some("user") => Speaker::User,
            Some("assistant") => Speaker::Assistant,
            _ => {
                return Err(bad(
                    format!("role of message {n}"),
                    "system, user or assistant",
                    beginning(&message["role"]),
                ));
            }
        };
        chat.add_message(speaker, None, &text);
        if let Some(message) = chat.messages.last_mut() {
            message.attachments = pictures;
        }
    }
    let titles = chat.messages.iter().map(|message| chat::title(&message.content));
    chat.title = titles.into_iter().find(|title| !title.is_empty()).unwrap_or_default();
    Ok(chat)
}

/// The text and the pictures of message `n`.
fn read_content(content: &Value, n: usize) -> Result<(String, Vec<FileAttachment>), StoreError> {
    let expected = "a text, or a list of texts and pictures in data URLs";
    let wrong = |got: &Value| bad(format!("content of message {n}"), expected, beginning(got));
    let parts = match content {
        Value::String(text) => return Ok((text.clone(), Vec::new())),
        Value::Array(parts) => parts,
        other => return Err(wrong(other)),
    };
    let (mut text, mut pictures) = (String::new(), Vec::new());
    for part in parts {
        let url = part["image_url"]["url"].as_str().or(part["image_url"].as_str());
        let file = url.and_then(|url| url.strip_prefix("data:")?.split_once(";base64,"));
        match (part["text"].as_str(), file) {
            (Some(said), _) => text.push_str(said),
            (None, Some((media_type, file))) => {
                let name = format!("picture {}{}", pictures.len() + 1, suffix(media_type));
                pictures.push(FileAttachment::of_picture(name, file));
            }
            (None, None) => return Err(wrong(part)),
        }
    }
    Ok((text, pictures))
}

/// The beginning of a value, for an error.
fn beginning(value: &Value) -> String {
    value.to_string().chars().take(100).collect()
}

/// The end of a file's name for a media type such as `image/png`. Nothing for other types.
fn suffix(media_type: &str) -> String {
    let kind = media_type.strip_prefix("image/").unwrap_or_default();
    let letters: String = kind.chars().take_while(char::is_ascii_alphanumeric).take(8).collect();
    if letters.is_empty() { letters } else { format!(".{letters}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thermocline_engine::pictures::Picture;

    use super::suffix;
    use crate::store::{Store, import_export::FileFormat};

    #[test]
    fn messages_of_requests_are_chats() {
        let picture = Picture::from_rgb(3, 2, vec![9; 18]).unwrap();
        let url = picture.file().unwrap().data_url();
        let parts = json!([{ "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": "What?" }]);
        let messages = json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": parts },
            { "role": "assistant", "content": "Grey." },
        ]);
        let text = json!({ "model": "m", "messages": messages }).to_string();
        let mut store = Store::in_memory().unwrap();
        let chat = store.import(FileFormat::Json, &text).unwrap().added[0];
        let about = store.chat(chat).unwrap();
        assert_eq!((&*about.title, &*about.system_prompt), ("What?", "Be brief."));
        let branch = store.branch(chat).unwrap();
        assert_eq!(branch.iter().map(|it| &*it.content).collect::<Vec<_>>(), ["What?", "Grey."]);
        let documents = &store.documents(chat).unwrap()[&branch[0].id];
        assert_eq!((&*documents[0].name, &documents[0].pictures[..]), ("picture 1.png", &[picture][..]));
    }

    #[test]
    fn messages_that_cannot_be_read_are_named() {
        let image = |url: &str| json!([{ "type": "image_url", "image_url": { "url": url } }]);
        let long = "king".repeat(1000);
        for (role, content, said) in [
            (&*long, json!("a"), "role of message 0"),
            ("system", image("data:image/png;base64,QUJD"), "content of message 0"),
            ("user", json!(7), "content of message 0"),
            ("user", image("https://example.org/a.png"), "content of message 0"),
            ("user", image("data:image/png;base64,QUJD"), "picture 1.png"),
        ] {
            let text = json!({ "messages": [{ "role": role, "content": content }] }).to_string();
            let mut store = Store::in_memory().unwrap();
            let error = store.import(FileFormat::Json, &text).unwrap_err().to_string();
            assert!(error.contains(said) && error.len() < 400, "{error}");
            assert!(store.chats().unwrap().is_empty());
        }
    }

    #[test]
    fn names_of_pictures_end_with_a_plain_type() {
        for (media_type, expected) in [
            ("image/png", ".png"),
            ("image/svg+xml", ".svg"),
            ("image/jpeg;charset=x", ".jpeg"),
            ("image/../../etc/passwd", ""),
            ("image/abcdefghijkl", ".abcdefgh"),
            ("text/html", ""),
        ] {
            assert_eq!(suffix(media_type), expected, "{media_type}");
        }
    }
}
