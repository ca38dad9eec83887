//! How the text of a prompt marks a picture.

use std::borrow::Cow;

use super::Tokenizer;

/// Marks of published vocabularies.
const KNOWN: [KnownMarks; 5] = [
    // Qwen 2 VL, 2.5 VL, 3 VL and 3.5
    KnownMarks {
        token: "<|image_pad|>",
        written: "<|image_pad|>",
        content: "<|vision_start|><|image_pad|><|vision_end|>",
        expanded: "<|image_pad|>",
    },
    // Gemma 3
    KnownMarks {
        token: "<image_soft_token>",
        written: "<start_of_image>",
        content: "<start_of_image>",
        expanded: "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
    },
    // Gemma 3 in files whose vocabulary ends before the token of pictures
    KnownMarks {
        token: "<pad>",
        written: "<start_of_image>",
        content: "<start_of_image>",
        expanded: "\n\n<start_of_image><pad><end_of_image>\n\n",
    },
    // Gemma 4
    KnownMarks {
        token: "<|image|>",
        written: "<|image|>",
        content: "<|image|>",
        expanded: "<|image><|image|><image|>",
    },
    // Mistral 3 and Pixtral
    KnownMarks { token: "[IMG]", written: "[IMG]", content: "[IMG]", expanded: "[IMG]" },
];

/// The marks of one family.
struct KnownMarks {
    token: &'static str,
    written: &'static str,
    content: &'static str,
    expanded: &'static str,
}

/// How the text of a prompt marks a picture. The text has one token for each picture, which the
/// tokens of the picture replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureMarks {
    /// Id of the token that stands for a token of a picture.
    pub token: u32,
    /// Text that chat templates write for a picture.
    written: Cow<'static, str>,
    /// Text for a picture in the contents of messages, for templates without pictures. It contains
    /// `written` once.
    content: Cow<'static, str>,
    /// Text in place of `written`, with the token and the marks around it.
    expanded: Cow<'static, str>,
}

impl PictureMarks {
    /// Returns the marks of a vocabulary. Its token for pictures is `named`, or else the token with
    /// a known text. `None` if the vocabulary has no such token.
    pub fn of(tokenizer: &Tokenizer, named: Option<u32>) -> Option<Self> {
        let known = KNOWN.iter().find_map(|it| {
            let token = tokenizer.token_id(it.written).and(tokenizer.token_id(it.token))?;
            let [written, content, expanded] = [it.written, it.content, it.expanded].map(Cow::Borrowed);
            named.is_none_or(|named| named == token).then_some(PictureMarks { token, written, content, expanded })
        });
        let own = || {
            let token = named?;
            let text = || Cow::Owned(String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned());
            Some(PictureMarks { token, written: text(), content: text(), expanded: text() })
        };
        known.or_else(own)
    }

    /// Text for `pictures` pictures in the content of a message.
    pub fn content(&self, pictures: usize) -> String {
        self.content.repeat(pictures)
    }

    /// Number of pictures in a rendered text.
    pub(super) fn count(&self, text: &str) -> usize {
        if self.written.is_empty() { 0 } else { text.matches(&*self.written).count() }
    }

    /// Writes the marks around each picture in a rendered text. The model was trained with these
    /// marks.
    pub(super) fn expand(&self, text: String) -> String {
        if self.written == self.expanded { text } else { text.replace(&*self.written, &self.expanded) }
    }
}
