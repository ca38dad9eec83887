//! MoE models: reports on the experts that tokens choose, on every processor.
#![allow(clippy::unwrap_used)]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    device::GpuLoad,
    gpu::{AdapterChoice, GpuOptions},
    hybrid::HybridProcessor,
    model::{Activation, Ffn, LoadOptions, Model, mask},
    placement::Placement,
    runtime::{Forward, KvType, LayerFiring, Outputs, Probe, Sparsity},
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Prompt, Request, Sampling, SessionOptions, SparsityChoice,
    },
    telemetry::neurons::{LayerNeurons, NeuronShape, Watch, neurons_of},
};
use thermocline_tests::{
    events,
    golden::Expected,
    gpu::{FULL, forward, paced, shared},
    wait::{LONGEST, eventually},
};

/// Number of experts of the fixture, experts per token, and neurons per expert.
const EXPERTS: usize = 4;
const USED: usize = 2;
const WIDTH: usize = 160;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral")
}

fn engine(device: DeviceChoice, activation: Option<Activation>, chunk: usize) -> Engine {
    let options = EngineOptions {
        chunk,
        kv_type: KvType::F32,
        activation,
        device,
        sparsity: SparsityChoice::Mode(Sparsity::Dense),
        cpu: CpuOptions { threads: Some(2), ..CpuOptions::default() },
        ..EngineOptions::default()
    };
    let engine = Engine::open(&folder(), options).unwrap();
    let there = || engine.resident().is_some_and(|held| held.hot.iter().all(|hot| mask::count(hot) == EXPERTS));
    eventually("a settled device", || matches!(engine.device(), DeviceStatus::Cpu { reason: None }) || there());
    engine
}

fn gpu() -> DeviceChoice {
    DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() })
}

/// Runs a request to its end. Returns the tokens.
fn generate(engine: &Engine, prompt: Vec<u32>, tokens: usize) -> Vec<u32> {
    let session = engine.session(SessionOptions::default()).unwrap();
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens(prompt))
    };
    events::tokens(&session, request)
}

/// The neurons of each layer are ordered by expert. Every token chooses the experts of the
/// reference. All neurons of chosen experts fire and no others, because this activation is never
/// exactly zero.
#[test]
fn expert_choices_match_the_reference_on_cpu_and_gpu() {
    let expected = Expected::read(&folder().join("expected.safetensors"));
    let (ids, router) = (expected.ids("input_ids"), expected.i32("router_top").unwrap());
    for (device, chunk) in [(DeviceChoice::Cpu, 512), (DeviceChoice::Cpu, 5), (gpu(), 512), (gpu(), 7), (gpu(), 1)] {
        let on_gpu = matches!(device, DeviceChoice::Gpu(_));
        let engine = engine(device, None, chunk);
        assert_eq!(matches!(engine.device(), DeviceStatus::Gpu(_)), on_gpu, "{:?}", engine.device());
        let (board, shape) = (engine.neurons(), engine.neurons().shape());
        assert_eq!((shape.experts(0), shape.groups(1), shape.neurons(1)), (EXPERTS, EXPERTS, EXPERTS * WIDTH));
        generate(&engine, ids.clone(), 1);
        let tokens = board.tokens(0..u64::MAX);
        assert_eq!(tokens.len(), ids.len());
        let mut times = vec![vec![0u32; EXPERTS]; shape.layers()];
        for (t, token) in tokens.iter().enumerate() {
            for (layer, times) in times.iter_mut().enumerate() {
                let mut chosen: Vec<usize> =
                    router[(layer * ids.len() + t) * USED..][..USED].iter().map(|expert| *expert as usize).collect();
                chosen.sort_unstable();
                chosen.iter().for_each(|expert| times[*expert] += 1);
                assert_eq!(neurons_of(token.chosen(shape, layer).unwrap()).collect::<Vec<_>>(), chosen);
                let wanted: Vec<usize> = chosen.iter().flat_map(|expert| shape.group(layer, *expert)).collect();
                let fired: Vec<usize> = neurons_of(token.fired(shape, layer).unwrap()).collect();
                assert_eq!(fired, wanted, "token {t}, layer {layer}, chunks of {chunk}");
                let figures = token.layers[layer];
                assert_eq!((figures.fired as usize, figures.experts), (USED * WIDTH, Some(USED as u32)));
                assert_eq!(figures.hot, if on_gpu { figures.fired } else { 0 });
            }
            assert_eq!(token.total().cpu_bytes > 0, !on_gpu);
        }
        for (layer, times) in times.iter().enumerate() {
            let tally = board.tally(layer);
            assert_eq!((tally.tokens, &tally.chosen), (ids.len() as u64, times), "chunks of {chunk}");
            assert!((0..EXPERTS).all(|e| tally.counts[e * WIDTH] == times[e]));
            let frequencies = engine.frequencies(layer).unwrap();
            assert_eq!((frequencies.values.len(), frequencies.experts.len()), (EXPERTS * WIDTH, EXPERTS));
            let frequency = |times: u32| (f64::from(times) / ids.len() as f64) as f32;
            assert!(frequencies.experts.iter().zip(times).all(|(got, times)| *got == frequency(*times)));
        }
    }
}

