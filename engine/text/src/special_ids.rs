//! The ids that begin and end a text.

use std::collections::BTreeSet;

/// Texts of tokens that end a turn or a text in published vocabularies. Files often name only one
/// of several end tokens.
const ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|end_of_sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "<|eom|>",
    "<EOT>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|flush|>",
    "<|calls|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Ids with a special role; each is less than the number of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of a text (BOS).
    pub bos: Option<u32>,
    /// End of a text (EOS).
    pub eos: Option<u32>,
    /// Text that the vocabulary cannot represent.
    pub unknown: Option<u32>,
    /// Padding of batches.
    pub padding: Option<u32>,
    /// Separates the two texts of a pair.
    pub separator: Option<u32>,
    /// Ids that end a generation.
    pub ends: BTreeSet<u32>,
}

impl SpecialIds {
    /// Adds the well-known end tokens of published vocabularies. `find` returns the id of a token's
    /// text.
    pub fn add_known_ends(&mut self, find: impl Fn(&str) -> Option<u32>) {
        self.ends.extend(self.eos);
        self.ends.extend(ENDS.iter().filter_map(|text| find(text)));
        // In the Harmony format `<|end|>` closes a message within an answer, not the answer.
        let harmony = ["<|return|>", "<|call|>"].iter().all(|text| find(text).is_some());
        let solar = ["<|flush|>", "<|calls|>"].iter().all(|text| find(text).is_some());
        if let Some(end) = find("<|end|>").filter(|_| harmony || solar) {
            self.ends.remove(&end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(eos: u32, texts: &[&str]) -> Vec<u32> {
        let mut ids = SpecialIds { eos: Some(eos), ..SpecialIds::default() };
        ids.add_known_ends(|text| texts.iter().position(|&other| other == text).map(|at| at as u32));
        ids.ends.into_iter().collect()
    }

    #[test]
    fn end_tokens_are_recognised_by_their_text() {
        assert_eq!(ends(9, &["a", "<|im_end|>", "<|endoftext|>"]), [1, 2, 9]);
        assert_eq!(ends(1, &["<|end|>", "<|return|>", "<|call|>"]), [1, 2]);
    }
}
