//! Firing neurons as a running engine records them.

#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use thermocline_engine::{
    cpu::CpuOptions,
    gpu::{AdapterChoice, GpuOptions},
    runtime::{KvType, Sparsity},
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Prompt, Request, Sampling, SessionOptions, SparsityChoice,
    },
    telemetry::neurons::{LayerTally, TokenTrace, Watch, neurons_of},
};
use thermocline_tests::{
    events,
    golden::Expected,
    wait::{LONGEST, eventually},
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu")
}

fn engine(chunk: usize) -> Engine {
    let options = EngineOptions {
        chunk,
        kv_type: KvType::F32,
        cpu: CpuOptions { threads: Some(2), ..CpuOptions::default() },
        ..EngineOptions::default()
    };
    Engine::open(&folder(), options).unwrap()
}

/// Opens the engine on a GPU that computes all of every FFN, in the file's order of neurons.
fn engine_on_gpu(chunk: usize) -> Engine {
    let adapter = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
    let options = EngineOptions {
        chunk,
        kv_type: KvType::F32,
        device: DeviceChoice::Gpu(adapter),
        sparsity: SparsityChoice::Mode(Sparsity::Dense),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&folder(), options).unwrap();
    let status = engine.wait_for_device(LONGEST);
    assert!(matches!(status, DeviceStatus::Gpu(_)), "{status:?}");
    engine
}

fn request(prompt: Vec<u32>, tokens: usize) -> Request {
    let sampling = Sampling::greedy();
    Request { sampling, max_tokens: Some(tokens), ignore_eos: true, ..Request::new(Prompt::Tokens(prompt)) }
}

/// Runs a request to its end. Returns the tokens.
fn generate(engine: &Engine, prompt: Vec<u32>, tokens: usize) -> Vec<u32> {
    let session = engine.session(SessionOptions::default()).unwrap();
    events::tokens(&session, request(prompt, tokens))
}

/// Returns a prompt and the reference's firings for it, `[layers, T, n_ff]`.
fn recorded() -> (Vec<u32>, Vec<u8>) {
    let expected = Expected::read(&folder().join("expected.safetensors"));
    (expected.ids("input_ids"), expected.u8("ffn_active").unwrap())
}

fn fired(engine: &Engine, token: &TokenTrace, layer: usize) -> Vec<usize> {
    neurons_of(token.fired(engine.neurons().shape(), layer).unwrap()).collect()
}

#[test]
fn prompt_firings_match_the_reference_for_any_chunk() {
    let (ids, active) = recorded();
    for chunk in [512, 5, 1] {
        let engine = engine(chunk);
        let shape = engine.neurons().shape().clone();
        let (layers, n_ff) = (engine.config().n_layer(), engine.config().n_ff);
        assert_eq!((shape.layers(), shape.neurons(0), shape.total()), (layers, n_ff, layers * n_ff));
        generate(&engine, ids.clone(), 1);
        let board = engine.neurons();
        assert_eq!(board.kept().tokens, 0..ids.len() as u64);
        for (t, token) in board.tokens(0..u64::MAX).iter().enumerate() {
            assert_eq!((token.token, token.position, token.decoded), (ids[t], t, false));
            for layer in 0..layers {
                let row = &active[(layer * ids.len() + t) * n_ff..][..n_ff];
                let want: Vec<usize> = (0..n_ff).filter(|n| row[*n] != 0).collect();
                assert_eq!(fired(&engine, token, layer), want, "chunks of {chunk}, token {t}, layer {layer}");
                let figures = token.layers[layer];
                assert_eq!((figures.fired as usize, figures.hot, figures.cold() as usize), (want.len(), 0, want.len()));
            }
            assert!(token.total().cpu_bytes > 0);
        }
        for layer in 0..layers {
            let tally = board.tally(layer);
            let counts: Vec<u32> = (0..n_ff)
                .map(|n| (0..ids.len()).map(|t| u32::from(active[(layer * ids.len() + t) * n_ff + n])).sum())
                .collect();
            assert_eq!((tally.tokens, tally.counts), (ids.len() as u64, counts), "chunks of {chunk}, layer {layer}");
        }
    }
}

