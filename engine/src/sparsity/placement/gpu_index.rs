//! PowerInfer's split as a placement.

use std::path::{Path, PathBuf};

use super::{Demand, Placement};
use crate::{
    error::{Error, Location, Result},
    format::powerinfer::GpuIndex,
    model::{Ffn, Model, Resident},
};

/// Which neurons PowerInfer put on the GPU, read from its `<model>.generated.gpuidx`: to be followed instead of the best plan.
#[derive(Debug, Clone)]
pub struct Split {
    path: PathBuf,
    index: GpuIndex,
}

impl Split {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Malformed`] if it is no split.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Split { path: path.to_owned(), index: GpuIndex::open(path)? })
    }

    /// Neurons it puts on the GPU.
    pub fn neurons(&self) -> usize {
        self.index.layers.iter().map(|layer| layer.bucket.len()).sum()
    }

    /// How many of them are there.
    pub fn resident(&self, resident: &Resident) -> usize {
        let layers = self.index.layers.iter().enumerate();
        let there = |(at, neuron): &(usize, u32)| resident.is_hot(*at, *neuron as usize);
        layers.flat_map(|(at, layer)| layer.bucket.iter().map(move |neuron| (at, *neuron))).filter(there).count()
    }

    /// Whether it is of a model of this shape.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not.
    pub fn check(&self, model: &Model) -> Result<()> {
        self.fits(model.weights.layers.iter().map(|layer| match &layer.ffn {
            Ffn::Dense(ffn) => ffn.up.weight.rows(),
            Ffn::Experts(mixture) => mixture.experts.len(),
        }))
    }

    fn fits(&self, layers: impl ExactSizeIterator<Item = usize>) -> Result<()> {
        let index = &self.index;
        let refuse = |expected, got: usize| Err(Error::malformed(&self.path, Location::File, expected, got));
        if index.layers.len() != layers.len() {
            return refuse(format!("{} layers, as the model has", layers.len()), index.layers.len());
        }
        for ((at, neurons), split) in layers.enumerate().zip(&index.layers) {
            if split.on_gpu.len() != neurons {
                return refuse(format!("{neurons} neurons in layer {at}, as the model has"), split.on_gpu.len());
            }
        }
        Ok(())
    }

    /// Its neurons, with everything else resident, as PowerInfer has it.
    ///
    /// # Errors
    /// As [`Split::check`].
    pub fn placement(&self, demand: &Demand) -> Result<Placement> {
        self.fits(demand.layers.iter().map(super::LayerDemand::neurons))?;
        let mut placement = Placement::all(demand);
        for (hot, split) in placement.hot.iter_mut().zip(&self.index.layers) {
            hot.retain(|neuron| split.on_gpu[*neuron as usize]);
        }
        Ok(placement)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::{
        gpu::Caps,
        model::{DeviceBytes, KvType, LoadOptions, Model, Sparsity},
        sparsity::placement::{DemandOptions, Machine, Plan},
    };

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
    }

    fn demand(model: &Path) -> Demand {
        let model = Model::open(model, &LoadOptions::default()).unwrap();
        let caps = Caps { max_buffer: 1 << 30, max_binding: 1 << 30, binding_alignment: 256, ..Caps::default() };
        let bytes = DeviceBytes::of(&caps, &model, 16, KvType::F16).unwrap();
        let (sparsity, kv_type) = (Sparsity::Predicted, KvType::F16);
        let options = DemandOptions { context: 64, sessions: 1, kv_type, sparsity, filled: None };
        Demand::of(&model, &bytes, &options).unwrap()
    }

    #[test]
    fn its_split_is_a_placement() {
        for ty in ["f16", "q4_0"] {
            let model = fixture(&format!("powerinfer/llama-relu-{ty}.powerinfer.gguf"));
            let (demand, path) = (demand(&model), GpuIndex::path_beside(&model));
            let placement = Split::open(&path).unwrap().placement(&demand).unwrap();
            let index = GpuIndex::open(&path).unwrap();
            assert!(index.layers.iter().any(|layer| !layer.bucket.is_empty()));
            for (hot, split) in placement.hot.iter().zip(&index.layers) {
                let mut hot = hot.clone();
                hot.sort_unstable();
                assert_eq!(hot, split.bucket);
            }
            let plan = Plan::of(&demand, &Machine::typical(), placement.clone());
            assert_eq!(plan.placement, placement);
        }
    }

    #[test]
    fn what_belongs_to_another_model_is_refused() {
        let index = GpuIndex::path_beside(&fixture("powerinfer/llama-relu-f16.powerinfer.gguf"));
        let other = demand(&fixture("models/llama-relu"));
        let error = Split::open(&index).unwrap().placement(&other).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }) && error.to_string().contains("as the model has"), "{error}");
    }

    /// Every byte changed, and cut at every byte: an error or another split, never a panic.
    #[test]
    fn damage_is_survived() {
        let model = fixture("powerinfer/llama-relu-q4_0.powerinfer.gguf");
        let (demand, good) = (demand(&model), fs::read(GpuIndex::path_beside(&model)).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("split.gpuidx");
        let mut refused = 0;
        let header = good.len().min(600);
        for at in (0..header).chain((header..good.len()).step_by(97)) {
            let mut damaged = good.clone();
            damaged[at] ^= 0x81;
            for bytes in [&damaged[..], &good[..at]] {
                fs::write(&path, bytes).unwrap();
                match Split::open(&path).and_then(|split| split.placement(&demand)) {
                    Ok(placement) => assert_eq!(placement.clone().within(&demand), placement),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > header, "{refused}");
    }
}
