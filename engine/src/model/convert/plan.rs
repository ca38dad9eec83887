//! The tensors of the file to write, in order.

use std::{collections::BTreeMap, path::Path};

use super::types::{Choice, ConversionTarget, TypeCandidate};
use crate::{
    error::{Error, Location, Result},
    format::gguf::TensorInfo,
    model::{ModelConfig, import::Recipe},
    quant::TensorType,
};

/// A tensor to write: its parts follow each other in the file.
#[derive(Debug)]
pub(super) struct PlannedTensor {
    pub(super) info: TensorInfo,
    pub(super) parts: Vec<Recipe>,
    /// The type that rows of this length cannot have, where another was chosen for that reason.
    pub(super) unfit: Option<TensorType>,
}

/// Names and types of what `recipes` become. Experts kept one by one are joined.
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
        let Choice { wanted, ty } = target.choose(TypeCandidate { name: &name, shape: &shape, source });
        tensors.push(PlannedTensor {
            info: TensorInfo { name, ty, shape },
            parts,
            unfit: (wanted != ty).then_some(wanted),
        });
    }
    Ok(tensors)
}

/// The stacked name and the number of an expert's own matrix: `blk.3.ffn_up.7.weight` is number 7 of
/// `blk.3.ffn_up_exps.weight`.
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
    fn expert_tensor_names_parse_to_merged_name_and_index() {
        assert_eq!(expert("blk.3.ffn_up.7.weight"), Some(("blk.3.ffn_up_exps.weight".to_owned(), 7)));
        for name in ["blk.3.ffn_up.weight", "blk.3.ffn_up_exps.weight", "blk.3.ffn_up.x.weight", "ffn_up.7.weight"] {
            assert_eq!(expert(name), None, "{name}");
        }
    }
}
