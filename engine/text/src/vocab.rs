//! The vocabulary: bytes and kind of each token id.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{byte_level, word_piece::CONTINUES};

/// Kind of a token, with GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal = 1,
    /// Placeholder for text that the vocabulary cannot represent.
    Unknown = 2,
    /// Controls the model (`<s>`, `<|im_end|>`); not part of the text.
    Control = 3,
    /// Text that is always one token, before any merging.
    UserDefined = 4,
    /// Reserved and never produced.
    Unused = 5,
    /// One byte of a character that has no token of its own.
    Byte = 6,
}

/// How a vocabulary represents text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// In GPT-2's byte alphabet.
    ByteLevel,
    /// As text, with U+2581 for a space.
    SentencePiece,
    /// As text, with `##` before tokens that continue a word.
    WordPiece,
}

/// Every token's bytes and kind, by id. Tokens share one allocation.
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
}

impl Vocab {
    /// Appends the token of the next id.
    pub fn push(&mut self, text: &str, kind: TokenKind, spelling: Spelling) {
        match (kind, spelling) {
            (TokenKind::Control | TokenKind::Unknown, _) | (TokenKind::UserDefined, Spelling::ByteLevel) => {
                self.bytes.extend_from_slice(text.as_bytes());
            }
            (_, Spelling::WordPiece) => match text.strip_prefix(CONTINUES) {
                Some(rest) => self.bytes.extend_from_slice(rest.as_bytes()),
                None => {
                    self.bytes.push(b' ');
                    self.bytes.extend_from_slice(text.as_bytes());
                }
            },
            (TokenKind::Byte, Spelling::SentencePiece) => match byte_token(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend_from_slice(text.as_bytes()),
            },
            (_, Spelling::ByteLevel) => byte_level::decode(text, &mut self.bytes),
            (_, Spelling::SentencePiece) => {
                for (at, piece) in text.split('\u{2581}').enumerate() {
                    if at > 0 {
                        self.bytes.push(b' ');
                    }
                    self.bytes.extend_from_slice(piece.as_bytes());
                }
            }
        }
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Appends the token of the next id, whose text is not UTF-8 but these bytes.
    pub fn push_bytes(&mut self, bytes: &[u8], kind: TokenKind) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of token `id`; empty if there is no such id.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        match self.ends.get(at) {
            Some(&end) => &self.bytes[at.checked_sub(1).map_or(0, |before| self.ends[before])..end],
            None => &[],
        }
    }

    /// Kind of token `id`; `None` if there is no such id.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes of token `id`; `None` for padding, which is never produced, and for ids outside
    /// the vocabulary.
    fn produced(&self, id: u32) -> Option<&[u8]> {
        self.kind(id).filter(|kind| *kind != TokenKind::Unused).map(|_| self.bytes(id))
    }

    /// Number of ids without the padding at the end.
    pub fn unpadded_len(&self) -> usize {
        self.kinds.iter().rposition(|kind| *kind != TokenKind::Unused).map_or(0, |last| last + 1)
    }

    /// The first id whose token has other bytes in `other`, or is padding in only one of them.
    /// Kinds are not compared, because converters of the same tokenizer disagree about them.
    pub fn first_difference(&self, other: &Vocab) -> Option<u32> {
        let len = self.unpadded_len().max(other.unpadded_len());
        (0..len as u32).find(|id| self.produced(*id) != other.produced(*id))
    }

    /// A hash of all tokens but padding, equal for vocabularies without a difference.
    pub fn hash_of_tokens(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for id in 0..self.unpadded_len() as u32 {
            self.produced(id).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// The byte of a SentencePiece byte token (`<0x0A>`).
pub fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let well_formed = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if well_formed { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_are_two_hex_digits() {
        assert_eq!((byte_token("<0x0A>"), byte_token("<0xff>")), (Some(10), Some(255)));
        for bad in ["<0x-1>", "<0xGG>", "<0x+1>", "<0x1>", "<0x100>", "<0x>", "0x0A", "<0x0A", "", "<0xé>"] {
            assert_eq!(byte_token(bad), None, "{bad}");
        }
    }

    #[test]
    fn vocabularies_differ_by_a_token_and_not_by_padding_or_kinds() {
        use TokenKind::{Control, Normal, Unused, UserDefined};
        let vocab = |tokens: &[(&str, TokenKind)]| {
            let mut vocab = Vocab::default();
            tokens.iter().for_each(|(text, kind)| vocab.push(text, *kind, Spelling::ByteLevel));
            vocab
        };
        let base = [("a", Normal), ("b", Normal), ("[x]", Control)];
        let with = |at: usize, token| {
            let mut tokens = base.to_vec();
            tokens.resize(tokens.len().max(at + 1), ("[PAD]", Unused));
            tokens[at] = token;
            vocab(&tokens)
        };
        let own = vocab(&base);
        assert_eq!(own.unpadded_len(), 3);
        for (other, difference) in [
            (own.clone(), None),
            (with(2, ("[x]", UserDefined)), None),
            (with(6, ("[PAD6]", Unused)), None),
            (with(1, ("c", Normal)), Some(1)),
            (with(1, ("", Unused)), Some(1)),
            (with(5, ("more", Control)), Some(5)),
            (vocab(&base[..2]), Some(2)),
        ] {
            assert_eq!(own.first_difference(&other), difference, "{other:?}");
            assert_eq!(other.first_difference(&own), difference, "{other:?}");
            assert_eq!(own.hash_of_tokens() == other.hash_of_tokens(), difference.is_none(), "{other:?}");
        }
    }

    #[test]
    fn tokens_share_one_allocation() {
        let mut vocab = Vocab::default();
        vocab.push("▁a▁", TokenKind::Normal, Spelling::SentencePiece);
        vocab.push("", TokenKind::Normal, Spelling::SentencePiece);
        vocab.push("<0xE2>", TokenKind::Byte, Spelling::SentencePiece);
        vocab.push("<0xGG>", TokenKind::Byte, Spelling::SentencePiece);
        vocab.push("Ġx", TokenKind::Normal, Spelling::ByteLevel);
        vocab.push("Ġ", TokenKind::Control, Spelling::ByteLevel);
        let tokens: Vec<&[u8]> = (0..7).map(|id| vocab.bytes(id)).collect();
        assert_eq!(tokens, [&b" a "[..], b"", b"\xe2", b"<0xGG>", b" x", "Ġ".as_bytes(), b""]);
        assert_eq!((vocab.len(), vocab.kind(5), vocab.kind(6)), (6, Some(TokenKind::Control), None));
    }
}
