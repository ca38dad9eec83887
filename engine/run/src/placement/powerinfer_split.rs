//! PowerInfer's split of a model between GPU and CPU, as a placement.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{CostProfile, LayerCosts, Placement};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::format::powerinfer::GpuIndex;
use thermocline_model::{Ffn, Model, Resident};

/// The neurons that PowerInfer puts on the GPU, read from its `<model>.generated.gpuidx`. A plan
/// can follow them instead of being optimal.
#[derive(Debug, Clone)]
pub struct PowerInferSplit {
    path: PathBuf,
    index: GpuIndex,
}

impl PowerInferSplit {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Malformed`] if it is not a split.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(PowerInferSplit { path: path.to_owned(), index: GpuIndex::open(path)? })
    }

    /// Number of neurons that the split puts on the GPU.
    pub fn neurons(&self) -> usize {
        self.index.layers.iter().map(|layer| layer.bucket.len()).sum()
    }

    /// Number of the split's neurons that are resident.
    pub fn resident_neurons(&self, resident: &Resident) -> usize {
        let layers = self.index.layers.iter().enumerate();
        let there = |(at, neuron): &(usize, u32)| resident.is_hot(*at, *neuron as usize);
        layers.flat_map(|(at, layer)| layer.bucket.iter().map(move |neuron| (at, *neuron))).filter(there).count()
    }

    /// Checks that the split has the layers of `model`, with as many neurons in each.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it does not.
    pub fn check(&self, model: &Model) -> Result<()> {
        self.check_layers(model.weights.layers.iter().map(|layer| match &layer.ffn {
            Ffn::None => 0,
            Ffn::Dense(ffn) => ffn.up.weight.rows(),
            Ffn::Experts(experts) => experts.experts.len(),
        }))
    }

    fn check_layers(&self, layers: impl ExactSizeIterator<Item = usize>) -> Result<()> {
        let index = &self.index;
        let refuse = |expected, got: usize| Err(Error::malformed(&self.path, Location::File, expected, got));
        if index.layers.len() != layers.len() {
            return refuse(format!("the {} layers of the model", layers.len()), index.layers.len());
        }
        for ((at, neurons), split) in layers.enumerate().zip(&index.layers) {
            if split.on_gpu.len() != neurons {
                return refuse(format!("the {neurons} neurons of layer {at} of the model"), split.on_gpu.len());
            }
        }
        Ok(())
    }

    /// Makes the split's neurons hot and everything else resident, as in PowerInfer.
    ///
    /// # Errors
    /// As [`PowerInferSplit::check`].
    pub fn placement(&self, profile: &CostProfile) -> Result<Placement> {
        self.check_layers(profile.layers.iter().map(LayerCosts::units))?;
        let mut placement = Placement::all(profile);
        for (hot, split) in placement.hot.iter_mut().zip(&self.index.layers) {
            hot.retain(|neuron| split.on_gpu[*neuron as usize]);
        }
        Ok(placement)
    }
}

/// How many neurons of a PowerInfer split are resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SplitReport {
    /// Number of neurons that the split puts on the GPU.
    pub neurons: usize,
    /// Number of these neurons that are resident: all, unless the budget is too small or they are
    /// still being uploaded.
    pub resident: usize,
}

impl SplitReport {
    /// Reports `split` for a model with the parts `resident` on the device.
    pub fn new(split: &PowerInferSplit, resident: &Resident) -> Self {
        SplitReport { neurons: split.neurons(), resident: split.resident_neurons(resident) }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::{
        placement::{Machine, Plan, PlanInputs, tests::device_bytes},
        runtime::{KvType, Sparsity},
    };
    use thermocline_model::{LoadOptions, Model};

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
    }

    fn profile(model: &Path) -> CostProfile {
        let model = Model::open(model, &LoadOptions::default()).unwrap();
        let inputs = PlanInputs::new(Sparsity::Predicted, 64, KvType::F16);
        let bytes = device_bytes(&model, 16);
        CostProfile::new(&model, &bytes, &inputs).unwrap()
    }

    #[test]
    fn powerinfer_split_becomes_a_placement_of_its_neurons() {
        for ty in ["f16", "q4_0"] {
            let model = fixture(&format!("powerinfer/llama-relu-{ty}.powerinfer.gguf"));
            let (profile, path) = (profile(&model), GpuIndex::path_beside(&model));
            let placement = PowerInferSplit::open(&path).unwrap().placement(&profile).unwrap();
            let index = GpuIndex::open(&path).unwrap();
            assert!(index.layers.iter().any(|layer| !layer.bucket.is_empty()));
            for (hot, split) in placement.hot.iter().zip(&index.layers) {
                let mut hot = hot.clone();
                hot.sort_unstable();
                assert_eq!(hot, split.bucket);
            }
            let plan = Plan::new(&profile, &Machine::typical(), placement.clone());
            assert_eq!(plan.placement, placement);
        }
    }

    #[test]
    fn powerinfer_split_of_another_model_is_refused() {
        let index = GpuIndex::path_beside(&fixture("powerinfer/llama-relu-f16.powerinfer.gguf"));
        let other = profile(&fixture("models/llama-relu"));
        let error = PowerInferSplit::open(&index).unwrap().placement(&other).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }) && error.to_string().contains("of the model"), "{error}");
    }

    /// A file with any byte changed or any truncation gives an error or another split, never a
    /// panic.
    #[test]
    fn damaged_powerinfer_splits_never_panic() {
        let model = fixture("powerinfer/llama-relu-q4_0.powerinfer.gguf");
        let (profile, good) = (profile(&model), fs::read(GpuIndex::path_beside(&model)).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("split.gpuidx");
        let mut refused = 0;
        let header = good.len().min(600);
        for at in (0..header).chain((header..good.len()).step_by(97)) {
            let mut damaged = good.clone();
            damaged[at] ^= 0x81;
            for bytes in [&damaged[..], &good[..at]] {
                fs::write(&path, bytes).unwrap();
                match PowerInferSplit::open(&path).and_then(|split| split.placement(&profile)) {
                    Ok(placement) => assert_eq!(placement.clone().valid_for(&profile), placement),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > header, "{refused}");
    }
}
