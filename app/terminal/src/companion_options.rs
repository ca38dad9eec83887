//! Options of the files that accompany a model: a draft model and a vision tower.

use std::path::{Path, PathBuf};

use clap::Args;

/// The files that accompany a model.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct CompanionOptions {
    /// Draft model: a small model with the same tokens, which proposes several tokens at a time.
    /// The model checks these tokens in one pass. With --speculation off, there are no drafts
    #[arg(long, value_name = "FILE", value_parser = draft_file)]
    pub draft: Option<PathBuf>,
    /// Vision tower, with which the model reads pictures: mmproj-*.gguf, or a Hugging Face folder
    /// [default: the tower in the model's folder, or a file with `mmproj` in its name beside the
    /// model]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
}

/// Parses the path of a draft model. In llama.cpp, `--draft` is a number of tokens.
fn draft_file(text: &str) -> Result<PathBuf, String> {
    if text.parse::<u32>().is_ok() && !Path::new(text).exists() {
        return Err("expected the file of a small model; --drafts N sets the number of drafts".to_owned());
    }
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_drafts_is_not_taken_for_a_file() {
        assert_eq!(draft_file("small.gguf"), Ok(PathBuf::from("small.gguf")));
        assert!(draft_file("16").unwrap_err().contains("the number of drafts"));
    }
}
