//! One token through a whole sparse FFN: mask, list, hidden activations, sum.

use bytemuck::{bytes_of, cast_slice, cast_vec};
use thermocline_shaders::{
    Tier, WeightType,
    limits::{NO_NEURON, SLOT_GRID, SPARSE_NEURONS},
    params,
};

use crate::gpu::{Call, Gpu, activation, assert_close, bytes, noise, weights::Weights};

const NEURONS: usize = 700;
const COLS: usize = 256;
const WORKGROUP: f64 = 64.0;
const SPLITS: u32 = 3;
/// Slots of the neurons. The last slots have no neuron.
const SLOTS: usize = NEURONS.next_multiple_of(64);

/// An FFN whose gate and up rows alternate.
struct Ffn {
    gate_up: Weights,
    down: Weights,
    x: Vec<f32>,
}

/// How neurons are selected and computed.
#[derive(Debug, Clone, Copy)]
struct Form {
    ty: WeightType,
    kind: u32,
    /// Least score of a neuron that is listed.
    threshold: f32,
    /// A neuron's up row is not read if its gate's activation is at most this value.
    gate: f32,
}

impl Ffn {
    fn row(&self, row: usize) -> f64 {
        let products = self.gate_up.values[row * COLS..][..COLS].iter().zip(&self.x);
        products.map(|(w, x)| w * f64::from(*x)).sum()
    }

    /// The expected sum over the neurons for which `counts` is true.
    fn expected(&self, kind: u32, counts: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut out = vec![0.0; COLS];
        for i in (0..NEURONS).filter(|i| counts(*i)) {
            let hidden = activation(kind, self.row(2 * i), Some(self.row(2 * i + 1)));
            out.iter_mut().zip(&self.down.values[i * COLS..]).for_each(|(out, w)| *out += hidden * w);
        }
        out
    }

    /// Computes the sum on the device, and returns it with the number of listed neurons, whose
    /// score is at least `threshold`. Of these, up rows are read only if the gate's activation is
    /// above `gate`.
    fn run(&self, gpu: &Gpu, tier: Tier, form: Form, scores: &[f32]) -> (Vec<f32>, usize) {
        let Form { ty, kind, threshold, gate } = form;
        let plain = |kernel, overrides, params, buffers, workgroups| Call {
            kernel,
            tier,
            weights: None,
            overrides,
            params,
            buffers,
            workgroups,
        };
        let words = (NEURONS as u32).div_ceil(32);
        let blocks = words.div_ceil(WORKGROUP as u32);
        let params = params::ActiveMask { neurons: NEURONS as u32, pitch: scores.len() as u32, threshold };
        let mask = vec![0_u32; words as usize];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP), ("TEST", 0.0)];
        let buffers = [bytes(scores), cast_slice(&mask)];
        let call = plain("active_mask", &overrides, bytes_of(&params), &buffers, (blocks, 1, 1));
        let [mask] = gpu.run_for(&call, [1]);

        let per_workgroup = SPARSE_NEURONS * WORKGROUP as u32 / 16;
        let params = params::SlotList { per_workgroup, stride: 10 };
        let mut table = vec![0, SLOTS as u32];
        table.extend((0..SLOTS as u32).map(|slot| if slot < NEURONS as u32 { slot } else { NO_NEURON }));
        let (list, grid) = (vec![0_u32; SLOTS + 1], vec![0_u32; SLOT_GRID as usize]);
        // Hidden activations of an earlier token must be ignored.
        let hidden = vec![f32::NAN; SLOTS];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP), ("BLOCKS", 1.0)];
        let buffers = [cast_slice(&mask), cast_slice(&table), cast_slice(&list), cast_slice(&grid), bytes(&hidden)];
        let call = plain("slot_list", &overrides, bytes_of(&params), &buffers, (1, 1, 1));
        let [list, grid, hidden] = gpu.run_for(&call, [2, 3, 4]);

        let params =
            params::SparseGateUp { chunks: COLS as u32 / 32, step: 2, up_at: 1, stride: 10, count: 0, threshold: gate };
        let overrides =
            [("WORKGROUP_SIZE", WORKGROUP), ("LANES", 16.0), ("KIND", f64::from(kind)), ("GATE_FIRST", 1.0)];
        let [main, aux] = [&self.gate_up.main, &self.gate_up.aux].map(|stream| cast_slice(stream));
        let buffers = [main, aux, bytes(&self.x), cast_slice(&list), &[0; 16], cast_slice(&hidden)];
        let call = plain("sparse_gate_up", &overrides, bytes_of(&params), &buffers, (0, 0, 0));
        let [hidden] = gpu.run_over(&Call { weights: Some(ty), ..call }, &grid[..3], [5]);

        let chunks = COLS as u32 / 32;
        let params =
            params::SparseDown { chunks, neurons: SLOTS as u32, tokens: 1, splits: SPLITS, ..Default::default() };
        let partials = vec![f32::NAN; COLS * SPLITS as usize];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP), ("SKIP", 1.0)];
        let [main, aux] = [&self.down.main, &self.down.aux].map(|stream| cast_slice(stream));
        let buffers = [main, aux, cast_slice(&hidden), bytes(&partials)];
        let call = plain("sparse_down", &overrides, bytes_of(&params), &buffers, (COLS as u32 / 8 / 32, SPLITS, 1));
        let [partials] = gpu.run_for(&Call { weights: Some(ty), ..call }, [3]);

        let cols = COLS as u32;
        let params =
            params::SumSplits { cols, pitch: cols, tokens: 1, splits: SPLITS, partial_pitch: cols, stride: cols };
        let out = vec![0.0_f32; COLS];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP)];
        let buffers = [cast_slice(&partials), &[0; 16], bytes(&out)];
        let call = plain("sum_splits", &overrides, bytes_of(&params), &buffers, (cols / 64, 1, 1));
        let [out] = gpu.run_for(&call, [2]);
        (cast_vec(out), list[0] as usize)
    }
}

