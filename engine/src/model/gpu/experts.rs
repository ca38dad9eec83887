//! Mixtures of experts: the device routes, and computes only the experts a token uses.

use thermocline_shaders::limits::{ROUTE_EXPERTS, ROUTE_USED};

use super::{
    elementwise::{WORKGROUP, flat_grid},
    ffn::{DenseOps, Hidden},
    firing::{Entry, FiringLog},
    loader::Loader,
    product::Product,
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    format::Matrix,
    gpu::{
        Buffer, Epilogue, ExpertGroups, ExpertInput, ExpertMatmul, Gpu, GpuMatrix, MatmulOutput, Op, Purpose, Recorder,
        layout::device_type, params, pitch,
    },
    model::{Down, ExpertWeights, Experts, FfnWeights, Linear, Probe, mask},
    telemetry::neurons::LayerNeurons,
};

/// Invocations of `route`, one workgroup of which takes a token.
const ROUTE_WORKGROUP: u32 = 64;

const WHAT: (Purpose, &str) = (Purpose::Ffn, "experts");

/// Temporaries of a mixture; layers share them. A slot is a token and one of the experts it uses.
#[derive(Debug, Clone)]
struct Temporaries {
    /// `[chunk, pitch(experts)]`
    scores: Buffer,
    /// `[slots]`: which expert.
    ids: Buffer,
    groups: ExpertGroups,
    /// Of slots.
    hidden: Hidden,
    /// `[slots, pitch(d_model)]`
    outputs: Buffer,
    route: Op,
    combine: Op,
    shared: Option<SharedTemporaries>,
}

/// Those of the expert that every token passes through.
#[derive(Debug, Clone)]
struct SharedTemporaries {
    /// `[chunk, 32]`, of which the first element counts.
    gate: Buffer,
    hidden: Hidden,
    /// `[chunk, pitch(d_model)]`
    output: Buffer,
}

/// A mixture, prepared.
#[derive(Debug)]
pub(super) struct ExpertOps {
    gpu: Gpu,
    experts: Experts,
    d_model: usize,
    temporaries: Temporaries,
    router: Product,
    gate_up: Vec<ExpertMatmul>,
    down: ExpertMatmul,
    shared: Option<(Product, DenseOps)>,
    neurons: LayerNeurons,
    /// A mask of all neurons.
    resident: Vec<u32>,
    /// Magnitude of the gate's activation above which a neuron counts as fired, where silent ones are not zero exactly.
    cut: Option<f32>,
    work: u64,
}

impl Temporaries {
    fn new(loader: &Loader<'_, '_>, experts: &Experts, shared_ff: Option<usize>, out: &Buffer) -> Result<Self> {
        let (gpu, chunk, d_model) = (loader.gpu, loader.chunk, loader.config.d_model);
        let slots = chunk * experts.used;
        let scores = loader.scratch("scores of experts", chunk * pitch(experts.count))?;
        let ids = loader.scratch("chosen experts", slots)?;
        let shares = loader.scratch("shares of experts", slots)?;
        let groups = ExpertGroups::new(gpu, &ids, slots, experts.count)?;
        let hidden = Hidden::new(loader, slots, experts.n_ff, true)?;
        let outputs = loader.scratch("outputs of experts", slots * pitch(d_model))?;
        let shared = shared_ff.map(|n_ff| {
            Ok(SharedTemporaries {
                gate: loader.scratch("gate of the shared expert", chunk * pitch(1))?,
                hidden: Hidden::new(loader, chunk, n_ff, true)?,
                output: loader.scratch("output of the shared expert", chunk * pitch(d_model))?,
            })
        });
        let shared: Option<SharedTemporaries> = shared.transpose()?;
        let route = gpu.pipelines().get("route", None, ROUTE_WORKGROUP, &[])?;
        let with_shared = [("SHARED", f64::from(u8::from(shared.is_some())))];
        let combine = gpu.pipelines().get("combine", None, WORKGROUP, &with_shared)?;
        let nothing = gpu.nothing();
        let (shared_output, shared_gate) =
            shared.as_ref().map_or((nothing, nothing), |shared| (&shared.output, &shared.gate));
        let bindings = [(&outputs).into(), (&shares).into(), shared_output.into(), shared_gate.into(), out.into()];
        Ok(Temporaries {
            route: Op::new(gpu, &route, &[(&scores).into(), (&ids).into(), (&shares).into()])?,
            combine: Op::new(gpu, &combine, &bindings)?,
            scores,
            ids,
            groups,
            hidden,
            outputs,
            shared,
        })
    }