#[test]
fn recording_does_not_change_tokens() {
    let prompt: Vec<u32> = (5..25).collect();
    for activation in [None, Some(Activation::Relu)] {
        let mut answers = Vec::new();
        for device in [DeviceChoice::Cpu, gpu()] {
            let engine = engine(device, activation, 16);
            for watch in [Watch::Off, Watch::Firing, Watch::Strength] {
                engine.neurons().set_watch(watch);
                answers.push(generate(&engine, prompt.clone(), 24));
            }
            let token = engine.neurons().latest().unwrap();
            let (fired, all) = (token.total().fired as usize, 2 * USED * WIDTH);
            assert!(fired > 0 && (fired == all) == activation.is_none(), "{fired} of {all}");
        }
        assert!(answers.iter().all(|answer| answer.len() == 24 && *answer == answers[0]), "{answers:?}");
    }
}

/// Also tests modes that make down projections of other models neuron-major. A device does not
/// support this for experts.
#[test]
fn rectified_moe_models_load_onto_a_device() {
    let adapter = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
    for sparsity in [SparsityChoice::Auto, SparsityChoice::Mode(Sparsity::Exact)] {
        let options = EngineOptions {
            activation: Some(Activation::Relu),
            device: DeviceChoice::Gpu(adapter.clone()),
            sparsity,
            ..EngineOptions::default()
        };
        let engine = Engine::open(&folder(), options).unwrap();
        assert_eq!(engine.sparsity().mode, Sparsity::Exact, "{}", engine.sparsity().reason);
        let status = engine.wait_for_device(LONGEST);
        assert!(matches!(status, DeviceStatus::Gpu(_)), "{sparsity:?}: {status:?}");
        assert_eq!(generate(&engine, (5..25).collect(), 8).len(), 8);
    }
}

/// Reports on each layer of each chunk: layer, tokens, firing neurons and chosen experts.
#[derive(Default)]
struct Heard(Vec<(usize, usize, Vec<u32>, Vec<u32>)>);

impl Probe for Heard {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let chosen = firing.chosen.unwrap_or_default().to_vec();
        self.0.push((firing.layer, firing.tokens, firing.fired.to_vec(), chosen));
    }
}

fn cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Float }).unwrap()
}

fn relu() -> Arc<Model> {
    let options = LoadOptions { activation: Some(Activation::Relu), ..LoadOptions::default() };
    Arc::new(Model::open(&folder(), &options).unwrap())
}

/// More than half of the neurons are zero. Firings equal those of the scalar CPU wherever the
/// experts are, for prompts and tokens.
#[test]
fn placements_of_experts_do_not_change_firings() {
    let (gpu, model) = (shared(FULL), relu());
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 384).collect();
    let hear = |forward: &mut Forward| {
        let (mut heard, mut kv) = (Heard::default(), forward.kv_cache(ids.len(), KvType::F32).unwrap());
        forward.run(&ids[..33], &mut kv, Outputs::None, &mut heard).unwrap();
        for id in &ids[33..] {
            forward.top(&[*id], &mut kv, 4, &mut heard).unwrap();
        }
        heard.0
    };
    let at = |first: usize, hot: &[u32]| {
        let hot = (0..2).map(|layer| if layer < first { Vec::new() } else { hot.to_vec() }).collect();
        Placement { first_resident: first, hot, head: false }
    };
    let placed = |placement: &Placement| {
        let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let processor = HybridProcessor::load(gpu, cpu(), &model, placement, &load, &mut go_on).unwrap();
        let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
        forward.set_chunk(16);
        forward
    };
    let wanted = hear(&mut placed(&Placement::cpu(2)));
    let words = mask::words(EXPERTS * WIDTH);
    for (_, tokens, fired, chosen) in &wanted {
        assert_eq!((fired.len(), chosen.len()), (tokens * words, *tokens));
        for (fired, chosen) in fired.chunks_exact(words).zip(chosen) {
            assert_eq!(chosen.count_ones() as usize, USED);
            assert!(neurons_of(fired).all(|neuron| chosen >> (neuron / WIDTH) & 1 == 1));
            assert!((1..USED * WIDTH).contains(&mask::count(fired)));
        }
    }
    let some = [at(0, &[1]), at(0, &[2, 0]), at(1, &[3, 1, 2])];
    for placement in [at(0, &[0, 1, 2, 3]), at(1, &[0, 1, 2, 3]), at(0, &[]), at(1, &[])].into_iter().chain(some) {
        let heard = hear(&mut placed(&placement));
        assert_eq!(heard.len(), wanted.len());
        let mut differ = 0;
        for (heard, wanted) in heard.iter().zip(&wanted) {
            assert_eq!((heard.0, heard.1, &heard.3), (wanted.0, wanted.1, &wanted.3), "{placement:?}");
            differ += heard.2.iter().zip(&wanted.2).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        }
        // Of 25,000 neurons, a few near zero may differ by rounding.
        assert!(differ <= 4, "{placement:?}: {differ} neurons differ");
    }
}

