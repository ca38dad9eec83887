//! The quantisation of a model, from its file name.

/// Types that are not a letter and a number of bits.
const OTHERS: [&str; 7] = ["F16", "BF16", "F32", "FP16", "MXFP4", "NVFP4", "I2_S"];

/// The quantisation in a file name, in upper case: `Q4_K_M` for
/// `sub/model-q4_k_m-00001-of-00002.gguf`. `None` if the name contains none.
pub fn quantization(path: &str) -> Option<String> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let is_one = |part: &&str| {
        let bits = part.trim_start_matches(['I', 'T']).strip_prefix('Q');
        let numbered = bits.is_some_and(|bits| bits.starts_with(|c: char| c.is_ascii_digit()));
        numbered
            || OTHERS
                .iter()
                .any(|other| part.strip_prefix(other).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
    };
    stem.to_ascii_uppercase().rsplit(['-', '.', ' ']).find(is_one).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantization_is_read_from_names_of_files() {
        for (name, said) in [
            ("gemma-4-E4B-it-Q4_K_M.gguf", Some("Q4_K_M")),
            ("gemma-4-26B-A4B-it-UD-Q4_K_XL.gguf", Some("Q4_K_XL")),
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("llama-2-7b.Q8_0.gguf", Some("Q8_0")),
            ("sub/x-BF16-00001-of-00003.gguf", Some("BF16")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("GLM-4.7-Flash-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("x-IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("x-TQ1_0.gguf", Some("TQ1_0")),
            ("ggml-model-i2_s.gguf", Some("I2_S")),
            ("Qwen3.gguf", None),
            ("folder", None),
            ("", None),
        ] {
            assert_eq!(quantization(name).as_deref(), said, "{name}");
        }
    }
}
