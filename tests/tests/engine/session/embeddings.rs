//! Embeddings equal the reference's hidden states behind the final norm, pooled, on every
//! processor.

use thermocline_engine::{
    gpu::{AdapterChoice, GpuOptions},
    model::{LoadOptions, Model, NormKind},
    runtime::Sparsity,
    session::{DeviceChoice, Pooling, SparsityChoice, StateReading},
};
use thermocline_tests::engines::alike;

use super::*;

fn embedding(engine: &Engine, ids: &[u32], pooling: Pooling) -> Vec<f32> {
    let request =
        Request { reading: Some(StateReading::Embedding(Some(pooling))), ..Request::new(Prompt::Tokens(ids.to_vec())) };
    let mut found = None;
    for event in session(engine).generate(request) {
        match event {
            Event::Embedding(embedding) => assert!(found.replace(embedding).is_none()),
            Event::Done { reason, stats } => {
                assert_eq!(
                    (reason, stats.generated_tokens, stats.prompt_tokens),
                    (StopReason::MaxTokens, 0, ids.len())
                );
            }
            Event::Token { .. } => panic!("a token nothing asked for"),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    found.expect("an embedding")
}

/// Returns options for dense passes on `device`, in a context length that every model has learned.
fn dense(device: DeviceChoice) -> EngineOptions {
    EngineOptions { context: Some(64), ..alike(SparsityChoice::Mode(Sparsity::Dense), device) }
}

/// Returns a prompt and a model's recorded hidden states, pooled.
fn recorded(name: &str, pooling: Pooling) -> (Vec<u32>, Vec<f32>) {
    let expected = Expected::read(&model(name).join("expected.safetensors"));
    let (ids, hidden) = (expected.ids("input_ids"), expected.f32("hidden"));
    let model = Model::open(&model(name), &LoadOptions::default()).unwrap();
    let d = model.config.d_model;
    let (norm, eps) = (&model.weights.output_norm, f64::from(model.config.norm_eps));
    let mut sum = vec![0.0f64; d];
    let last = &hidden[hidden.len() - ids.len() * d..];
    let first = if pooling == Pooling::Last { ids.len() - 1 } else { 0 };
    for row in last.chunks_exact(d).skip(first) {
        let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let mean = if model.config.norm == NormKind::Layer { row.iter().sum::<f64>() / d as f64 } else { 0.0 };
        let square = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / d as f64;
        for (at, x) in row.iter().enumerate() {
            let bias = norm.bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
            sum[at] += (x - mean) / (square + eps).sqrt() * f64::from(norm.weight[at]) + bias;
        }
    }
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    (ids, sum.iter().map(|x| (x / length) as f32).collect())
}

fn on_gpu(budget: Option<u64>) -> DeviceChoice {
    DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() })
}

#[track_caller]
fn assert_close(got: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let worst = got.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-4, "{what}: off by {worst}");
}

#[test]
fn embeddings_are_the_references_hidden_states_on_cpu_gpu_and_split() {
    for name in ["llama-silu-gqa", "opt", "qwen3_5", "mixtral"] {
        for pooling in [Pooling::Mean, Pooling::Last] {
            let (ids, wanted) = recorded(name, pooling);
            let cpu = Engine::open(&model(name), dense(DeviceChoice::Cpu)).unwrap();
            assert_close(&embedding(&cpu, &ids, pooling), &wanted, &format!("{name} {pooling:?} on the CPU"));
        }
        let (ids, wanted) = recorded(name, Pooling::Mean);
        let weights = Model::open(&model(name), &LoadOptions::default()).unwrap().checkpoint.tensor_bytes();
        for budget in [None, Some(weights + (2 << 20)), Some(weights / 2 + (1 << 20)), Some(0)] {
            let engine = Engine::open(&model(name), dense(on_gpu(budget))).unwrap();
            engine.wait_for_device(LONGEST);
            let what = format!("{name} with a budget of {budget:?}: {:?}", engine.device());
            assert_close(&embedding(&engine, &ids, Pooling::Mean), &wanted, &what);
        }
    }
}

#[test]
fn last_hidden_state_leads_to_the_logits_also_of_several_streams() {
    for name in ["llama-silu-gqa", "gemma3n"] {
        let expected = Expected::read(&model(name).join("expected.safetensors"));
        let (ids, logits) = (expected.ids("input_ids"), expected.f32("logits"));
        for device in [DeviceChoice::Cpu, on_gpu(None)] {
            let engine = Engine::open(&model(name), dense(device)).unwrap();
            engine.wait_for_device(LONGEST);
            let config = engine.config();
            let (d, vocab) = (config.d_model, config.n_vocab);
            let state = embedding(&engine, &ids, Pooling::Last);
            let mut row = vec![0.0; d];
            let output = &engine.model().weights.output.weight;
            let product = |id: usize, row: &mut [f32]| {
                output.dequantise_row(id, row);
                row.iter().zip(&state).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            let products: Vec<f64> = (0..vocab).map(|id| product(id, &mut row)).collect();
            let uncapped = |logit: &f32| match config.final_softcap {
                Some(cap) => f64::from(cap) * (f64::from(*logit) / f64::from(cap)).atanh(),
                None => f64::from(*logit),
            };
            let wanted: Vec<f64> = logits[logits.len() - vocab..].iter().map(uncapped).collect();
            // The embedding has length 1, so logits are equal up to one factor.
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let cosine = dot(&products, &wanted) / (dot(&products, &products) * dot(&wanted, &wanted)).sqrt();
            assert!(cosine > 1.0 - 1e-6, "{name}: {cosine}");
        }
    }
}

#[test]
fn embeddings_do_not_depend_on_chunks_and_leave_later_answers_as_they_are() {
    let ids: Vec<u32> = (5..29).collect();
    let whole = embedding(&engine(), &ids, Pooling::Mean);
    let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 5, ..options() }).unwrap();
    assert_close(&embedding(&engine, &ids, Pooling::Mean), &whole, "chunks of 5");
    let session = session(&engine);
    let wanted = generate(&session, greedy(&ids, 8)).ids;
    let request = Request { reading: Some(StateReading::Embedding(None)), ..Request::new(Prompt::Tokens(ids.clone())) };
    assert!(session.generate(request).iter().any(|event| matches!(event, Event::Embedding(_))));
    assert_eq!(generate(&session, greedy(&ids, 8)).ids, wanted);
    let long =
        Request { reading: Some(StateReading::Embedding(None)), ..Request::new(Prompt::Tokens(vec![5; 100_000])) };
    let error = answer(session.generate(long)).unwrap_err();
    assert!(matches!(error, Error::ContextFull { .. }), "{error}");
}
