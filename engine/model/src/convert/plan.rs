//! The tensors of the file to write, in order.

use std::{collections::BTreeMap, path::Path};

use super::types::{ConversionTarget, TypeCandidate, TypeChoice};
use crate::{ModelConfig, import::Recipe};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format::{Bytes, Tensor, gguf::TensorInfo},
    quant::TensorType,
};

/// Architectures whose published files have gates and ups of experts in one tensor. For all other
/// architectures llama.cpp reads only separate tensors.
const GATES_ABOVE_UPS: [&str; 1] = ["gemma4"];

/// The half of each expert's rows that a tensor takes: the gates, which come first, or the ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpertHalf {
    Gates,
    Ups,
}

impl ExpertHalf {
    /// Cuts experts `[experts, 2 n, cols]`, or their biases `[experts, 2 n]`, to this half of `n`
    /// rows.
    fn of(self, tensor: Tensor) -> Tensor {
        let trailer = if tensor.is_empty() { 0 } else { tensor.ty.trailer_bytes() };
        let (rows, trailer) = tensor.data.split_at(tensor.data.len().saturating_sub(trailer));
        let expert = rows.len() / tensor.shape.first().copied().unwrap_or(0).max(1);
        let start = if self == ExpertHalf::Gates { 0 } else { expert / 2 };
        let halves = rows.chunks_exact(expert.max(1)).map(|expert| &expert[start..][..expert.len() / 2]);
        let bytes = halves.chain([trailer]).collect::<Vec<_>>().concat();
        Tensor { shape: halved(&tensor.shape), data: Bytes::new(bytes), ..tensor }
    }
}

/// Returns the shape of one half.
fn halved(shape: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(at, n)| if at == 1 { n / 2 } else { *n }).collect()
}

/// A tensor to write. Its parts follow one another in the file.
#[derive(Debug)]
pub(super) struct PlannedTensor {
    pub(super) info: TensorInfo,
    pub(super) parts: Vec<Recipe>,
    /// The half to take of the single part, if the part holds gates and ups of experts.
    half: Option<ExpertHalf>,
    /// The wanted type, if rows of this length do not fit it and another type was chosen.
    pub(super) unfit: Option<TensorType>,
}

impl PlannedTensor {
    /// Makes the contents of `part`, which is one of this tensor's parts. `path` is for errors.
    pub fn make(&self, part: &Recipe, path: &Path) -> Result<Tensor> {
        let tensor = part.make(path)?;
        Ok(match self.half {
            Some(half) => half.of(tensor),
            None => tensor,
        })
    }

    /// Returns the bytes of all parts in the source.
    pub fn source_bytes(&self) -> u64 {
        let bytes: u64 = self.parts.iter().map(|part| part.tensor.data.len() as u64).sum();
        if self.half.is_some() { bytes / 2 } else { bytes }
    }
}

