//! PowerInfer's split as a placement.

use std::path::Path;

use super::{Demand, Placement};
use crate::{
    error::{Error, Location, Result},
    format::powerinfer::GpuIndex,
};

impl Placement {
    /// The neurons that PowerInfer put on the GPU, from its `<model>.generated.gpuidx`, with everything else resident, as it has
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Malformed`] if it is none, or is another model's.
    pub fn from_gpuidx(path: &Path, demand: &Demand) -> Result<Self> {
        let index = GpuIndex::open(path)?;
        let refuse = |expected: String, got: String| Err(Error::malformed(path, Location::File, expected, got));
        if index.layers.len() != demand.layers.len() {
            return refuse(format!("{} layers, as the model has", demand.layers.len()), index.layers.len().to_string());
        }
        let mut placement = Placement::all(demand);
        for (at, (hot, split)) in placement.hot.iter_mut().zip(&index.layers).enumerate() {
            if split.on_gpu.len() != hot.len() {
                let expected = format!("{} neurons in layer {at}, as the model has", hot.len());
                return refuse(expected, split.on_gpu.len().to_string());
            }
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
        let sparsity = Sparsity::Predicted;
        let options = DemandOptions { context: 64, sessions: 1, kv_type: KvType::F16, sparsity, filled: None };
        Demand::of(&model, &bytes, &options).unwrap()
    }

    #[test]
    fn its_split_is_a_placement() {
        for ty in ["f16", "q4_0"] {
            let model = fixture(&format!("powerinfer/llama-relu-{ty}.powerinfer.gguf"));
            let (demand, path) = (demand(&model), GpuIndex::path_beside(&model));
            let placement = Placement::from_gpuidx(&path, &demand).unwrap();
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
        let error = Placement::from_gpuidx(&index, &other).unwrap_err();
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
                match Placement::from_gpuidx(&path, &demand) {
                    Ok(placement) => assert_eq!(placement.clone().within(&demand), placement),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > header, "{refused}");
    }
}
