//! MoE layers on a device compared with the CPU.

use std::{ops::ControlFlow, path::Path};

use super::*;
use crate::{
    device::{Segment, expert_pass::ExpertPass, firing_log::FiringLog, segment::RingBytes},
    runtime::{
        LayerFiring, Pass, Probe,
        cpu::{
            LayerFfn,
            tests::{D, config, ffn, linear, noise, task},
        },
    },
};
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_gpu::{AdapterChoice, GpuOptions, Uploader};
use thermocline_model::{Activation, Ffn, LoadOptions, Model, Router, SharedExpert, Sparsity};

/// An observer's report on one layer.
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

/// With a bias on every matrix, choices, sums and firings equal the CPU's, with and without a
/// shared expert and a threshold.
#[test]
fn resident_experts_compute_the_cpus_outputs_choices_and_firings() {
    let options = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
    let gpu = Gpu::open(&options).unwrap();
    let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    // A pass needs a model, but no part of it is computed here.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mixtral");
    let model = Model::open(&path, &LoadOptions::default()).unwrap();
    let mut seed = 3;
    let forms = [
        (Activation::Silu, true, false, None),
        (Activation::Silu, false, true, Some(0.3)),
        (Activation::Relu, true, true, None),
    ];
    for (activation, renormalise, with_shared, activation_threshold) in forms {
        let weights = ExpertWeights {
            router: linear(5, D, &mut seed),
            router_norm: None,
            scale: (!with_shared).then(|| vec![0.5, 2.0, 1.0, 1.5, 0.25]),
            selection_bias: None,
            latent: None,
            experts: (0..5).map(|_| ffn(true, 20, &mut seed)).collect(),
            shared: with_shared
                .then(|| Box::new(SharedExpert { gate: Some(linear(1, D, &mut seed)), ffn: ffn(true, 40, &mut seed) })),
            file_down: Vec::new(),
        };
        let experts = Experts { count: 5, used: 2, router: Router::softmax(renormalise), n_ff: 20 };
        let config = config(activation, Some(experts));

        let mut progress = |_, _| ControlFlow::Continue(());
        let uploader = Uploader::new(&gpu, &mut progress).unwrap();
        let mut loader = GpuLoader { gpu: &gpu, config: &config, chunk: 20, threshold_ratio: 1.0, uploader };
        let registers = Registers::new(&loader).unwrap();
        let [from, out] = [Register::Normed, Register::Out].map(|register| registers.get(register).clone());
        let sparse_activation = activation.is_sparse();
        let (threshold, fires_above) = (activation_threshold, activation_threshold);
        let rule = SkipRule { sparse_activation, gated: true, threshold, fires_above, ..SkipRule::default() };
        let inputs = ExpertRegisters { registers: &registers, from: &from, router_from: None };
        let ops = ResidentExperts::new(&mut loader, None, &weights, rule, &[3, 0, 4, 1, 2], inputs).unwrap();
        loader.uploader.finish().unwrap();
        let bytes = (20 * pitch(D) * 4) as u64;
        let mut segment = Segment::new(&gpu, RingBytes { up: bytes, down: bytes }, 1, u64::MAX).unwrap();
        let mut log = FiringLog::new(&gpu, (ops.logged_words() * 20 * 4) as u64).unwrap();
        let modes = [Sparsity::Dense, Sparsity::Exact, Sparsity::Threshold];
        for (tokens, sparsity) in [1, 3, 20].into_iter().flat_map(|tokens| modes.map(|mode| (tokens, mode))) {
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let mut wanted = vec![0.0; x.len()];
            let (mut on_cpu, mut on_gpu) = (Seen::default(), Seen::default());
            let ffn = Ffn::Experts(weights.clone());
            let mut task = task(&config, &ffn, &x, sparsity);
            task.activation_threshold = activation_threshold;
            LayerFfn::default().run(&cpu, &task, &mut wanted, &mut on_cpu).unwrap();

            let mut rows = vec![0.0_f32; tokens * pitch(D)];
            rows.chunks_exact_mut(pitch(D)).zip(x.chunks_exact(D)).for_each(|(row, x)| row[..D].copy_from_slice(x));
            segment.begin(&[(bytemuck::cast_slice(&rows), &from, 0)]).unwrap();
            log.clear();
            let ids = vec![0; tokens];
            let mut pass = Pass { sparsity, ..Pass::new(&model, &ids, &mut on_gpu) };
            ops.route_late(segment.recorder(), tokens, None);
            ExpertPass::new(&ops, &pass, false).record_whole(&mut segment, &mut pass, 0, &mut log).unwrap();
            assert!(log.read_back(&mut segment));
            let piece = (&out, 0, (tokens * pitch(D) * 4) as u64);
            let got = segment.read(&[piece], bytemuck::pod_collect_to_vec::<u8, f32>).unwrap();
            log.collect(&segment);
            let entry = &log.entries[0];
            let places = entry.experts.unwrap();
            let logged = LoggedExperts {
                pairs: log.words(entry.masks),
                ids: log.words(places.ids),
                shared: places.shared.map(|shared| log.words(shared)),
                streamed: places.streamed,
            };
            ops.add_fired(&logged, tokens, &mut on_gpu.fired, &mut on_gpu.chosen);
            assert_eq!(on_gpu, on_cpu, "{tokens} tokens, {activation}");
            assert!(on_gpu.fired.iter().any(|word| *word != 0));
            for (got, wanted) in got.chunks_exact(pitch(D)).zip(wanted.chunks_exact(D)) {
                let error = got.iter().zip(wanted).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(error <= 1e-4, "{tokens} tokens, shared: {with_shared}: {error}");
            }
        }
    }
}