/// A device computes a prompt in the file's order of neurons. The firings equal the reference,
/// except for neurons near zero, and all neurons are hot.
#[test]
fn gpu_firings_of_whole_ffns_match_the_reference() {
    let (ids, active) = recorded();
    let near: Vec<i32> =
        Expected::read(&folder().join("expected.safetensors")).i32("ffn_near_zero").unwrap_or_default();
    for chunk in [512, 5, 1] {
        let engine = engine_on_gpu(chunk);
        let (layers, n_ff) = (engine.config().n_layer(), engine.config().n_ff);
        generate(&engine, ids.clone(), 1);
        let tokens = engine.neurons().tokens(0..u64::MAX);
        assert_eq!(tokens.len(), ids.len());
        for (t, token) in tokens.iter().enumerate() {
            for layer in 0..layers {
                let first = (layer * ids.len() + t) * n_ff;
                let fired = token.fired(engine.neurons().shape(), layer).unwrap();
                for n in (0..n_ff).filter(|n| !near.contains(&((first + n) as i32))) {
                    let fires = fired[n / 32] >> (n % 32) & 1 == 1;
                    assert_eq!(fires, active[first + n] != 0, "chunks of {chunk}: {t}, {layer}, {n}");
                }
                let figures = token.layers[layer];
                assert_eq!((figures.hot, figures.cpu_bytes), (figures.fired, 0), "chunks of {chunk}");
                assert!(figures.fired > 0);
            }
        }
    }
}

#[test]
fn decode_firings_are_equal_in_dense_and_exact_mode() {
    let (ids, _) = recorded();
    let engine = engine(512);
    let run = |mode: Sparsity| {
        engine.set_sparsity(SparsityChoice::Mode(mode)).unwrap();
        let first = engine.neurons().kept().tokens.end;
        let tokens = generate(&engine, ids.clone(), 12);
        let all = engine.neurons().tokens(first..u64::MAX);
        // The last chosen token is not computed.
        assert_eq!(all.iter().filter(|token| token.decoded).count(), 11);
        let decoded: Vec<TokenTrace> = all.into_iter().filter(|token| token.decoded).collect();
        assert_eq!(decoded.iter().map(|token| token.token).collect::<Vec<_>>(), &tokens[..11]);
        assert_eq!(decoded[0].position, ids.len());
        (0..11).map(|t| (0..2).map(|layer| fired(&engine, &decoded[t], layer)).collect()).collect::<Vec<Vec<_>>>()
    };
    let dense = run(Sparsity::Dense);
    assert_eq!(run(Sparsity::Exact), dense);
    assert!(dense.iter().flatten().any(|fired| !fired.is_empty()));

    let (board, before) = (engine.neurons(), engine.neurons().kept());
    board.set_watch(Watch::Off);
    generate(&engine, ids.clone(), 3);
    assert_eq!(board.kept(), before);
    board.set_watch(Watch::Strength);
    generate(&engine, ids, 3);
    let token = board.latest().unwrap();
    let masks = token.masks.as_ref().unwrap();
    let shape = board.shape();
    assert_eq!((masks.strength.len(), masks.greatest.len()), (shape.total(), shape.layers()));
    for layer in 0..shape.layers() {
        let strength = &masks.strength[shape.range(layer)];
        let strong: Vec<usize> = (0..strength.len()).filter(|n| strength[*n] > 0).collect();
        assert_eq!(strong, fired(&engine, &token, layer), "whatever fires has a strength");
        assert!(masks.greatest[layer] > 0.0 && strength.contains(&255));
    }
}

#[test]
fn board_readers_do_not_change_tokens() {
    let (ids, _) = recorded();
    let undisturbed = generate(&engine(512), ids.clone(), 60);
    let engine = engine(512);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (board, mut tally) = (engine.neurons(), LayerTally::default());
                while !done.load(SeqCst) {
                    let all = board.tokens(0..u64::MAX);
                    assert!(all.windows(2).all(|two| two[0].index + 1 == two[1].index));
                    board.read_tally(0, &mut tally);
                    assert!(tally.counts.iter().all(|count| u64::from(*count) <= tally.tokens));
                }
            });
        }
        assert_eq!(generate(&engine, ids.clone(), 60), undisturbed);
        done.store(true, SeqCst);
    });
    // Readers may delay records, which arrive once the engine is idle.
    let end = ids.len() as u64 + 59;
    eventually("all tokens", || engine.neurons().kept().tokens.end >= end);
    assert_eq!(engine.neurons().kept().tokens, 0..end);
}
