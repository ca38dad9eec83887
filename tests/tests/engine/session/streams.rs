//! Several streams at once. Each gives the tokens that it gives alone, in fewer passes. None
//! starves, and a common prefix is computed once.

use thermocline_engine::{
    cpu::InputPrecision,
    gpu::{AdapterChoice, GpuOptions},
    runtime::Sparsity,
    session::{DeviceChoice, DeviceStatus, Grammar, LogprobsRequest, SparsityChoice},
};

use super::*;

/// Returns options with float activations, so that only the order of sums can differ.
pub(super) fn float_options() -> EngineOptions {
    let cpu = CpuOptions { threads: Some(1), activations: InputPrecision::Float, ..CpuOptions::default() };
    EngineOptions { cpu, ..options() }
}

/// Returns prompts without a common beginning.
pub(super) fn prompts(engine: &Engine, n: usize) -> Vec<Vec<u32>> {
    let vocab = engine.config().n_vocab as u32;
    let id = |of: u32, at: u32| (at * at * 31 + at * 97 + of * 53 + 11) % vocab;
    (0..n as u32).map(|of| (0..5 + of * 5 % 13).map(|at| id(of, at)).collect()).collect()
}

/// Returns answers to simultaneous requests, each in its own session.
fn at_once(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let sessions: Vec<Session> = requests.iter().map(|_| session(engine)).collect();
    at_once_of(&sessions, requests)
}

/// Returns answers of `sessions` to simultaneous requests, one each.
fn at_once_of(sessions: &[Session], requests: &[Request]) -> Vec<Answer> {
    let events: Vec<_> = sessions.iter().zip(requests).map(|(it, request)| it.generate(request.clone())).collect();
    events.into_iter().map(|events| answer(events).unwrap()).collect()
}

/// Greedy texts of 1, 2, 4 and 8 streams equal those of each stream alone. Dense passes are shared.
/// Of sparse passes at least the first is shared, and its time decides whether the others are.
fn same_alone_and_at_once(engine: &Engine, what: &str) {
    let dense = engine.sparsity().mode == Sparsity::Dense;
    let requests: Vec<Request> = prompts(engine, 8).iter().map(|prompt| greedy(prompt, 24)).collect();
    let alone: Vec<Vec<u32>> = requests.iter().map(|it| generate(&session(engine), it.clone()).ids).collect();
    for n in [1, 2, 4, 8] {
        let most = if dense { 24 * n * 3 / 4 } else { 24 * n - (n - 1) };
        // A stream that starts after the others have ended shares no passes with them.
        eventually("shared passes", || {
            let before = engine.telemetry().decode_passes;
            let together = at_once(engine, &requests[..n]);
            let passes = engine.telemetry().decode_passes - before;
            for (at, (answer, alone)) in together.iter().zip(&alone).enumerate() {
                assert_eq!(answer.ids, *alone, "{what}: stream {at} of {n}");
            }
            n == 1 || passes as usize <= most
        });
    }
}

#[test]
fn texts_of_several_streams_are_those_of_each_alone() {
    // The models are dense, with a sliding window, MoE, with latent attention, recurrent, and with
    // several streams within the model.
    for name in
        ["llama-silu-gqa", "gemma3", "qwen3-moe", "deepseek-v2-lite", "nemotron-h", "qwen3-next", "lfm2", "gemma3n"]
    {
        let sparsity = SparsityChoice::Mode(Sparsity::Dense);
        let engine = Engine::open(&model(name), EngineOptions { sparsity, ..float_options() }).unwrap();
        same_alone_and_at_once(&engine, name);
    }
}

#[test]
fn texts_of_several_streams_are_the_same_in_exact_mode() {
    for name in ["llama-relu", "opt", "nemotron", "smallthinker"] {
        let sparsity = SparsityChoice::Mode(Sparsity::Exact);
        let engine = Engine::open(&model(name), EngineOptions { sparsity, ..float_options() }).unwrap();
        same_alone_and_at_once(&engine, name);
    }
}

#[test]
fn texts_of_several_streams_are_the_same_on_a_gpu() {
    for name in ["llama-relu", "gemma3", "nemotron-h", "qwen3-moe"] {
        let gpu = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
        let device = DeviceChoice::Gpu(gpu);
        let engine = Engine::open(&model(name), EngineOptions { device, chunk: 16, ..float_options() }).unwrap();
        assert!(matches!(engine.wait_for_device(LONGEST), DeviceStatus::Gpu(_)));
        let requests: Vec<Request> = prompts(&engine, 4).iter().map(|prompt| greedy(prompt, 10)).collect();
        let alone: Vec<Vec<u32>> = requests.iter().map(|it| generate(&session(&engine), it.clone()).ids).collect();
        let together: Vec<Vec<u32>> = at_once(&engine, &requests).into_iter().map(|it| it.ids).collect();
        assert_eq!(together, alone, "{name}");
    }
}

