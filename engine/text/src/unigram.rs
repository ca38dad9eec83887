//! Unigram vocabularies (Kudo 2018), as in XLM-R and T5: a text is split into the tokens whose
//! scores have the largest sum. GGUF calls the model `t5`.

use tokenizers::{
    ModelWrapper, NormalizerWrapper, PreTokenizerWrapper,
    models::unigram::Unigram,
    normalizers::{Precompiled, Replace},
    pre_tokenizers::{
        metaspace::{Metaspace, PrependScheme},
        sequence::Sequence,
        whitespace::WhitespaceSplit,
    },
};

use super::character_map;

/// Parts of a Unigram model.
#[derive(Debug)]
pub struct Pieces {
    /// Text and score of each id. A token with an empty text is never found.
    pub pieces: Vec<(String, f64)>,
    /// Id of the token for unknown characters.
    pub unknown: Option<usize>,
    /// Unknown characters become byte tokens.
    pub byte_fallback: bool,
}

/// How SentencePiece treats white space before it splits a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceRules {
    /// Put a space before the text.
    pub prefix: bool,
    /// Remove spaces at both ends, and all but one of several.
    pub remove_extra: bool,
}

impl Pieces {
    /// Builds the model. The error text is the library's.
    pub fn model(self) -> Result<ModelWrapper, String> {
        if let Some(at) = self.pieces.iter().position(|(_, score)| !score.is_finite()) {
            return Err(format!("a score that is no finite number, for token {at}"));
        }
        if self.unknown.is_none() {
            return Err("no token for unknown characters".to_owned());
        }
        let model = Unigram::from(self.pieces, self.unknown, self.byte_fallback);
        model.map(ModelWrapper::Unigram).map_err(|error| error.to_string())
    }
}

impl SpaceRules {
    /// Splits a text into words that begin with U+2581.
    pub fn words(self) -> PreTokenizerWrapper {
        let scheme = if self.prefix { PrependScheme::Always } else { PrependScheme::Never };
        let marks = PreTokenizerWrapper::Metaspace(Metaspace::new('\u{2581}', scheme, true));
        if !(self.remove_extra && self.prefix) {
            return marks;
        }
        let split = PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit);
        PreTokenizerWrapper::Sequence(Sequence::new(vec![split, marks]))
    }

    /// Removes extra spaces, where [`SpaceRules::words`] does not.
    fn normaliser(self) -> Result<Option<NormalizerWrapper>, String> {
        let wanted = self.remove_extra && !self.prefix;
        let pattern = tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".to_owned());
        let replace = wanted.then(|| Replace::new(pattern, " ").map(NormalizerWrapper::Replace));
        replace.transpose().map_err(|error| error.to_string())
    }

    /// The normaliser of a vocabulary with the character map `map`, which may be empty.
    pub fn normaliser_with(self, map: &[u8]) -> Result<Option<NormalizerWrapper>, String> {
        let spaces = self.normaliser()?;
        if map.is_empty() {
            return Ok(spaces);
        }
        character_map::check(map)?;
        let map = Precompiled::from(map).map(NormalizerWrapper::Precompiled).map_err(|error| error.to_string())?;
        let steps = [map].into_iter().chain(spaces).collect();
        Ok(Some(NormalizerWrapper::Sequence(tokenizers::normalizers::Sequence::new(steps))))
    }
}
