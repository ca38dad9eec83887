//! One token through a whole FFN that computes only what it must: mask, list, hidden activations, sum.

use bytemuck::{bytes_of, cast_slice, cast_vec};
use thermocline_shaders::{Tier, WeightType, limits::SPARSE_NEURONS, params};

use crate::gpu::{Call, Gpu, activation, assert_close, bytes, noise, weights::Weights};

const NEURONS: usize = 700;
const COLS: usize = 256;
const WORKGROUP: f64 = 64.0;
const SPLITS: u32 = 3;

/// Gate and up rows alternate, neuron after neuron.
struct Ffn {
    gate_up: Weights,
    down: Weights,
    x: Vec<f32>,
}

impl Ffn {
    fn row(&self, row: usize) -> f64 {
        let products = self.gate_up.values[row * COLS..][..COLS].iter().zip(&self.x);
        products.map(|(w, x)| w * f64::from(*x)).sum()
    }

    /// Of every neuron.
    fn gates(&self) -> Vec<f32> {
        (0..NEURONS).map(|i| self.row(2 * i) as f32).collect()
    }

    /// The sum over the neurons `counts` names.
    fn expected(&self, kind: u32, counts: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut out = vec![0.0; COLS];
        for i in (0..NEURONS).filter(|i| counts(*i)) {
            let hidden = activation(kind, self.row(2 * i), Some(self.row(2 * i + 1)));
            out.iter_mut().zip(&self.down.values[i * COLS..]).for_each(|(out, w)| *out += hidden * w);
        }
        out
    }

    /// The same on the device, with how many neurons were computed. What `active_mask` looks at are the gates, if the
    /// test is 1, or a predictor's scores.
    fn run(
        &self,
        gpu: &Gpu,
        tier: Tier,
        ty: WeightType,
        kind: u32,
        test: u32,
        threshold: f32,
        scores: &[f32],
    ) -> (Vec<f32>, usize) {
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
        let (mask, counts) = (vec![0_u32; words as usize], vec![0_u32; blocks as usize]);
        let overrides = [("WORKGROUP_SIZE", WORKGROUP), ("TEST", f64::from(test)), ("KIND", f64::from(kind))];
        let buffers = [bytes(scores), cast_slice(&mask), cast_slice(&counts)];
        let call = plain("active_mask", &overrides, bytes_of(&params), &buffers, (blocks, 1, 1));
        let [mask, counts] = gpu.run_for(&call, [1, 2]);

        let per_workgroup = SPARSE_NEURONS * WORKGROUP as u32 / 16;
        let params = params::ActiveList { neurons: NEURONS as u32, per_workgroup, stride: 10 };
        let list = vec![0_u32; NEURONS + 1];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP)];
        let buffers = [cast_slice(&mask), cast_slice(&counts), cast_slice(&list), &[0; 12]];
        let call = plain("active_list", &overrides, bytes_of(&params), &buffers, (blocks, 1, 1));
        let [list, grid] = gpu.run_for(&call, [2, 3]);

        let params =
            params::SparseGateUp { chunks: COLS as u32 / 32, step: 2, up_at: 1, stride: 10, count: 0, threshold: 0.0 };
        // Results of an earlier token must not count.
        let hidden = vec![f32::NAN; NEURONS.next_multiple_of(4)];
        let overrides = [
            ("WORKGROUP_SIZE", WORKGROUP),
            ("LANES", 16.0),
            ("KIND", f64::from(kind)),
            ("GATES_KNOWN", f64::from(u8::from(test == 1))),
        ];
        let [main, aux] = [&self.gate_up.main, &self.gate_up.aux].map(|stream| cast_slice(stream));
        let buffers = [main, aux, bytes(&self.x), cast_slice(&list), &[0; 16], bytes(scores), bytes(&hidden)];
        let call = plain("sparse_gate_up", &overrides, bytes_of(&params), &buffers, (0, 0, 0));
        let [hidden] = gpu.run_over(&Call { weights: Some(ty), ..call }, &grid, [6]);

        let chunks = COLS as u32 / 32;
        let params = params::SparseDown { chunks, tokens: 1, splits: SPLITS, ..Default::default() };
        let partials = vec![f32::NAN; COLS * SPLITS as usize];
        let overrides = [("WORKGROUP_SIZE", WORKGROUP), ("SKIP", 1.0)];
        let [main, aux] = [&self.down.main, &self.down.aux].map(|stream| cast_slice(stream));
        let buffers = [main, aux, cast_slice(&hidden), cast_slice(&list), bytes(&partials)];
        let call = plain("sparse_down", &overrides, bytes_of(&params), &buffers, (COLS as u32 / 8 / 32, SPLITS, 1));
        let [partials] = gpu.run_for(&Call { weights: Some(ty), ..call }, [4]);

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
    let [gate_up, down] = [2, 1].map(|rows| Weights::random(ty, rows * NEURONS, COLS, rows as u32));
    Ffn { gate_up, down, x: noise(COLS, 3).iter().map(|v| v / 8.0).collect() }
}

/// Scores padded as a register is.
fn padded(mut scores: Vec<f32>) -> Vec<f32> {
    scores.resize(NEURONS.next_multiple_of(32), 0.0);
    scores
}

#[test]
fn exact_ffn_equals_the_dense_ffn() {
    let gpu = Gpu::get();
    for ty in [WeightType::F32, WeightType::Q4_0, WeightType::Q6_K] {
        let ffn = ffn(ty);
        let gates = padded(ffn.gates());
        let fire = gates.iter().filter(|gate| **gate > 0.0).count();
        assert!((200..500).contains(&fire), "{fire} of {NEURONS} fire");
        for (tier, kind) in gpu.tiers().into_iter().flat_map(|tier| [0, 1, 5].map(|kind| (tier, kind))) {
            let (out, computed) = ffn.run(gpu, tier, ty, kind, 1, 0.0, &gates);
            assert_eq!(computed, fire, "{ty} {tier} kind {kind}");
            assert_close(&out, &ffn.expected(kind, |_| true), 1e-3, &format!("{ty} {tier} kind {kind}"));
        }
    }
}

#[test]
fn ffn_skips_neurons_below_the_threshold() {
    let gpu = Gpu::get();
    let ty = WeightType::Q4_0;
    let ffn = ffn(ty);
    let (scores, gates) = (padded(noise(NEURONS, 9)), padded(ffn.gates()));
    for tier in gpu.tiers() {
        for threshold in [-2.0, 0.8, 2.0] {
            let (out, computed) = ffn.run(gpu, tier, ty, 0, 0, threshold, &scores);
            let likely = |i: usize| scores[i] >= threshold;
            assert_eq!(computed, (0..NEURONS).filter(|i| likely(*i)).count(), "{tier} predicted at {threshold}");
            assert_close(&out, &ffn.expected(0, likely), 1e-3, &format!("{tier} predicted at {threshold}"));
        }
        let (out, computed) = ffn.run(gpu, tier, ty, 2, 1, 0.3, &gates);
        let strong = |i: usize| activation(2, f64::from(gates[i]), None).abs() > 0.3;
        assert_eq!(computed, (0..NEURONS).filter(|i| strong(*i)).count(), "{tier} silu");
        assert_close(&out, &ffn.expected(2, strong), 1e-3, &format!("{tier} silu"));
    }
}