#[test]
fn a_cancelled_stream_does_not_disturb_the_others() {
    let engine = Engine::open(&model("nemotron-h"), float_options()).unwrap();
    let prompts = prompts(&engine, 4);
    let alone: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| generate(&session(&engine), greedy(prompt, 60)).ids).collect();
    let sessions: Vec<Session> = prompts.iter().map(|_| session(&engine)).collect();
    let start = engine.telemetry().generated_tokens;
    // The second stream continues until it is cancelled.
    let endless = |prompt| Request { on_full: ContextPolicy::Shift { keep: 0 }, max_tokens: None, ..greedy(prompt, 0) };
    let request = |at, prompt| if at == 1 { endless(prompt) } else { greedy(prompt, 60) };
    let asked = sessions.iter().zip(&prompts).enumerate();
    let events: Vec<_> = asked.map(|(at, (it, prompt))| it.generate(request(at, prompt))).collect();
    eventually("tokens", || engine.telemetry().generated_tokens > start + 40);
    sessions[1].cancel();
    let answers: Vec<Answer> = events.into_iter().map(|events| answer(events).unwrap()).collect();
    assert_eq!(answers[1].reason, StopReason::Cancelled);
    let known = answers[1].ids.len().min(60);
    assert_eq!(answers[1].ids[..known], alone[1][..known]);
    for at in [0, 2, 3] {
        assert_eq!(answers[at].ids, alone[at], "stream {at}");
    }
    // The cancelled session's cache matches its tokens.
    assert_eq!(generate(&sessions[1], greedy(&prompts[1], 60)).ids, alone[1]);
}

/// Every stream has its own grammar, penalties, seed and log probabilities.
#[test]
fn every_stream_has_its_own_sampler_and_grammar() {
    let engine = Engine::open(&model("llama-relu"), float_options()).unwrap();
    let prompts = prompts(&engine, 4);
    let mut requests = vec![
        drawn(&prompts[0], 20, 7),
        Request { grammar: Some(Grammar::Regex("[a-z ]{40,60}".to_owned())), ..greedy(&prompts[1], 20) },
        Request {
            sampling: Sampling { repeat_penalty: 1.4, ..Sampling::greedy() },
            logprobs: Some(LogprobsRequest { top: 3, prompt: false }),
            ..greedy(&prompts[2], 20)
        },
        greedy(&prompts[3], 20),
    ];
    requests[0].speculation = SpeculationMode::Off;
    let alone: Vec<Answer> = requests.iter().map(|it| generate(&session(&engine), it.clone())).collect();
    let together = at_once(&engine, &requests);
    for (at, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!((&together.ids, &together.text), (&alone.ids, &alone.text), "stream {at}");
    }
}

/// The common beginning with another session's prompt is copied, even while that session still
/// computes it.
#[test]
fn a_prefix_is_computed_once_for_all_sessions() {
    let shared: Vec<u32> = (0..200).map(|at| 3 + at * 7 % 90).collect();
    let requests: Vec<Request> = (0..4).map(|of| greedy(&[&shared[..], &[90 + of, 91 + of]].concat(), 8)).collect();
    for name in ["llama-silu-gqa", "gemma3", "deepseek-v2-lite"] {
        let options = EngineOptions { chunk: 64, ..float_options() };
        let alone: Vec<Vec<u32>> = requests
            .iter()
            .map(|it| generate(&session(&Engine::open(&model(name), options.clone()).unwrap()), it.clone()).ids)
            .collect();
        let engine = Engine::open(&model(name), options).unwrap();
        let sessions: Vec<Session> = requests.iter().map(|_| session(&engine)).collect();
        let together = at_once_of(&sessions, &requests);
        let ids: Vec<Vec<u32>> = together.iter().map(|it| it.ids.clone()).collect();
        assert_eq!(ids, alone, "{name}");
        let now = engine.telemetry();
        assert!(now.reused_tokens >= 3 * 200 && now.prompt_tokens <= 2 * 200, "{name}: {now:?}");
        // A later request copies the prefix from an idle session.
        let last = generate(&session(&engine), requests[1].clone());
        assert_eq!((last.ids, last.stats.reused_tokens), (alone[1].clone(), 201), "{name}");
    }
}

#[test]
fn a_recurrent_prefix_is_copied_as_of_a_snapshot() {
    let engine = Engine::open(&model("nemotron-h"), float_options()).unwrap();
    let prompt: Vec<u32> = (0..60).map(|at| 3 + at * 7 % 90).collect();
    let sessions = [session(&engine), session(&engine)];
    let [first, second] = sessions.each_ref().map(|it| generate(it, greedy(&prompt, 8)));
    assert_eq!(second.ids, first.ids);
    assert_eq!(second.stats.reused_tokens, 59);
}

/// Caches of idle sessions are freed for other sessions, the longest unused first. Requests wait
/// for room.
#[test]
fn caches_stay_within_their_budget() {
    let engine = Engine::open(&model("llama-relu"), options()).unwrap();
    let first = session(&engine);
    generate(&first, greedy(&prompts(&engine, 1)[0], 4));
    let one = engine.memory().kv;
    let kv_budget = Some(2 * one + one / 2);
    let engine = Engine::open(&model("llama-relu"), EngineOptions { kv_budget, ..options() }).unwrap();
    let prompts = prompts(&engine, 6);
    let alone: Vec<Vec<u32>> = {
        let engine = Engine::open(&model("llama-relu"), options()).unwrap();
        prompts.iter().map(|prompt| generate(&session(&engine), greedy(prompt, 40)).ids).collect()
    };
    let sessions: Vec<Session> = prompts.iter().map(|_| session(&engine)).collect();
    for _ in 0..2 {
        let events: Vec<_> =
            sessions.iter().zip(&prompts).map(|(it, prompt)| it.generate(greedy(prompt, 40))).collect();
        for (events, alone) in events.into_iter().zip(&alone) {
            assert_eq!(answer(events).unwrap().ids, *alone);
        }
    }
    assert!(engine.telemetry().batch <= 2);
    // The last used session still has its tokens, but the first has none.
    assert!(generate(&sessions[5], greedy(&prompts[5], 4)).stats.reused_tokens > 0);
    assert_eq!(generate(&sessions[0], greedy(&prompts[0], 4)).stats.reused_tokens, 0);
}