/// Plans names and types of the tensors made from `recipes`. Separate experts are joined, and
/// joined gates and ups are split.
pub(super) fn plan(
    path: &Path,
    recipes: Vec<Recipe>,
    config: &ModelConfig,
    ty: TensorType,
) -> Result<Vec<PlannedTensor>> {
    let target = ConversionTarget {
        ty,
        n_layer: config.n_layer(),
        tied: !recipes.iter().any(|recipe| recipe.tensor.name == "output.weight"),
    };
    let mut planned: Vec<(String, Vec<(usize, Recipe)>)> = Vec::new();
    let mut stacks: BTreeMap<String, usize> = BTreeMap::new();
    for recipe in recipes {
        match expert(&recipe.tensor.name) {
            None => planned.push((recipe.tensor.name.clone(), vec![(0, recipe)])),
            Some((name, number)) => match stacks.get(&name) {
                Some(&at) => planned[at].1.push((number, recipe)),
                None => {
                    stacks.insert(name.clone(), planned.len());
                    planned.push((name, vec![(number, recipe)]));
                }
            },
        }
    }
    let mut tensors = Vec::with_capacity(planned.len());
    for (name, mut parts) in planned {
        parts.sort_by_key(|(number, _)| *number);
        let mut parts: Vec<Recipe> = parts.into_iter().map(|(_, recipe)| recipe).collect();
        let mut shape = parts[0].shape();
        let source = parts[0].ty();
        if stacks.contains_key(&name) {
            if let Some(odd) = parts.iter().find(|part| part.shape() != shape) {
                let location = Location::Tensor(odd.tensor.name.clone());
                return Err(Error::malformed(path, location, format!("shape {shape:?}"), format!("{:?}", odd.shape())));
            }
            shape.insert(0, parts.len());
        }
        parts.shrink_to_fit();
        let halves = halves(&name).filter(|_| !GATES_ABOVE_UPS.contains(&config.architecture.as_str()));
        let written = match halves {
            Some(halves) => {
                shape = halved(&shape);
                halves.map(|(name, half)| (name, Some(half), parts.clone())).to_vec()
            }
            None => vec![(name, None, parts)],
        };
        for (name, half, parts) in written {
            let TypeChoice { wanted, ty } = target.choose(TypeCandidate { name: &name, shape: &shape, source });
            let info = TensorInfo { name, ty, shape: shape.clone() };
            tensors.push(PlannedTensor { info, parts, half, unfit: (wanted != ty).then_some(wanted) });
        }
    }
    Ok(tensors)
}

/// Returns the names for the gates and the ups of the joint tensor `name`.
fn halves(name: &str) -> Option<[(String, ExpertHalf); 2]> {
    let (before, after) = name.split_once(".ffn_gate_up_exps.")?;
    let half = |role: &str, half| (format!("{before}.ffn_{role}_exps.{after}"), half);
    Some([half("gate", ExpertHalf::Gates), half("up", ExpertHalf::Ups)])
}

/// Returns the stacked name and the number of the matrix of a single expert:
/// `blk.3.ffn_up.7.weight` is number 7 of `blk.3.ffn_up_exps.weight`.
fn expert(name: &str) -> Option<(String, usize)> {
    let mut parts = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split('.');
    let (layer, role, number) = (parts.next()?, parts.next()?, parts.next()?);
    let matches = matches!(role, "ffn_gate" | "ffn_up" | "ffn_down") && parts.next().is_none();
    matches.then(|| Some((format!("blk.{layer}.{role}_exps.weight"), number.parse().ok()?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_and_ups_of_experts_are_told_apart() {
        let tensor = |shape: &[usize], data: Vec<u8>| {
            let name = "blk.3.ffn_gate_up_exps.weight".to_owned();
            Tensor { name, ty: TensorType::I8, shape: shape.to_vec(), data: Bytes::new(data) }
        };
        let halves = halves("blk.3.ffn_gate_up_exps.weight").expect("two");
        assert_eq!(
            halves.each_ref().map(|(name, _)| &**name),
            ["blk.3.ffn_gate_exps.weight", "blk.3.ffn_up_exps.weight"]
        );
        for ((_, half), wanted) in halves.into_iter().zip([[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]) {
            let weights = half.of(tensor(&[2, 4, 2], (0..16).collect()));
            assert_eq!((&weights.shape[..], &weights.data[..]), (&[2, 2, 2][..], &wanted[..]));
            let biases = half.of(tensor(&[2, 8], (0..16).collect()));
            assert_eq!((&biases.shape[..], &biases.data[..]), (&[2, 4][..], &wanted[..]));
            assert!(half.of(tensor(&[0, 4, 2], Vec::new())).data.is_empty());
        }
        assert_eq!(super::halves("blk.3.ffn_gate_exps.weight"), None);
    }

    #[test]
    fn expert_tensor_names_parse_to_merged_name_and_index() {
        assert_eq!(expert("blk.3.ffn_up.7.weight"), Some(("blk.3.ffn_up_exps.weight".to_owned(), 7)));
        for name in ["blk.3.ffn_up.weight", "blk.3.ffn_up_exps.weight", "blk.3.ffn_up.x.weight", "ffn_up.7.weight"] {
            assert_eq!(expert(name), None, "{name}");
        }
    }
}
