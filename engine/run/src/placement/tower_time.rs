//! The time of a picture's layers in a vision tower, on the CPU and on a device to which the tower
//! is uploaded for the picture.

use super::{GpuRates, Machine, PromptRates};
use thermocline_model::{Linear, Merger, Tower};

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
        for linear in mergers.iter().flat_map(|merger| merger.maps()) {
            sum.add(linear, patches / each, machine, gpu)?;
        }
        // Patches that are left by the joins of earlier layers.
        let mut left = patches;
        for layer in &tower.weights.layers {
            layer.maps().try_for_each(|map| sum.add(&map.linear, left, machine, gpu))?;
            let window = config.window.filter(|_| layer.windowed).map_or(left, |side| side * side * each);
            sum.add_scores(&layer.output.linear, [left, left.min(window)], machine, gpu)?;
            if let Some(join) = &layer.join {
                let square = config.first_merge.pow(2);
                let squares = left / square;
                sum.add_scores(&join.output.linear, [left, square], machine, gpu)?;
                // The attention of each square is a dispatch of its own.
                sum.gpu += squares as f64 * gpu.dispatch;
                join.qkv.iter().chain([&join.output]).try_for_each(|map| sum.add(&map.linear, left, machine, gpu))?;
                [&join.up, &join.down].into_iter().try_for_each(|map| sum.add(map, squares, machine, gpu))?;
                left = squares;
            }
        }
        let bytes = |floats: usize| (floats * size_of::<f32>()) as f64;
        let up = bytes(patches * (config.width + config.heads.head_dim)) / gpu.upload;
        let results = if tower.merger().is_none() { left * config.width } else { 0 };
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

    /// Adds the attention in front of `output`: each of `rows` patches attends to `seen` patches.
    /// `None` without a rate.
    fn add_scores(
        &mut self,
        output: &Linear,
        [rows, seen]: [usize; 2],
        machine: &Machine,
        gpu: &GpuRates,
    ) -> Option<()> {
        let (width, ty) = (output.weight.rows(), output.weight.ty().name());
        // Every patch multiplies queries with keys, and weights with values.
        let products = 2.0 * (width * seen) as f64 * rows as f64;
        self.cpu += products / rate(&machine.cpu.prompts, ty)?;
        self.gpu += products / rate(&gpu.prompts, ty)?;
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
    use thermocline_model::TowerLayer;

    fn tower(name: &str) -> Tower {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers");
        Tower::open(&fixtures.join(name), ReadMode::Map).unwrap()
    }

    /// Layers behind a join have a quarter of the patches, and the join has its own work.
    #[test]
    fn joined_patches_take_less_time() {
        let machine = Machine::typical();
        let time = |tower: &Tower| TowerTime::of(tower, 1600, &machine).unwrap().cpu;
        let joined = tower("minicpm-v4_6");
        let at = joined.weights.layers.iter().position(|layer| layer.join.is_some()).unwrap();
        assert!(at + 1 < joined.weights.layers.len(), "layers behind the join");
        let mut behind = joined.clone();
        let join = behind.weights.layers[at].join.take();
        let mut last = behind.clone();
        last.weights.layers.last_mut().unwrap().join = join;
        assert!(time(&joined) < time(&last), "joined early and late");
        assert!(time(&behind) < time(&last), "the work of the join");
        // A dispatch takes a second.
        let mut slow = machine.clone();
        slow.gpu.as_mut().unwrap().dispatch = 1.0;
        let [with, without] = [&joined, &behind].map(|tower| TowerTime::of(tower, 1600, &slow).unwrap().device);
        assert!(without < 1.0 && with >= 400.0, "a dispatch per square: {without} {with}");
    }

    #[test]
    fn times_follow_the_rates_of_the_machine() {
        let tower = tower("qwen3-vl");
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
