//! Speculative decoding: drafts do not change tokens, and repetitive text takes fewer passes.

use std::path::Path;

use thermocline_engine::{
    gpu::{AdapterChoice, GpuOptions},
    runtime::Sparsity,
    session::{DeviceChoice, DeviceStatus, SparsityChoice},
};

use thermocline_tests::served::storyteller;

use super::*;

fn without(request: Request) -> Request {
    Request { speculation: SpeculationMode::Off, ..request }
}

/// Returns a prompt that repeats the same eight tokens.
fn repeating() -> Vec<u32> {
    (0..48).map(|at| 20 + at % 8).collect()
}

/// Opens a model whose greedy text repeats itself.
fn circling() -> Engine {
    Engine::open(&model("gemma2"), options()).unwrap()
}

/// Compares answers of new sessions with and without drafts. Returns the statistics with drafts.
fn same_with_and_without(engine: &Engine, request: Request, what: &str) -> GenerationStats {
    let plain = generate(&session(engine), without(request.clone()));
    let drafted = generate(&session(engine), request);
    assert_eq!((&drafted.ids, &drafted.text), (&plain.ids, &plain.text), "{what}");
    assert_eq!(drafted.reason, plain.reason, "{what}");
    let counts = |stats: &GenerationStats| (stats.generated_tokens, stats.decode_steps, stats.context_used);
    assert_eq!(counts(&drafted.stats), counts(&plain.stats), "{what}");
    assert_eq!((plain.stats.drafted_tokens, plain.stats.accepted_tokens), (0, 0), "{what}");
    drafted.stats
}

#[test]
fn greedy_and_drawn_tokens_are_the_same_with_drafts() {
    let mut drafted = 0;
    for name in ["llama-relu", "gemma2", "qwen3-moe"] {
        let engine = Engine::open(&model(name), options()).unwrap();
        let mut requests = vec![greedy(&repeating(), 60), greedy(&expected(name, "input_ids"), 60)];
        requests.extend((0..20).map(|seed| drawn(&repeating(), 40, seed)));
        // Sampling from few tokens accepts drafts often.
        requests.extend((0..20).map(|seed| {
            let sampling = Sampling { top_k: 2, temperature: 1.0, seed: Some(seed), ..Sampling::default() };
            Request { sampling, ..greedy(&repeating(), 60) }
        }));
        for (at, request) in requests.into_iter().enumerate() {
            drafted += same_with_and_without(&engine, request, &format!("{name}, request {at}")).drafted_tokens;
        }
    }
    assert!(drafted > 500, "{drafted}");
}

/// In a pass of several tokens, the logits of each token get the penalties of the tokens before it.
#[test]
fn penalties_see_the_tokens_before_each_draft() {
    let engine = engine();
    let sampling = Sampling { repeat_penalty: 1.3, frequency_penalty: 0.2, ..Sampling::greedy() };
    same_with_and_without(&engine, Request { sampling, ..greedy(&repeating(), 80) }, "penalties");
}

#[test]
fn text_that_repeats_is_drafted_and_drawn() {
    let engine = circling();
    let stats = same_with_and_without(&engine, greedy(&repeating(), 150), "circles");
    assert!(stats.accepted_tokens > 20 && stats.accepted_tokens <= stats.drafted_tokens, "{stats:?}");
}

#[test]
fn answers_end_where_they_do_without_drafts() {
    let engine = circling();
    let text = generate(&session(&engine), greedy(&repeating(), 80)).text;
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let stopped = Request { stop: vec![stop], ..greedy(&repeating(), 80) };
    same_with_and_without(&engine, stopped, "a stop string");
    same_with_and_without(&engine, Request { ignore_eos: false, ..greedy(&repeating(), 80) }, "the end of the text");
    for most in [1, 2, 3, 7] {
        same_with_and_without(&engine, greedy(&repeating(), most), "few tokens");
    }
    // One context becomes full during drafts, another shifts.
    for on_full in [ContextPolicy::Stop, ContextPolicy::Shift { keep: 4 }] {
        let request = Request { on_full, max_tokens: Some(90), ..greedy(&repeating(), 0) };
        let [plain, drafted] =
            [without(request.clone()), request].map(|request| generate(&session_of(&engine, 80), request));
        assert_eq!((plain.ids, plain.reason), (drafted.ids, drafted.reason), "{on_full:?}");
    }
}