    fn fits(&self, shared_ff: Option<usize>) -> bool {
        self.shared.as_ref().map(|shared| shared.hidden.n_ff) == shared_ff
    }
}

impl ExpertOps {
    /// `before` is another layer's. With the weights comes the layer's cut, if it has one.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&ExpertOps>,
        (weights, cut): (&ExpertWeights, Option<f32>),
        from: &Buffer,
        (out, out_pitch): (&Buffer, usize),
    ) -> Result<Self> {
        let (gpu, d_model) = (loader.gpu, loader.config.d_model);
        let Some(experts) = loader.config.experts else {
            return Err(Error::invalid("model", "a configuration of its experts", "none"));
        };
        if experts.count > ROUTE_EXPERTS as usize || experts.used > ROUTE_USED as usize {
            return Err(Error::Unsupported {
                what: "experts on the GPU",
                got: format!("{} of {}", experts.used, experts.count),
                supported: format!("up to {ROUTE_USED} of {ROUTE_EXPERTS}"),
            });
        }
        let shared_ff = weights.shared.as_ref().map(|shared| shared.ffn.up.weight.rows());
        let temporaries = match before.filter(|before| before.temporaries.fits(shared_ff)) {
            Some(before) => before.temporaries.clone(),
            None => Temporaries::new(loader, &experts, shared_ff, out)?,
        };
        let of = |role: fn(&FfnWeights) -> Option<&Linear>| {
            let all: Option<Vec<&Linear>> = weights.experts.iter().map(role).collect();
            all.ok_or_else(|| Error::invalid("experts on the GPU", "gates, and rows of outputs", "others"))
        };
        let hidden = &temporaries.hidden;
        let mut product =
            |linears: &[&Linear], x: &Buffer, share: usize, (y, pitch, offset): (&Buffer, usize, usize)| {
                let matrices: Vec<&Matrix> = linears.iter().map(|linear| &linear.weight).collect();
                let matrix = loader.uploader.experts(WHAT.0, WHAT.1, &matrices, experts.count)?;
                let bias = Product::stacked_bias(linears).map(|bias| loader.vector("a bias", &bias)).transpose()?;
                let (ids, groups) = (&temporaries.ids, &temporaries.groups);
                let input = ExpertInput { x, share, ids, groups, bias: bias.as_ref() };
                let output = MatmulOutput { buffer: y, pitch, offset, epilogue: Epilogue::Store };
                ExpertMatmul::new(gpu, &matrix, experts.count, &input, &output)
            };
        let beside = |offset| (&hidden.gate_up, hidden.gate_up_pitch, offset);
        let (gates, ups, downs) = (of(|expert| expert.gate.as_ref())?, of(|expert| Some(&expert.up))?, of(down_of)?);
        let pairs: Vec<&Linear> = gates.iter().zip(&ups).flat_map(|(gate, up)| [*gate, *up]).collect();
        let ty = |linear: &Linear| device_type(linear.weight.ty());
        let alike = pairs.iter().all(|linear| ty(linear) == ty(pairs[0]));
        // An expert is never cut in two.
        let caps = gpu.caps();
        let pair = GpuMatrix::bytes_of(caps, ty(pairs[0]), 2 * experts.n_ff, pairs[0].weight.cols())?;
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 31);
        let gate_up = if alike && pair + caps.binding_alignment <= most {
            vec![product(&pairs, from, experts.used, beside(0))?]
        } else {
            let gate = product(&gates, from, experts.used, beside(0))?;
            vec![gate, product(&ups, from, experts.used, beside(experts.n_ff))?]
        };
        let down = product(&downs, &hidden.hidden, 1, (&temporaries.outputs, out_pitch, 0))?;
        let scores = (&temporaries.scores, pitch(experts.count));
        let router = Product::new(loader, WHAT, &[&weights.router], from, scores)?;
        let shared = match (&weights.shared, &temporaries.shared) {
            (Some(shared), Some(temporaries)) => {
                let gate = Product::new(loader, WHAT, &[&shared.gate], from, (&temporaries.gate, pitch(1)))?;
                let into = (&temporaries.output, out_pitch);
                Some((gate, DenseOps::new(loader, None, &temporaries.hidden, &shared.ffn, from, into)?))
            }
            _ => None,
        };
        let work = router.work
            + (experts.used * experts.n_ff * d_model * 3) as u64
            + shared.as_ref().map_or(0, |(gate, ffn)| gate.work + ffn.work());
        let neurons =
            LayerNeurons::Mixture { experts: experts.count, width: experts.n_ff, shared: shared_ff.unwrap_or(0) };
        let mut resident = vec![0; mask::words(neurons.count())];
        mask::fill(&mut resident, neurons.count(), |_| true);
        Ok(ExpertOps {
            gpu: gpu.clone(),
            experts,
            d_model,
            temporaries,
            router,
            gate_up,
            down,
            shared,
            neurons,
            resident,
            cut: cut.filter(|_| !loader.config.activation.is_sparse()),
            work,
        })
    }

    /// Records it for the first `tokens` rows. What fires goes to `log`, if `probe` wants that.
    pub fn record(
        &self,
        segment: &mut Segment,
        tokens: usize,
        layer: usize,
        probe: &mut dyn Probe,
        log: &mut FiringLog,
    ) -> Result<()> {
        let (used, temporaries) = (self.experts.used, &self.temporaries);
        let slots = tokens * used;
        self.route(segment.recorder(), tokens);
        if probe.wants_router() {
            let chosen = segment.read(&[(&temporaries.ids, 0, (slots * 4) as u64)], |read| {
                bytemuck::pod_collect_to_vec::<u8, u32>(read).into_iter().map(|id| id as usize).collect::<Vec<_>>()
            })?;
            probe.router(layer, &chosen);
        }
        let recorder = segment.recorder();
        let grouped = temporaries.groups.pay(slots);
        if grouped {
            temporaries.groups.record(recorder, slots);
        }
        self.gate_up.iter().for_each(|product| product.record(recorder, slots, grouped));
        temporaries.hidden.activate(recorder, slots);
        self.down.record(recorder, slots, grouped);
        if let Some((gate, ffn)) = &self.shared {
            gate.record(recorder, tokens);
            ffn.record_gate_up(recorder, tokens);
            ffn.record_down(recorder, tokens);
        }
        let (grid, stride) = flat_grid(&self.gpu, tokens * self.d_model, temporaries.combine.pipeline().workgroup());
        let params = params::Combine {
            cols: self.d_model as u32,
            pitch: pitch(self.d_model) as u32,
            tokens: tokens as u32,
            used: used as u32,
            gate_pitch: pitch(1) as u32,
            stride,
        };
        recorder.dispatch(&temporaries.combine, &params, grid);
        if probe.wants_firing() {
            self.record_fired(segment, tokens, layer, log)?;
        }
        Ok(())
    }

    /// Records which neurons of the chosen experts fired: a mask per slot, and whose it is.
    fn record_fired(&self, segment: &mut Segment, tokens: usize, layer: usize, log: &mut FiringLog) -> Result<()> {
        let (slots, temporaries) = (tokens * self.experts.used, &self.temporaries);
        let fired = temporaries.hidden.record_fired(segment.recorder(), slots, self.cut);
        let shared = temporaries.shared.as_ref();
        let shared = shared.map(|shared| shared.hidden.record_fired(segment.recorder(), tokens, self.cut));
        let ids = (&temporaries.ids, (slots * 4) as u64);
        let entry = Entry { complete: true, ..Entry::new(layer, tokens) };
        log.push_experts(segment, (fired, ids), shared, entry)
    }

    /// What that told, of `tokens` tokens, as masks of the layer's neurons and of its experts. Experts that were not chosen
    /// did nothing.
    pub fn spread(
        &self,
        (slots, ids, shared): (&[u32], &[u32], Option<&[u32]>),
        tokens: usize,
        fired: &mut Vec<u32>,
        chosen: &mut Vec<u32>,
    ) {
        let (count, width, used) = (self.experts.count, self.experts.n_ff, self.experts.used.max(1));
        let (words, expert_words) = (mask::words(self.neurons.count()), mask::words(count));
        fired.resize(tokens * words, 0);
        chosen.resize(tokens * expert_words, 0);
        let masks = slots.chunks_exact(mask::words(width).max(1));
        for (slot, (expert, mask)) in ids.iter().zip(masks).enumerate() {
            let (token, expert) = (slot / used, *expert as usize);
            if token < tokens && expert < count {
                mask::insert(&mut chosen[token * expert_words..], expert);
                mask::place(&mut fired[token * words..][..words], expert * width, mask);
            }
        }
        let shared_words = mask::words(self.neurons.count() - count * width);
        let rows = shared.unwrap_or_default().chunks_exact(shared_words.max(1));
        for (fired, row) in fired.chunks_exact_mut(words.max(1)).zip(rows) {
            mask::place(fired, count * width, row);
        }
    }

    /// A mask of the layer's neurons: all are here.
    pub fn resident(&self) -> &[u32] {
        &self.resident
    }

    /// Words it tells of a token's firings.
    pub fn logged(&self) -> usize {
        logged(&self.experts, self.neurons.count() - self.experts.count * self.experts.n_ff)
    }

    fn route(&self, recorder: &mut Recorder, tokens: usize) {
        self.router.record(recorder, tokens);
        let params = params::Route {
            experts: self.experts.count as u32,
            pitch: pitch(self.experts.count) as u32,
            used: self.experts.used as u32,
            tokens: tokens as u32,
            renormalise: u32::from(self.experts.renormalise),
        };
        recorder.dispatch(&self.temporaries.route, &params, [tokens as u32, 1, 1]);
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        self.work
    }
}

