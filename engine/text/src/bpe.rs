//! Byte-pair encoding: the merges of a vocabulary. The library's own build functions trust the
//! file, so this module checks everything that it passes to them.

use ahash::AHashMap;
use tokenizers::{ModelWrapper, models::bpe};

/// Parts of a BPE model.
#[derive(Debug, Default)]
pub struct Merges {
    /// Token text to id.
    pub vocab: AHashMap<String, u32>,
    /// Pairs that merge, highest priority first.
    pub merges: Vec<(String, String)>,
    /// A word that is a token is taken whole, regardless of the merges.
    pub ignore_merges: bool,
    /// Characters without a token become their `<0xHH>` byte tokens.
    pub byte_fallback: bool,
    /// Adjacent unknown characters become one unknown token.
    pub fuse_unknown: bool,
    /// Text of the token for unknown characters.
    pub unknown: Option<String>,
}

impl Merges {
    /// Builds the model. Merges with a part or result that is not a token can never apply and are
    /// dropped with a warning. The error text is the library's.
    pub fn model(mut self) -> Result<ModelWrapper, String> {
        let total = self.merges.len();
        let mut whole = String::new();
        self.merges.retain(|(left, right)| {
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            [left, right, &whole].into_iter().all(|token| self.vocab.contains_key(token.as_str()))
        });
        if self.merges.len() < total {
            tracing::warn!(dropped = total - self.merges.len(), total, "merges with unknown tokens are ignored");
        }
        let unknown = self.unknown.filter(|unknown| self.vocab.contains_key(unknown));
        let mut builder = bpe::BPE::builder()
            .vocab_and_merges(self.vocab, self.merges)
            .ignore_merges(self.ignore_merges)
            .byte_fallback(self.byte_fallback)
            .fuse_unk(self.fuse_unknown);
        if let Some(unknown) = unknown {
            builder = builder.unk_token(unknown);
        }
        builder.build().map(ModelWrapper::BPE).map_err(|error| error.to_string())
    }
}
