//! Feed-forward networks on the CPU: dense, and mixtures of experts.

use super::{
    Activation, Down, ExpertWeights, Experts, Ffn, FfnWeights, ModelConfig, Probe, SharedExpert, forward::grow,
};
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{Hidden, softmax_in_place, top_k},
    },
    error::{Error, Result},
};

const WHAT: &str = "scratch memory";

/// Buffers of an FFN; they grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct FfnScratch {
    hidden: HiddenScratch,
    /// `[tokens, experts]`
    router: Vec<f32>,
    /// `[tokens, used]`, best first.
    chosen: Vec<usize>,
    /// One expert's tokens and their weights.
    members: Vec<(usize, f32)>,
    /// `[members, d_model]`, inputs.
    gathered: Vec<f32>,
    /// `[members, d_model]`, outputs.
    expert_out: Vec<f32>,
}

/// `[tokens, n_ff]` each.
#[derive(Debug, Default)]
struct HiddenScratch {
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl FfnScratch {
    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let HiddenScratch { gate, up } = &self.hidden;
        let floats = [gate, up, &self.router, &self.gathered, &self.expert_out].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>()) as u64
    }
}

impl From<Activation> for Hidden {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => Hidden::Relu,
            Activation::ReluSquared => Hidden::ReluSquared,
            Activation::Silu => Hidden::Silu,
            Activation::GeluTanh => Hidden::GeluTanh,
            Activation::GeluErf => Hidden::GeluErf,
            Activation::DRelu => Hidden::DRelu,
        }
    }
}

impl HiddenScratch {
    /// `out = down(act(gate x) * up x)`; `before` sees gate and up just before the activation.
    fn run(
        &mut self,
        cpu: &Cpu,
        form: Hidden,
        ffn: &FfnWeights,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<()> {
        let n = tokens.checked_mul(ffn.up.weight.rows());
        grow(&mut self.up, n, WHAT)?;
        let up = &mut self.up[..tokens * ffn.up.weight.rows()];
        let up_job = MatmulJob { weight: &ffn.up.weight, bias: ffn.up.bias.as_deref(), out: up };
        let hidden = match &ffn.gate {
            Some(gate_weight) => {
                grow(&mut self.gate, n, WHAT)?;
                let gate = &mut self.gate[..up_job.out.len()];
                let bias = gate_weight.bias.as_deref();
                let mut jobs = [MatmulJob { weight: &gate_weight.weight, bias, out: gate }, up_job];
                cpu.matmul(&mut jobs, x, tokens);
                let [MatmulJob { out: gate, .. }, MatmulJob { out: up, .. }] = jobs;
                before(gate, up);
                cpu.activate(form, gate, Some(up));
                gate
            }
            None => {
                let mut jobs = [up_job];
                cpu.matmul(&mut jobs, x, tokens);
                let [MatmulJob { out: up, .. }] = jobs;
                before(&[], up);
                cpu.activate(form, up, None);
                up
            }
        };
        match &ffn.down {
            Down::Outputs(down) => {
                cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: down.bias.as_deref(), out }], hidden, tokens);
            }
            Down::Neurons(down) => cpu.matmul_neurons(&down.weight, down.bias.as_deref(), hidden, tokens, out),
        }
        Ok(())
    }
}