/// Words that a mixture with a shared expert of so many neurons tells of a token's firings.
pub(super) const fn logged(experts: &Experts, shared: usize) -> usize {
    experts.used * (1 + mask::words(experts.n_ff)) + mask::words(shared)
}

fn down_of(expert: &FfnWeights) -> Option<&Linear> {
    match &expert.down {
        Down::Outputs(down) => Some(down),
        Down::Neurons(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{
        cpu::{Cpu, CpuOptions},
        gpu::{AdapterChoice, GpuOptions, Uploader, Usage},
        model::{
            Activation, Ffn, LayerFiring, SharedExpert, Sparsity,
            cpu::{
                LayerFfn,
                tests::{D, config, ffn, linear, noise, task},
            },
        },
    };

    /// What an observer is told of one layer.
    #[derive(Default, PartialEq, Debug)]
    struct Seen {
        router: Vec<usize>,
        fired: Vec<u32>,
        chosen: Vec<u32>,
    }

    impl Probe for Seen {
        fn wants_router(&mut self) -> bool {
            true
        }

        fn router(&mut self, _: usize, chosen: &[usize]) {
            self.router.extend_from_slice(chosen);
        }

        fn wants_firing(&mut self) -> bool {
            true
        }

        fn firing(&mut self, firing: &LayerFiring<'_>) {
            self.fired = firing.fired.to_vec();
            self.chosen = firing.chosen.unwrap_or_default().to_vec();
        }
    }

    /// Every matrix with a bias; the same choices, sums and firings as on the CPU, with and without a shared expert and a cut.
    #[test]
    fn mixtures_are_those_of_the_cpu() {
        let options = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
        let gpu = Gpu::open(&options).unwrap();
        let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let mut seed = 3;
        let forms = [
            (Activation::Silu, true, false, None),
            (Activation::Silu, false, true, Some(0.3)),
            (Activation::Relu, true, true, None),
        ];
        for (activation, renormalise, with_shared, cut) in forms {
            let weights = ExpertWeights {
                router: linear(5, D, &mut seed),
                experts: (0..5).map(|_| ffn(true, 20, &mut seed)).collect(),
                shared: with_shared
                    .then(|| SharedExpert { gate: linear(1, D, &mut seed), ffn: ffn(true, 40, &mut seed) }),
            };
            let experts = Experts { count: 5, used: 2, renormalise, n_ff: 20 };
            let config = config(activation, Some(experts));

            let mut progress = |_, _| ControlFlow::Continue(());
            let uploader = Uploader::new(&gpu, &mut progress).unwrap();
            let mut loader = Loader { gpu: &gpu, config: &config, chunk: 20, predictors: false, uploader };
            let from = loader.scratch("from", 20 * pitch(D)).unwrap();
            let out = loader.scratch("out", 20 * pitch(D)).unwrap();
            let ops = ExpertOps::new(&mut loader, None, (&weights, cut), &from, (&out, pitch(D))).unwrap();
            loader.uploader.finish().unwrap();
            let bytes = (20 * pitch(D) * 4) as u64;
            let mut segment = Segment::new(&gpu, bytes, bytes, u64::MAX).unwrap();
            let room = (ops.logged() * 20 * 4) as u64;
            let room = gpu.arena().buffer(Purpose::Scratch, "log", room, Usage::Storage).unwrap();
            let mut log = FiringLog::new(Some(room));
            for tokens in [1, 3, 20] {
                let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
                let mut wanted = vec![0.0; x.len()];
                let (mut on_cpu, mut on_gpu) = (Seen::default(), Seen::default());
                let ffn = Ffn::Experts(weights.clone());
                let mut task = task(&ffn, &x, Sparsity::Dense);
                task.cut = cut;
                LayerFfn::default().run(&cpu, &config, &task, &mut wanted, &mut on_cpu).unwrap();

                let mut rows = vec![0.0_f32; tokens * pitch(D)];
                rows.chunks_exact_mut(pitch(D)).zip(x.chunks_exact(D)).for_each(|(row, x)| row[..D].copy_from_slice(x));
                segment.begin(&[(bytemuck::cast_slice(&rows), &from, 0)]).unwrap();
                log.clear();
                ops.record(&mut segment, tokens, 0, &mut on_gpu, &mut log).unwrap();
                assert!(log.bring(&mut segment));
                let piece = (&out, 0, (tokens * pitch(D) * 4) as u64);
                let got = segment.read(&[piece], bytemuck::pod_collect_to_vec::<u8, f32>).unwrap();
                log.brought(&segment);
                let entry = &log.entries[0];
                let places = entry.experts.unwrap();
                let told =
                    (log.words(entry.slots), log.words(places.ids), places.shared.map(|shared| log.words(shared)));
                ops.spread(told, tokens, &mut on_gpu.fired, &mut on_gpu.chosen);
                assert_eq!(on_gpu, on_cpu, "{tokens} tokens, {activation}");
                assert!(on_gpu.fired.iter().any(|word| *word != 0));
                for (got, wanted) in got.chunks_exact(pitch(D)).zip(wanted.chunks_exact(D)) {
                    let error = got.iter().zip(wanted).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
                    assert!(error <= 1e-4, "{tokens} tokens, shared: {with_shared}: {error}");
                }
            }
        }
    }
}
