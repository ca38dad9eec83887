//! Check that layers of one kind have tensors of the same names. Many tensors are optional, because
//! architectures differ in them. If only some layers of a kind have a tensor, it is missing in the
//! others, and the model would write noise.

use std::{collections::BTreeSet, mem::Discriminant};

use super::Loader;
use crate::{AttentionConfig, Ffn, Step};
use thermocline_base::error::Result;

/// Properties of a layer that determine its tensors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerKind<'a> {
    /// Program of the layer.
    pub steps: &'a [Step],
    /// Attention of the layer, if it has one.
    pub attention: Option<&'a AttentionConfig>,
    /// Kind of the layer's FFN.
    pub ffn: Discriminant<Ffn>,
}

/// Group of tensors. Layers that are alike in one respect must have the same tensors of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UniformGroup {
    Ffn,
    Attention,
    /// Values and sinks. Layers with and without a window may differ in them.
    ByWindow,
    /// Norms of attention and FFN, which the program names.
    Norms,
    Other,
}

impl UniformGroup {
    /// Returns the group of a tensor of this name (without its layer). `None` if like layers may
    /// differ in it: factors of weights, predictors, position tables.
    fn of(name: &str) -> Option<Self> {
        if !(name.ends_with(".weight") || name.ends_with(".bias"))
            || name.starts_with("rope_")
            || name.starts_with("fc")
        {
            return None;
        }
        if name.starts_with("attn_norm.") || name.starts_with("ffn_norm.") {
            return Some(UniformGroup::Norms);
        }
        Some(match name.split('_').next() {
            Some("ffn" | "exp") => UniformGroup::Ffn,
            Some("attn") if name.starts_with("attn_v.") || name == "attn_sinks.weight" => UniformGroup::ByWindow,
            Some("attn") => UniformGroup::Attention,
            _ => UniformGroup::Other,
        })
    }

    /// True if layers of these kinds are alike in the properties that the group depends on.
    fn alike(self, a: &LayerKind<'_>, b: &LayerKind<'_>) -> bool {
        let attention = |of: &LayerKind<'_>| of.attention.map(|it| (it.kv_from.is_some(), it.gate_rows() > 0));
        let window = |of: &LayerKind<'_>| of.attention.map(|it| it.window.is_some());
        match self {
            UniformGroup::Ffn => a.ffn == b.ffn,
            UniformGroup::Attention => attention(a) == attention(b),
            UniformGroup::ByWindow => attention(a) == attention(b) && window(a) == window(b),
            UniformGroup::Norms => a.steps == b.steps,
            UniformGroup::Other => a == b,
        }
    }
}

impl Loader<'_> {
    /// Checks that like layers used tensors of the same names; `kinds` has one entry per layer.
    ///
    /// # Errors
    /// [`Error::Malformed`](thermocline_base::error::Error::Malformed) for the first tensor that a
    /// layer lacks.
    pub fn check_uniform(&self, kinds: &[LayerKind<'_>]) -> Result<()> {
        let used = self.used.borrow();
        let mut names: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); kinds.len()];
        for name in used.iter() {
            let Some((layer, rest)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { continue };
            if let Some(names) = layer.parse().ok().and_then(|layer: usize| names.get_mut(layer)) {
                names.insert(rest);
            }
        }
        for group in [
            UniformGroup::Ffn,
            UniformGroup::Attention,
            UniformGroup::ByWindow,
            UniformGroup::Norms,
            UniformGroup::Other,
        ] {
            let of_group = |layer: usize| names[layer].iter().filter(move |name| UniformGroup::of(name) == Some(group));
            for layer in 1..kinds.len() {
                // Likeness is transitive, so comparing each layer with the last like layer is
                // enough.
                let Some(other) = (0..layer).rev().find(|other| group.alike(&kinds[*other], &kinds[layer])) else {
                    continue;
                };
                for (has, lacks) in [(other, layer), (layer, other)] {
                    if let Some(name) = of_group(has).find(|name| !names[lacks].contains(**name)) {
                        let expected = format!("a tensor like `blk.{has}.{name}`");
                        return Err(self.missing_tensor(&format!("blk.{lacks}.{name}"), expected));
                    }
                }
            }
        }
        Ok(())
    }
}