fn ffn(ty: WeightType) -> Ffn {
    // The down projection has rows for empty slots, too.
    let gate_up = Weights::random(ty, 2 * NEURONS, COLS, 2);
    let down = Weights::random(ty, SLOTS, COLS, 1);
    Ffn { gate_up, down, x: noise(COLS, 3).iter().map(|v| v / 8.0).collect() }
}

/// Scores, padded to the pitch.
fn scores() -> Vec<f32> {
    let mut scores = noise(NEURONS, 9);
    scores.resize(NEURONS.next_multiple_of(32), 0.0);
    scores
}

#[test]
fn exact_ffn_equals_the_dense_ffn() {
    let gpu = Gpu::get();
    for ty in [WeightType::F32, WeightType::Q4_0, WeightType::Q6_K] {
        let ffn = ffn(ty);
        for (tier, kind) in gpu.tiers().into_iter().flat_map(|tier| [0, 1, 5].map(|kind| (tier, kind))) {
            let form = Form { ty, kind, threshold: -2.0, gate: 0.0 };
            let (out, listed) = ffn.run(gpu, tier, form, &scores());
            assert_eq!(listed, NEURONS, "{tier} {form:?}");
            assert_close(&out, &ffn.expected(kind, |_| true), 1e-3, &format!("{tier} {form:?}"));
        }
    }
}

#[test]
fn ffn_skips_neurons_below_the_thresholds() {
    let gpu = Gpu::get();
    let ty = WeightType::Q4_0;
    let (ffn, scores) = (ffn(ty), scores());
    for tier in gpu.tiers() {
        for (kind, threshold, gate) in [(0, -2.0, 0.0), (0, 0.3, 0.0), (0, 2.0, 0.0), (2, -2.0, 0.3), (2, 0.3, 0.3)] {
            let form = Form { ty, kind, threshold, gate };
            let (out, listed) = ffn.run(gpu, tier, form, &scores);
            let likely = |i: usize| scores[i] >= threshold;
            let strong = |i: usize| activation(kind, ffn.row(2 * i), None).abs() > f64::from(gate);
            assert_eq!(listed, (0..NEURONS).filter(|i| likely(*i)).count(), "{tier} {form:?}");
            assert_close(&out, &ffn.expected(kind, |i| likely(i) && strong(i)), 1e-3, &format!("{tier} {form:?}"));
        }
    }
}
