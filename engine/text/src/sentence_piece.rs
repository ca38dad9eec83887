//! SentencePiece's merge for GGUF vocabularies of model `llama`. It merges adjacent symbols whose
//! joined text is a token, highest score first, leftmost among equals. There is no merge list: any
//! two symbols may merge, even if they are not tokens, and equal scores compete by position. A
//! ranked list of pairs cannot express that.

use std::{cmp::Ordering, collections::BinaryHeap, ops::Range};

use ahash::AHashMap;

use super::{
    added::{AddedTokens, Fragment},
    prompt_text::without_breaks,
};

/// A SentencePiece encoder.
#[derive(Debug)]
pub struct SentencePiece {
    /// Tokens split off before merging.
    pub added: AddedTokens,
    /// Token text to id.
    pub vocab: AHashMap<String, u32>,
    /// Score of each id, finite.
    pub scores: Vec<f32>,
    /// Id of each byte's token, the last resort for characters without a token.
    pub bytes: Box<[Option<u32>; 256]>,
    /// The token for a byte that has no token either.
    pub unknown: Option<u32>,
    /// True if a space is put before the text, and before the text after each added token.
    pub space_prefix: bool,
}

/// A run of characters; merged-away symbols are empty.
#[derive(Debug, Clone)]
struct Symbol {
    text: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible merge of two adjacent symbols into `len` bytes.
#[derive(Debug)]
struct MergeCandidate {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for MergeCandidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for MergeCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MergeCandidate {}

impl SentencePiece {
    /// Appends the ids of `text`. If `special`, recognises special tokens and drops breaks.
    pub fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) {
        let mut after_token = true;
        for fragment in self.added.split(text, special) {
            match fragment {
                Fragment::Token(id, _) => {
                    ids.push(id);
                    after_token = true;
                }
                Fragment::Text(range) => {
                    let text = if special { without_breaks(&text[range]) } else { text[range].into() };
                    if text.is_empty() {
                        continue;
                    }
                    let prefix = if self.space_prefix && after_token { "\u{2581}" } else { "" };
                    self.merge(&format!("{prefix}{}", text.replace(' ', "\u{2581}")), ids);
                    after_token = false;
                }
            }
        }
    }

    /// Id of the token with exactly this text.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.added.id(text).or_else(|| self.vocab.get(text).copied())
    }

    fn merge(&self, text: &str, ids: &mut Vec<u32>) {
        let count = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(at, (start, character))| Symbol {
                text: start..start + character.len_utf8(),
                previous: at.checked_sub(1),
                next: Some(at + 1).filter(|&next| next < count),
            })
            .collect();
        let mut candidates = BinaryHeap::new();
        for right in 1..count {
            candidates.extend(self.candidate(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(MergeCandidate { left, right, len, .. }) = candidates.pop() {
            let (a, b) = (symbols[left].text.clone(), symbols[right].text.clone());
            if a.is_empty() || b.is_empty() || a.len() + b.len() != len {
                continue;
            }
            symbols[left].text = a.start..b.end;
            symbols[right].text = b.end..b.end;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            candidates.extend(self.candidate(text, &symbols, symbols[left].previous, Some(left)));
            candidates.extend(self.candidate(text, &symbols, Some(left), next));
        }
        for symbol in symbols.iter().filter(|symbol| !symbol.text.is_empty()) {
            let piece = &text[symbol.text.clone()];
            match self.vocab.get(piece) {
                Some(&id) => ids.push(id),
                None => ids.extend(piece.bytes().filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown))),
            }
        }
    }

    fn candidate(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<MergeCandidate> {
        let (left, right) = (left?, right?);
        let joined = symbols[left].text.start..symbols[right].text.end;
        let len = joined.len();
        let &id = self.vocab.get(&text[joined])?;
        let &score = self.scores.get(id as usize)?;
        Some(MergeCandidate { score, left, right, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(tokens: &[(&str, f32)]) -> SentencePiece {
        SentencePiece {
            added: AddedTokens::default(),
            vocab: tokens.iter().enumerate().map(|(id, &(text, _))| (text.to_owned(), id as u32)).collect(),
            scores: tokens.iter().map(|&(_, score)| score).collect(),
            bytes: Box::new([None; 256]),
            unknown: None,
            space_prefix: false,
        }
    }

    fn ids(encoder: &SentencePiece, text: &str) -> Vec<u32> {
        let mut ids = vec![];
        encoder.encode(text, false, &mut ids);
        ids
    }

    #[test]
    fn best_score_merges_first() {
        let encoder = encoder(&[("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -2.0), ("bc", -1.0)]);
        assert_eq!(ids(&encoder, "abc"), [0, 4]);
    }

    #[test]
    fn equal_scores_merge_from_the_left() {
        let encoder = encoder(&[("a", 0.0), ("aa", -1.0), ("b", 0.0), ("ab", -1.0)]);
        assert_eq!(ids(&encoder, "aaab"), [1, 3]);
        assert_eq!(ids(&encoder, "aab"), [1, 2]);
    }

    #[test]
    fn merges_pass_through_symbols_without_a_token() {
        let encoder = encoder(&[("xy", 0.0), ("z", 0.0)]);
        assert_eq!(ids(&encoder, "xyz"), [0, 1]);
    }

    #[test]
    fn characters_without_a_token_become_bytes_then_unknown() {
        let mut encoder = encoder(&[("a", 0.0), ("<0xC3>", 0.0), ("<unk>", 0.0)]);
        encoder.bytes[0xc3] = Some(1);
        assert_eq!(ids(&encoder, "aé"), [0, 1]);
        encoder.unknown = Some(2);
        assert_eq!(ids(&encoder, "aé"), [0, 1, 2]);
    }
}