impl FfnScratch {
    /// `out = ffn(x)`, both `[tokens, d_model]`; `layer` is the probe's to know.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        ffn: &Ffn,
        layer: usize,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let form = Hidden::from(config.activation);
        match ffn {
            Ffn::Dense(ffn) => {
                let wanted = probe.wants_ffn_hidden();
                let mut before = |gate: &[f32], up: &[f32]| {
                    if wanted {
                        probe.ffn_hidden(layer, tokens, gate, up);
                    }
                };
                self.hidden.run(cpu, form, ffn, x, out, tokens, &mut before)
            }
            Ffn::Experts(weights) => {
                let Some(experts) = &config.experts else {
                    return Err(Error::invalid("model", "a configuration of its experts", "none"));
                };
                self.route(cpu, experts, weights, x, tokens)?;
                if probe.wants_router() {
                    probe.router(layer, &self.chosen);
                }
                self.mix(cpu, form, experts, weights, x, out)?;
                match &weights.shared {
                    Some(shared) => self.add_shared(cpu, form, shared, x, out, tokens),
                    None => Ok(()),
                }
            }
        }
    }

    /// Chooses experts: `chosen` and, in place of the router's outputs, their weights.
    fn route(&mut self, cpu: &Cpu, experts: &Experts, weights: &ExpertWeights, x: &[f32], tokens: usize) -> Result<()> {
        let n = weights.router.weight.rows();
        grow(&mut self.router, tokens.checked_mul(n), WHAT)?;
        let router = &mut self.router[..tokens * n];
        let bias = weights.router.bias.as_deref();
        cpu.matmul(&mut [MatmulJob { weight: &weights.router.weight, bias, out: router }], x, tokens);
        self.chosen.resize(tokens * experts.used, 0);
        for (shares, chosen) in router.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            softmax_in_place(shares);
            top_k(shares, chosen);
            if experts.renormalise {
                let sum: f32 = chosen.iter().map(|e| shares[*e]).sum();
                shares.iter_mut().for_each(|share| *share /= sum);
            }
        }
        Ok(())
    }

    /// Expert by expert, each over the tokens that chose it.
    fn mix(
        &mut self,
        cpu: &Cpu,
        form: Hidden,
        experts: &Experts,
        weights: &ExpertWeights,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        let tokens = self.chosen.len() / experts.used;
        let (d, n) = (x.len() / tokens, weights.experts.len());
        out.fill(0.0);
        for (e, expert) in weights.experts.iter().enumerate() {
            self.members.clear();
            for (t, chosen) in self.chosen.chunks_exact(experts.used).enumerate() {
                if chosen.contains(&e) {
                    self.members.push((t, self.router[t * n + e]));
                }
            }
            if self.members.is_empty() {
                continue;
            }
            let rows = self.members.len();
            grow(&mut self.gathered, rows.checked_mul(d), WHAT)?;
            grow(&mut self.expert_out, rows.checked_mul(d), WHAT)?;
            let (gathered, result) = (&mut self.gathered[..rows * d], &mut self.expert_out[..rows * d]);
            for (to, (t, _)) in gathered.chunks_exact_mut(d).zip(&self.members) {
                to.copy_from_slice(&x[t * d..][..d]);
            }
            self.hidden.run(cpu, form, expert, gathered, result, rows, &mut |_, _| ())?;
            for (from, (t, weight)) in result.chunks_exact(d).zip(&self.members) {
                cpu.add_scaled(&mut out[t * d..][..d], from, *weight);
            }
        }
        Ok(())
    }

    /// `out += sigmoid(gate x) * ffn(x)` for every token.
    fn add_shared(
        &mut self,
        cpu: &Cpu,
        form: Hidden,
        shared: &SharedExpert,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
    ) -> Result<()> {
        let d = x.len() / tokens;
        grow(&mut self.router, Some(tokens), WHAT)?;
        grow(&mut self.expert_out, Some(x.len()), WHAT)?;
        let (gates, result) = (&mut self.router[..tokens], &mut self.expert_out[..x.len()]);
        let bias = shared.gate.bias.as_deref();
        cpu.matmul(&mut [MatmulJob { weight: &shared.gate.weight, bias, out: gates }], x, tokens);
        self.hidden.run(cpu, form, &shared.ffn, x, result, tokens, &mut |_, _| ())?;
        for ((out, from), gate) in out.chunks_exact_mut(d).zip(result.chunks_exact(d)).zip(&*gates) {
            cpu.add_scaled(out, from, 1.0 / (1.0 + (-gate).exp()));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        cpu::CpuOptions,
        format::{Bytes, Matrix, TensorType},
        model::{Linear, NormKind, Position},
    };

    pub const D: usize = 24;

    pub fn noise(seed: &mut u64) -> f32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn linear(rows: usize, cols: usize, seed: &mut u64) -> Linear {
        let data: Vec<u8> = (0..rows * cols).flat_map(|_| noise(seed).to_le_bytes()).collect();
        let weight = Matrix::new(TensorType::F32, rows, cols, Bytes::new(data)).unwrap();
        Linear { weight, bias: Some((0..rows).map(|_| noise(seed)).collect()) }
    }

    /// The same matrix with rows for columns.
    fn transposed(linear: &Linear) -> Linear {
        let (rows, cols) = (linear.weight.rows(), linear.weight.cols());
        let mut data = vec![0u8; rows * cols * 4];
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            linear.weight.dequantise_row(r, &mut row);
            for (c, x) in row.iter().enumerate() {
                data[(c * rows + r) * 4..][..4].copy_from_slice(&x.to_le_bytes());
            }
        }
        let weight = Matrix::new(TensorType::F32, cols, rows, Bytes::new(data)).unwrap();
        Linear { weight, bias: linear.bias.clone() }
    }

    pub fn ffn(gated: bool, n_ff: usize, seed: &mut u64) -> FfnWeights {
        FfnWeights {
            gate: gated.then(|| linear(n_ff, D, seed)),
            up: linear(n_ff, D, seed),
            down: Down::Outputs(linear(D, n_ff, seed)),
        }
    }

    pub fn config(activation: Activation, experts: Option<Experts>) -> ModelConfig {
        ModelConfig {
            architecture: String::new(),
            name: String::new(),
            d_model: D,
            n_head: 1,
            n_kv_head: 1,
            head_dim: D,
            n_ff: 0,
            n_vocab: 1,
            context_length: 1,
            norm: NormKind::Rms,
            norm_eps: 0.0,
            position: Position::Learned { offset: 0 },
            activation,
            experts,
            embedding_scale: 1.0,
            attention_scale: 1.0,
            attention_softcap: None,
            final_softcap: None,
            layers: Vec::new(),
            steps: Vec::new(),
        }
    }

    fn times(linear: &Linear, x: &[f64]) -> Vec<f64> {
        let mut row = vec![0.0; x.len()];
        (0..linear.weight.rows())
            .map(|r| {
                linear.weight.dequantise_row(r, &mut row);
                let dot: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                dot + linear.bias.as_ref().map_or(0.0, |bias| f64::from(bias[r]))
            })
            .collect()
    }

    /// One token in f64.
    fn plain(activation: Activation, ffn: &FfnWeights, x: &[f64]) -> Vec<f64> {
        let act = |g: f64| if activation == Activation::Silu { g / (1.0 + (-g).exp()) } else { g.max(0.0) };
        let up = times(&ffn.up, x);
        let hidden: Vec<f64> = match &ffn.gate {
            Some(gate) => times(gate, x).iter().zip(up).map(|(g, u)| act(*g) * u).collect(),
            None => up.into_iter().map(act).collect(),
        };
        match &ffn.down {
            Down::Outputs(down) => times(down, &hidden),
            Down::Neurons(down) => times(&transposed(down), &hidden),
        }
    }

    fn check(config: &ModelConfig, ffn: &Ffn, wanted: impl Fn(&[f64]) -> Vec<f64>) {
        let mut seed = 11;
        let mut scratch = FfnScratch::default();
        for (threads, tokens) in [(1, 1), (2, 7), (1, 3)] {
            let cpu = Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let mut out = vec![f32::NAN; x.len()];
            scratch.run(&cpu, config, ffn, 0, &x, &mut out, tokens, &mut ()).unwrap();
            for (out, x) in out.chunks(D).zip(x.chunks(D)) {
                let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                for (a, b) in out.iter().zip(wanted(&wide)) {
                    assert!((f64::from(*a) - b).abs() < 1e-4, "{a} {b}");
                }
            }
        }
    }

    #[test]
    fn dense_in_both_orientations() {
        for (activation, gated) in [(Activation::Relu, true), (Activation::Silu, true), (Activation::Relu, false)] {
            let mut weights = ffn(gated, 40, &mut 5);
            let config = config(activation, None);
            check(&config, &Ffn::Dense(weights.clone()), |x| plain(activation, &weights, x));
            if let Down::Outputs(down) = &weights.down {
                weights.down = Down::Neurons(transposed(down));
            }
            check(&config, &Ffn::Dense(weights.clone()), |x| plain(activation, &weights, x));
        }
    }

    #[test]
    fn mixtures_with_and_without_a_shared_expert() {
        let mut seed = 3;
        for (renormalise, with_shared) in [(true, false), (false, true)] {
            let weights = ExpertWeights {
                router: linear(5, D, &mut seed),
                experts: (0..5).map(|_| ffn(true, 16, &mut seed)).collect(),
                shared: with_shared
                    .then(|| SharedExpert { gate: linear(1, D, &mut seed), ffn: ffn(true, 32, &mut seed) }),
            };
            let experts = Experts { count: 5, used: 2, renormalise, n_ff: 16 };
            let config = config(Activation::Silu, Some(experts));
            check(&config, &Ffn::Experts(weights.clone()), |x| {
                let scores = times(&weights.router, x);
                let total: f64 = scores.iter().map(|s| s.exp()).sum();
                let mut order: Vec<usize> = (0..5).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                let shares: Vec<f64> = order[..2].iter().map(|e| scores[*e].exp() / total).collect();
                let sum = if renormalise { shares.iter().sum() } else { 1.0 };
                let mut out = vec![0.0; D];
                for (e, share) in order.iter().zip(shares) {
                    for (out, y) in out.iter_mut().zip(plain(Activation::Silu, &weights.experts[*e], x)) {
                        *out += share / sum * y;
                    }
                }
                if let Some(shared) = &weights.shared {
                    let gate = 1.0 / (1.0 + (-times(&shared.gate, x)[0]).exp());
                    for (out, y) in out.iter_mut().zip(plain(Activation::Silu, &shared.ffn, x)) {
                        *out += gate * y;
                    }
                }
                out
            });
        }
    }
}
