//! How the text of a prompt marks a picture.

use std::borrow::Cow;

use super::Tokenizer;

/// Marks of published vocabularies.
const KNOWN: [KnownMarks; 7] = [
    // MiniCPM-V, whose large pictures have slices: 4.6, and models with a token for pictures
    KnownMarks {
        token: "<|image_pad|>",
        written: "<|image_pad|>",
        content: "<|image_pad|>\n",
        expanded: "<image_id>{number}</image_id><image><|image_pad|>",
        others: &["<image_id>", "</image_id>", "<image>", "</image>", "<slice>", "</slice>"],
    },
    // MiniCPM-V 2.6 to 4.5 and MiniCPM-o
    KnownMarks {
        token: "<unk>",
        written: "<unk>",
        content: "<unk>\n",
        expanded: "<image_id>{number}</image_id><image><unk>",
        others: &["<image_id>", "</image_id>", "<image>", "</image>", "<slice>", "</slice>"],
    },
    // Qwen 2 VL, 2.5 VL, 3 VL and 3.5
    KnownMarks {
        token: "<|image_pad|>",
        written: "<|image_pad|>",
        content: "<|vision_start|><|image_pad|><|vision_end|>",
        expanded: "<|image_pad|>",
        others: &[],
    },
    // Gemma 3
    KnownMarks {
        token: "<image_soft_token>",
        written: "<start_of_image>",
        content: "<start_of_image>",
        expanded: "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
        others: &[],
    },
    // Gemma 3 in files whose vocabulary ends before the token of pictures
    KnownMarks {
        token: "<pad>",
        written: "<start_of_image>",
        content: "<start_of_image>",
        expanded: "\n\n<start_of_image><pad><end_of_image>\n\n",
        others: &[],
    },
    // Gemma 4
    KnownMarks {
        token: "<|image|>",
        written: "<|image|>",
        content: "<|image|>",
        expanded: "<|image><|image|><image|>",
        others: &[],
    },
    // Mistral 3 and Pixtral
    KnownMarks { token: "[IMG]", written: "[IMG]", content: "[IMG]", expanded: "[IMG]", others: &[] },
];

/// Stands for the number of a picture in the prompt, from 0.
const NUMBER: &str = "{number}";

/// Spellings of a line break as a token.
const LINE_BREAKS: [&str; 3] = ["\n", "Ċ", "<0x0A>"];

/// The marks of one family.
struct KnownMarks {
    token: &'static str,
    written: &'static str,
    content: &'static str,
    expanded: &'static str,
    /// Further tokens that the vocabulary has.
    others: &'static [&'static str],
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
    /// Text in place of `written`, with the token and the marks around it. [`NUMBER`] stands for
    /// the number of the picture.
    expanded: Cow<'static, str>,
}

impl PictureMarks {
    /// Returns the marks of a vocabulary. Its token for pictures is `named`, or else the token with
    /// a known text. `None` if the vocabulary has no such token.
    pub fn of(tokenizer: &Tokenizer, named: Option<u32>) -> Option<Self> {
        let known = KNOWN.iter().find_map(|it| {
            let token = tokenizer.token_id(it.written).and(tokenizer.token_id(it.token))?;
            let has_others = it.others.iter().all(|other| tokenizer.token_id(other).is_some());
            let [written, content, expanded] = [it.written, it.content, it.expanded].map(Cow::Borrowed);
            (has_others && named.is_none_or(|named| named == token)).then_some(PictureMarks {
                token,
                written,
                content,
                expanded,
            })
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
        if self.written == self.expanded || self.written.is_empty() {
            return text;
        }
        let mut parts = text.split(&*self.written);
        let mut expanded = parts.next().unwrap_or_default().to_owned();
        for (number, part) in parts.enumerate() {
            expanded += &self.expanded.replace(NUMBER, &number.to_string());
            expanded += part;
        }
        expanded
    }
}

impl Tokenizer {
    /// Returns the token of the text that follows a part of a picture: a special token, or a line
    /// break.
    pub fn picture_part_end(&self, text: &str) -> Option<u32> {
        if text == "\n" {
            return LINE_BREAKS.iter().find_map(|spelling| self.token_id(spelling));
        }
        self.token_id(text)
    }
}