/// The cache contains only accepted tokens, and the next turn continues from them.
#[test]
fn next_turns_reuse_the_drawn_tokens() {
    let engine = circling();
    let one = session(&engine);
    let first = generate(&one, greedy(&repeating(), 40));
    assert!(first.stats.drafted_tokens > 0);
    let longer: Vec<u32> = repeating().into_iter().chain(first.ids).chain([30, 31]).collect();
    let second = generate(&one, greedy(&longer, 20));
    assert_eq!(second.stats.reused_tokens, longer.len() - 3);
    assert_eq!(second.ids, generate(&session(&engine), without(greedy(&longer, 20))).ids);
}

/// Every sparsity mode drafts by default and gives the same text as without drafts. Recurrent
/// models never draft.
#[test]
fn every_mode_has_drafts_that_change_no_text() {
    let lookup = |request: Request| Request { speculation: SpeculationMode::PromptLookup, ..request };
    let powerinfer = model("../powerinfer/llama-relu-q4_0.powerinfer.gguf");
    for mode in Sparsity::ALL {
        let open = |path: &Path| {
            let (sparsity, adaptive) = (SparsityChoice::Mode(mode), Some(false));
            Engine::open(path, EngineOptions { sparsity, adaptive, ..options() }).unwrap()
        };
        same_with_and_without(&open(&powerinfer), greedy(&repeating(), 150), &format!("{mode}, a predictor"));
        let engine = open(&model("nemotron"));
        let stats = same_with_and_without(&engine, greedy(&repeating(), 150), &format!("{mode}"));
        assert!(stats.drafted_tokens > 0, "{mode}");
        assert!(generate(&session(&engine), lookup(greedy(&repeating(), 150))).stats.drafted_tokens > 0, "{mode}");
    }
    let engine = Engine::open(&model("qwen3_5"), options()).unwrap();
    assert_eq!(generate(&session(&engine), lookup(greedy(&repeating(), 60))).stats.drafted_tokens, 0);
}

/// Tests the built-in model, whose text repeats, with default options.
#[test]
fn drafts_change_no_story() {
    let engine = storyteller();
    let mut drafted = 0;
    for what in ["blue star", "old tree", "small dog", "red kite", "shy owl", "tiny boat"] {
        for likes in ["sing", "jump", "swim", "read"] {
            let noun = what.split(' ').next_back().unwrap();
            let text = format!("Once upon a time, there was a {what} who liked to {likes}. The {noun}");
            let request = Request {
                sampling: Sampling::greedy(),
                max_tokens: Some(120),
                ..Request::new(Prompt::Text(text.clone()))
            };
            drafted += same_with_and_without(&engine, request, &text).drafted_tokens;
        }
    }
    assert!(drafted > 0);
}

/// A device also forgets rejected drafts. It does not draft by default, because its sums have
/// another order.
#[test]
fn drafted_tokens_on_a_device_are_those_of_the_cpu() {
    let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
    let on_device = Engine::open(&model("gemma2"), EngineOptions { device, ..options() }).unwrap();
    eventually("a device", || matches!(on_device.device(), DeviceStatus::Gpu(_)));
    let device = session(&on_device);
    for (at, request) in
        [greedy(&repeating(), 60), greedy(&expected("gemma2", "input_ids"), 40)].into_iter().enumerate()
    {
        let wanted = generate(&session(&circling()), without(request.clone()));
        assert_eq!(generate(&device, request.clone()).stats.drafted_tokens, 0, "request {at}");
        let got = generate(&device, Request { speculation: SpeculationMode::PromptLookup, ..request });
        assert_eq!(got.ids, wanted.ids, "request {at}");
        assert!(at > 0 || got.stats.drafted_tokens > 0, "{:?}", got.stats);
    }
}
