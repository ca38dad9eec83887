//! The time of a picture's layers in a vision tower, on the CPU and on a device to which the tower
//! is uploaded for the picture.

use super::{GpuRates, Machine, PromptRates};
use thermocline_model::{Linear, Merger, Tower, TowerLayer};

/// Expected seconds of the layers of a picture, and of a head that merges patches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TowerTime {
    /// On the CPU.
    pub cpu: f64,
    /// On the device, with all transfers.
    pub device: f64,
}

/// Multiply-adds and bytes of weights of some maps, as seconds.
#[derive(Debug, Clone, Copy, Default)]
struct MapSeconds {
    cpu: f64,
    gpu: f64,
    upload: f64,
}

impl TowerTime {
    /// The time of a picture of `patches` patches. `None` if `machine` has no GPU, or no rates.
    pub fn of(tower: &Tower, patches: usize, machine: &Machine) -> Option<Self> {
        let (config, gpu) = (&tower.config, machine.gpu.as_ref()?);
        let each = config.merge * config.merge;
        let mut sum = MapSeconds::default();
        let mergers = tower.weights.layers.iter().filter_map(|layer| layer.deepstack.as_ref());
        let mergers: Vec<&Merger> = mergers.chain(tower.merger()).collect();
        let of_layers = tower.weights.layers.iter().flat_map(TowerLayer::maps).map(|map| (&map.linear, patches));
        let of_mergers = mergers.iter().flat_map(|merger| merger.maps()).map(|linear| (linear, patches / each));
        for (linear, rows) in of_layers.chain(of_mergers) {
            sum.add(linear, rows, machine, gpu)?;
        }
        for layer in &tower.weights.layers {
            let window = config.window.filter(|_| layer.windowed).map_or(patches, |side| side * side * each);
            let scores = 2.0 * (config.width * patches.min(window)) as f64 * patches as f64;
            let ty = layer.output.linear.weight.ty().name();
            sum.cpu += scores / rate(&machine.cpu.prompts, ty)?;
            sum.gpu += scores / rate(&gpu.prompts, ty)?;
        }
        let bytes = |floats: usize| (floats * size_of::<f32>()) as f64;
        let up = bytes(patches * (config.width + config.heads.head_dim)) / gpu.upload;
        let results = if tower.merger().is_none() { patches * config.width } else { 0 };
        let down = bytes(results + mergers.len() * (patches / each) * config.d_model) / gpu.download;
        let waits = (2 + tower.weights.layers.len() + mergers.len()) as f64 * gpu.hand_over;
        Some(TowerTime { cpu: sum.cpu, device: sum.gpu.max(sum.upload) + up + down + waits })
    }
}

impl MapSeconds {
    /// Adds `rows` products with `linear`. `None` without a rate.
    fn add(&mut self, linear: &Linear, rows: usize, machine: &Machine, gpu: &GpuRates) -> Option<()> {
        let (weight, ty) = (&linear.weight, linear.weight.ty().name());
        let products = (weight.rows() * weight.cols()) as f64 * rows as f64;
        self.cpu += products / rate(&machine.cpu.prompts, ty)?;
        self.gpu += products / rate(&gpu.prompts, ty)?;
        self.upload += weight.data().len() as f64 / rate(&gpu.streams, ty)?;
        Some(())
    }
}

/// The rate of a type. A type that was not measured gets the rate of the slowest measured type.
fn rate(rates: &PromptRates, ty: &str) -> Option<f64> {
    rates.get(ty).copied().or_else(|| rates.values().copied().reduce(f64::min))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use thermocline_formats::format::ReadMode;

    #[test]
    fn times_follow_the_rates_of_the_machine() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers/qwen3-vl");
        let tower = Tower::open(&path, ReadMode::Map).unwrap();
        let mut machine = Machine::typical();
        let [few, many] = [4, 4096].map(|patches| TowerTime::of(&tower, patches, &machine).unwrap());
        // A small picture does not pay for the waits, and a large one does.
        assert!(few.cpu < few.device && many.device < many.cpu, "{few:?} {many:?}");
        machine.cpu.prompts.values_mut().for_each(|rate| *rate /= 2.0);
        let slower = TowerTime::of(&tower, 4096, &machine).unwrap();
        assert!((slower.cpu / many.cpu - 2.0).abs() < 1e-9 && slower.device == many.device);
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.streams.retain(|ty, _| ty == "Q4_0");
        gpu.streams.insert("Q4_0".to_owned(), 1.0);
        let uploads = TowerTime::of(&tower, 4, &machine).unwrap().device;
        let bytes =
            tower.weights.layers.iter().flat_map(TowerLayer::maps).map(|map| map.linear.weight.data().len() as f64);
        assert!(uploads >= bytes.sum::<f64>());
        machine.gpu = None;
        assert_eq!(TowerTime::of(&tower, 4, &machine), None);
    }
}