/// Bytes that the CPU read for each layer of each token, and the number of firing neurons of each
/// expert.
#[derive(Default)]
struct Read(Vec<(u64, Vec<usize>)>);

impl Probe for Read {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let fired = |expert: usize| mask::count(&firing.fired[expert * WIDTH / 32..][..WIDTH / 32]);
        let chosen = neurons_of(firing.chosen.unwrap()).map(fired);
        self.0.push((firing.cpu_bytes, chosen.collect()));
    }
}

/// For a single token, all gate rows of the chosen experts are read. Up and down rows are read only
/// for neurons that fire or exceed the activation threshold. Every instruction set reads exactly
/// these bytes. In `exact` mode the answers equal the dense model's.
#[test]
fn moe_token_reads_the_rows_of_firing_neurons_only() {
    let ids: Vec<u32> = (0..24).map(|i| (i * 53 + 7) % 384).collect();
    let cases = [
        (Activation::Relu, None, Sparsity::Exact),
        (Activation::DRelu, None, Sparsity::Exact),
        (Activation::Silu, Some(0.08), Sparsity::Threshold),
    ];
    for (activation, threshold, mode) in cases {
        let options = LoadOptions { activation: Some(activation), ..LoadOptions::default() };
        let mut model = Model::open(&folder(), &options).unwrap();
        model.weights.layers.iter_mut().for_each(|layer| layer.activation_threshold = threshold);
        let model = Arc::new(model.neuron_major(cpu().pool(), &mut |_, _| ControlFlow::Continue(())).unwrap().0);
        let Ffn::Experts(moe) = &model.weights.layers[0].ffn else { panic!("not an MoE layer") };
        let row = moe.experts[0].up.weight.row_bytes() as u64;
        let router = moe.router.weight.data().len() as u64;
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let run = |mode: Sparsity| {
                let options = CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() };
                let mut forward = Forward::new(Arc::clone(&model), Cpu::new(&options).unwrap());
                forward.set_sparsity(mode);
                let (mut kv, mut read) = (forward.kv_cache(ids.len(), KvType::F32).unwrap(), Read::default());
                let mut logits = Vec::new();
                for id in &ids {
                    logits.extend_from_slice(forward.run(&[*id], &mut kv, Outputs::Last, &mut read).unwrap());
                }
                (logits, read.0)
            };
            let ((dense, all), (sparse, some)) = (run(Sparsity::Dense), run(mode));
            let largest = dense.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let off = dense.iter().zip(&sparse).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest;
            assert_eq!(off > 1e-4, mode == Sparsity::Threshold, "{activation} {isa} {threads}: {off}");
            let mut fewer = 0;
            for ((dense, _), (bytes, fired)) in all.iter().zip(&some) {
                assert_eq!(fired.len(), USED);
                // If most rows of a matrix are needed, all are read.
                let ups = |fires: usize| if fires * 10 > WIDTH * 6 { WIDTH } else { fires };
                let rows: usize = fired.iter().map(|fires| WIDTH + ups(*fires) + fires).sum();
                let least = router + rows as u64 * row;
                // dReLU may also read neurons whose up row is not positive, which do not fire.
                let some_more = activation == Activation::DRelu && *bytes >= least;
                assert!(*bytes == least || some_more, "{activation}: {bytes} read, {least} needed");
                fewer += usize::from(bytes < dense);
            }
            assert_eq!(fewer, some.len(), "{activation} {isa}");
        }
    }
}

/// Submissions stay the same with a probe of firing neurons.
#[test]
fn probed_moe_token_submits_once_and_creates_no_gpu_objects() {
    let gpu = paced(1);
    let model = relu();
    let mut forward = forward(&gpu, &model, 32);
    let mut kv = forward.kv_cache(200, KvType::F16).unwrap();
    let prompt: Vec<u32> = (0..60).collect();
    forward.run(&prompt, &mut kv, Outputs::Last, &mut Heard::default()).unwrap();
    let counts = || (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
    for token in 0..10 {
        let (before, mut heard) = (counts(), Heard::default());
        forward.top(&[token], &mut kv, 40, &mut heard).unwrap();
        assert_eq!(counts(), (before.0 + 1, before.1, before.2), "submits, buffers, bind groups");
        assert_eq!(heard.0.iter().map(|told| told.0).collect::<Vec<_>>(), [0, 1]);
    }
}

/// The neuron shape locates each expert's neurons and has the model's sizes.
#[test]
fn neuron_shape_has_the_models_experts() {
    let model = relu();
    let moe = LayerNeurons::Experts { experts: EXPERTS, width: WIDTH, shared: 0 };
    assert_eq!(model.neuron_shape(), NeuronShape::of([moe; 2]));
    assert_eq!(model.neuron_shape().member(1, 161), Some((1, 1)));
}
