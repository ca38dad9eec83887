//! A loader without a file. It records every tensor that a family requests, and returns a blank
//! tensor of the requested shape. The code that reads a family's tensors thus also lists them.

use std::cell::RefCell;

use super::layer_and_name;
use crate::{ModelConfig, NormSlot, Weights};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Blank, Tensor},
    quant::TensorType,
};

/// Types of blank matrices. The first type whose blocks fill a row is used. Their bytes only take
/// address space.
const BLANK_TYPES: [TensorType; 2] = [TensorType::Q4_0, TensorType::F16];

/// Role of a tensor, derived from the request for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorRole {
    /// Weights of a linear map, `[rows, cols]`.
    Matrix,
    /// Weights of a linear map of each expert or head, `[count, rows, cols]`.
    Stack,
    /// Bias of a linear map, `[rows]`, or of each expert's linear map, `[count, rows]`.
    Bias,
    /// Weight or bias of a norm, with the norm's place if it norms the residual stream.
    Norm(Option<NormSlot>),
    /// Parameters of any other kind.
    Vector,
}

/// A tensor that a family requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedTensor {
    /// GGUF name.
    pub(crate) name: String,
    /// Shape, outermost dimension first.
    pub(crate) shape: Vec<usize>,
    /// Role in the model.
    pub(crate) role: TensorRole,
}

impl RecordedTensor {
    /// Returns the layer of the tensor, if it belongs to one, and its name within the layer.
    pub fn layer_and_name(&self) -> (Option<usize>, &str) {
        place(&self.name)
    }
}

fn place(name: &str) -> (Option<usize>, &str) {
    layer_and_name(name).map_or((None, name), |(layer, within)| (Some(layer), within))
}

/// The optional tensors that a model without a file has, and the sizes that no key determines.
/// Names are whole, or without `blk.N.` for all layers.
#[derive(Debug, Clone, Default)]
pub(crate) struct TensorChoice {
    /// Names of the optional tensors that exist.
    pub(crate) optional: Vec<String>,
    /// First dimensions of tensors, by name.
    pub(crate) rows: Vec<(String, usize)>,
    /// Number of first layers without experts, in models whose other layers have experts.
    pub(crate) dense_layers: usize,
}

/// A model as its family's loader describes it: configuration, blank weights, and the tensors in
/// the order of the requests.
#[derive(Debug)]
pub(crate) struct RecordedModel {
    pub(crate) config: ModelConfig,
    pub(crate) weights: Weights,
    pub(crate) tensors: Vec<RecordedTensor>,
}

/// State of a recording loader.
#[derive(Debug)]
pub(crate) struct Recording {
    choice: TensorChoice,
    tensors: RefCell<Vec<RecordedTensor>>,
    blank: RefCell<Blank>,
}

impl Recording {
    pub(super) fn new(choice: TensorChoice) -> Self {
        Recording { choice, tensors: RefCell::default(), blank: RefCell::default() }
    }

