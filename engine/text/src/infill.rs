//! Prompts for the text between two texts ("fill in the middle"), for vocabularies with tokens that
//! mark it.

use super::{EncodeOptions, Tokenizer};
use thermocline_base::error::Result;

/// Token texts before the prefix, before the suffix, and before the middle, in published
/// vocabularies.
const MARKS: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];

/// Mistral's tokens. Its suffix comes first, and no token marks the middle.
const END_FIRST: [&str; 2] = ["[PREFIX]", "[SUFFIX]"];

impl Tokenizer {
    /// Token ids of a prompt after which a model writes the text between `prefix` and `suffix`.
    /// `None` if the vocabulary has no tokens for it.
    pub fn infill_prompt(&self, prefix: &str, suffix: &str) -> Result<Option<Vec<u32>>> {
        let encode = |text: &str| self.encode(text, EncodeOptions::PLAIN);
        let mut ids: Vec<u32> = self.bos().filter(|_| self.adds_bos()).into_iter().collect();
        let all = |marks: [&str; 3]| {
            let [before, behind, middle] = marks.map(|mark| self.token_id(mark));
            Some([before?, behind?, middle?])
        };
        if let Some([before, behind, middle]) = MARKS.into_iter().find_map(all) {
            ids.push(before);
            ids.extend(encode(prefix)?);
            ids.push(behind);
            ids.extend(encode(suffix)?);
            ids.push(middle);
            return Ok(Some(ids));
        }
        let [Some(before), Some(behind)] = END_FIRST.map(|mark| self.token_id(mark)) else { return Ok(None) };
        ids.push(behind);
        ids.extend(encode(suffix)?);
        ids.push(before);
        ids.extend(encode(prefix)?);
        Ok(Some(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vocabulary::{vocabulary, with_bytes};
    use thermocline_formats::format::Value;

    /// A vocabulary of bytes after `marks`.
    fn tokenizer(marks: &[&str]) -> Tokenizer {
        let mut metadata = vocabulary("llama", with_bytes(marks), |id| if id < marks.len() { 3 } else { 6 });
        metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
        metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    #[test]
    fn infill_prompt_has_the_marks_of_the_vocabulary() {
        let prompt = |marks: &[&str]| tokenizer(marks).infill_prompt("a", "b").expect("text");
        let (a, b) = (u32::from(b'a'), u32::from(b'b'));
        assert_eq!(prompt(&["x", "<fim_middle>", "<fim_prefix>", "<fim_suffix>"]), Some(vec![2, a + 4, 3, b + 4, 1]));
        assert_eq!(prompt(&["[PREFIX]", "[SUFFIX]"]), Some(vec![1, b + 2, 0, a + 2]));
        assert_eq!(prompt(&["<fim_prefix>", "<fim_suffix>"]), None);
    }
}