    /// True if the choice contains an optional tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let (layer, within) = place(name);
        let dense = layer.is_some_and(|layer| layer < self.choice.dense_layers) && within.ends_with("_exps.weight");
        self.choice.optional.iter().any(|chosen| chosen == name || chosen == within && !dense)
    }

    /// Returns the first dimension of a tensor, if the choice contains it.
    pub(super) fn rows(&self, name: &str) -> Option<usize> {
        let (_, within) = place(name);
        self.choice.rows.iter().find(|(chosen, _)| chosen == name || chosen == within).map(|(_, rows)| *rows)
    }

    /// Records a tensor and returns a blank one.
    pub(super) fn record(&self, name: &str, shape: &[usize], role: TensorRole) -> Result<Tensor> {
        let mut tensors = self.tensors.borrow_mut();
        if !tensors.iter().any(|tensor| tensor.name == name) {
            tensors.push(RecordedTensor { name: name.to_owned(), shape: shape.to_vec(), role });
        }
        let cols = shape.last().copied().unwrap_or(0);
        let types: &[TensorType] = if shape.len() > 1 { &BLANK_TYPES } else { &[TensorType::F32] };
        let ty = types.iter().copied().find(|ty| ty.row_bytes(cols).is_some()).unwrap_or(TensorType::F32);
        let rows = shape.iter().rev().skip(1).try_fold(1_usize, |rows, size| rows.checked_mul(*size));
        let bytes = rows.zip(ty.row_bytes(cols)).and_then(|(rows, row)| rows.checked_mul(row));
        let too_large = || Error::invalid("tensor", "a size in 64 bits", format!("{name} of shape {shape:?}"));
        let data = self.blank.borrow_mut().bytes(bytes.ok_or_else(too_large)?, "outline of a tensor")?;
        Ok(Tensor { name: name.to_owned(), ty, shape: shape.to_vec(), data })
    }

    /// Returns the tensors requested so far, and clears the list.
    pub(super) fn take(&self) -> Vec<RecordedTensor> {
        self.tensors.take()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;
    use crate::{
        LoadOptions, Model,
        load::Loader,
        synth::{SynthOptions, generate, shapes},
    };
    use thermocline_formats::format::Checkpoint;

    /// Returns names and element counts of the tensors that the loader of a file requests.
    fn read(checkpoint: &Checkpoint) -> BTreeMap<String, usize> {
        let (arch, family) = crate::family(checkpoint).unwrap();
        let options = LoadOptions::default();
        let loader = Loader::new(checkpoint, arch, &options);
        crate::read(&loader, family).unwrap();
        let used = loader.used.borrow();
        used.iter().map(|name| (name.clone(), checkpoint.tensor(name).unwrap().len())).collect()
    }

    /// Returns names and element counts of the tensors that a loader without a file requests, for a
    /// model with these optional tensors.
    fn recorded(checkpoint: &Checkpoint) -> BTreeMap<String, usize> {
        let tensors = checkpoint.tensors();
        let choice = TensorChoice {
            optional: tensors.iter().map(|tensor| tensor.name.clone()).collect(),
            rows: tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape[0])).collect(),
            dense_layers: 0,
        };
        let model = Model::recorded(checkpoint.metadata.clone(), choice).unwrap();
        model.tensors.into_iter().map(|tensor| (tensor.name, tensor.shape.iter().product())).collect()
    }

    #[test]
    fn recordings_of_all_families_have_the_tensors_that_their_files_have() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let mut fixtures = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.join("config.json").exists() {
                let checkpoint = Model::open_checkpoint(&path, Default::default()).unwrap();
                assert_eq!(recorded(&checkpoint), read(&checkpoint), "{}", path.display());
                fixtures += 1;
            }
        }
        assert!(fixtures > 40, "only {fixtures} fixtures found");
    }

    #[test]
    fn synthetic_files_have_the_tensors_that_loaders_ask_for_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        for shape in shapes().iter().filter(|shape| shape.name.starts_with("tiny")) {
            for predictor in [false, true] {
                let mut options = SynthOptions::new(*shape, folder.path().join("m.gguf"));
                options.predictor = predictor;
                generate(&options, &mut |_| ()).unwrap();
                let checkpoint = Model::open_checkpoint(&options.out, Default::default()).unwrap();
                let made: BTreeMap<String, usize> =
                    checkpoint.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.len())).collect();
                assert_eq!(made, read(&checkpoint), "{}", shape.name);
            }
        }
    }

    #[test]
    fn optional_tensors_are_asked_for_by_name_or_by_the_name_within_all_layers() {
        let optional = ["output.weight", "blk.1.attn_q.bias", "ffn_up_exps.weight"].map(str::to_owned).to_vec();
        let rows = vec![("blk.1.ffn_up_shexp.weight".to_owned(), 5), ("fc1.weight".to_owned(), 7)];
        let recording = Recording::new(TensorChoice { optional, rows, dense_layers: 2 });
        let there = ["output.weight", "blk.1.attn_q.bias", "blk.2.ffn_up_exps.weight"];
        let missing = ["output.bias", "blk.0.attn_q.bias", "blk.1.ffn_up_exps.weight"];
        assert!(there.iter().all(|name| recording.has(name)) && !missing.iter().any(|name| recording.has(name)));
        let rows = ["blk.1.ffn_up_shexp.weight", "blk.0.ffn_up_shexp.weight", "blk.3.fc1.weight"];
        assert_eq!(rows.map(|name| recording.rows(name)), [Some(5), None, Some(7)]);
    }
}
