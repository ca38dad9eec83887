//! Speculative decoding: drafts do not change tokens, and repetitive text takes fewer passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use thermocline_engine::{
    gpu::{AdapterChoice, GpuOptions},
    runtime::Sparsity,
    session::{
        DeviceChoice, DeviceStatus, DraftCounts, DraftSource, DraftsBySource, Grammar, LogprobsRequest, SparsityChoice,
        sampling::JsonSchema,
    },
};

use thermocline_tests::{golden::RECURRENT, served::storyteller};

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

/// Returns the request with drafts in every pass, whether they pay or not.
fn eager(request: Request) -> Request {
    Request { drafts: Some(8), ..request }
}

/// Compares answers of new sessions without drafts, with drafts that pay, and with drafts in every
/// pass. Returns the statistics of the last.
fn same_with_and_without(engine: &Engine, request: Request, what: &str) -> GenerationStats {
    let plain = generate(&session(engine), without(request.clone()));
    same_as(&plain, &generate(&session(engine), request.clone()), what);
    let drafted = generate(&session(engine), eager(request));
    same_as(&plain, &drafted, what);
    drafted.stats
}

/// Compares an answer with drafts with the answer `plain`.
fn same_as(plain: &Answer, drafted: &Answer, what: &str) {
    assert_eq!((&drafted.ids, &drafted.text), (&plain.ids, &plain.text), "{what}");
    assert_eq!((&drafted.reason, &drafted.logprobs), (&plain.reason, &plain.logprobs), "{what}");
    let counts = |stats: &GenerationStats| (stats.generated_tokens, stats.decode_steps, stats.context_used);
    assert_eq!(counts(&drafted.stats), counts(&plain.stats), "{what}");
    assert_eq!(plain.stats.drafts, DraftsBySource::default(), "{what}");
    let sources = DraftSource::ALL.map(|source| drafted.stats.drafts.of(source));
    assert_eq!(sources[1..], [DraftCounts::default(); 2], "{what}: only lookups");
    assert_eq!(sources[0], drafted.stats.drafts.total(), "{what}");
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
            drafted += same_with_and_without(&engine, request, &format!("{name}, request {at}")).drafted_tokens();
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
    assert!(stats.accepted_tokens() > 20 && stats.accepted_tokens() <= stats.drafted_tokens(), "{stats:?}");
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
            [without(request.clone()), eager(request)].map(|request| generate(&session_of(&engine, 80), request));
        assert_eq!((plain.ids, plain.reason), (drafted.ids, drafted.reason), "{on_full:?}");
    }
}

/// The cache contains only accepted tokens, and the next turn continues from them.
#[test]
fn next_turns_reuse_the_drawn_tokens() {
    let engine = circling();
    let one = session(&engine);
    let first = generate(&one, eager(greedy(&repeating(), 40)));
    assert!(first.stats.drafted_tokens() > 0);
    let longer: Vec<u32> = repeating().into_iter().chain(first.ids).chain([30, 31]).collect();
    let second = generate(&one, greedy(&longer, 20));
    assert_eq!(second.stats.reused_tokens, longer.len() - 3);
    assert_eq!(second.ids, generate(&session(&engine), without(greedy(&longer, 20))).ids);
}

/// Every sparsity mode drafts by default and gives the same text as without drafts.
#[test]
fn every_mode_has_drafts_that_change_no_text() {
    let lookup = |request: Request| Request { speculation: SpeculationMode::Always, ..eager(request) };
    let powerinfer = model("../powerinfer/llama-relu-q4_0.powerinfer.gguf");
    for mode in Sparsity::ALL {
        let open = |path: &Path| {
            let (sparsity, adaptive) = (SparsityChoice::Mode(mode), Some(false));
            Engine::open(path, EngineOptions { sparsity, adaptive, ..options() }).unwrap()
        };
        same_with_and_without(&open(&powerinfer), greedy(&repeating(), 150), &format!("{mode}, a predictor"));
        let engine = open(&model("nemotron"));
        let stats = same_with_and_without(&engine, greedy(&repeating(), 150), &format!("{mode}"));
        assert!(stats.drafted_tokens() > 0, "{mode}");
        assert!(
            generate(&session(&engine), eager(lookup(greedy(&repeating(), 150)))).stats.drafted_tokens() > 0,
            "{mode}"
        );
    }
    let engine = Engine::open(&model("qwen3_5"), options()).unwrap();
    assert_eq!(generate(&session(&engine), lookup(greedy(&repeating(), 60))).stats.drafted_tokens(), 0);
}

/// Grammars whose texts repeat themselves.
fn repeating_grammars() -> Vec<Grammar> {
    let words = serde_json::json!({ "enum": ["one small step", "one giant leap", "moon"] });
    let schema = serde_json::json!({
        "type": "array", "minItems": 8, "maxItems": 12,
        "items": {
            "type": "object", "properties": { "word": words, "sure": { "type": "boolean" } },
            "required": ["word", "sure"], "additionalProperties": false,
        },
    });
    vec![
        Grammar::JsonSchema(JsonSchema::new(&schema, false).unwrap()),
        Grammar::Gbnf(
            "root ::= line{9,14}\nline ::= \"- the \" (\"cat\" | \"cow\") \" sat on \" [a-c] \"\\n\"".to_owned(),
        ),
        Grammar::Regex("(ab(cd|ce)fgh){10,20}".to_owned()),
    ]
}

/// Each position of a pass with drafts is masked by the grammar's state after the tokens before it.
#[test]
fn answers_under_grammars_are_the_same_with_drafts() {
    let mut drafts = DraftCounts::default();
    for name in ["llama-relu", "gemma2"] {
        let engine = Engine::open(&model(name), options()).unwrap();
        for (number, grammar) in repeating_grammars().into_iter().enumerate() {
            for seed in 0..6 {
                let sampling = match seed {
                    0 => Sampling::greedy(),
                    1 => Sampling { repeat_penalty: 1.2, frequency_penalty: 0.1, ..Sampling::greedy() },
                    2 => Sampling { presence_penalty: 0.5, temperature: 1.0, seed: Some(seed), ..Sampling::default() },
                    _ => Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() },
                };
                let request = Request {
                    sampling,
                    grammar: Some(grammar.clone()),
                    logprobs: (seed % 2 == 0).then_some(LogprobsRequest { top: 2, prompt: false }),
                    // Some answers end within their grammar, others before.
                    max_tokens: Some(if seed == 5 { 60 } else { 400 }),
                    ignore_eos: false,
                    ..greedy(&repeating(), 0)
                };
                let stats = same_with_and_without(&engine, request, &format!("{name}, grammar {number}, seed {seed}"));
                drafts += stats.drafts.total();
            }
        }
    }
    assert!(drafts.accepted > 60 && drafts.drafted > drafts.accepted, "{drafts:?}");
}

/// Counts of the answers that a grammar allows, over `seeds`.
fn tally(engine: &Engine, request: &Request, seeds: std::ops::Range<u64>) -> (BTreeMap<String, f64>, usize) {
    let (mut tally, mut drafted) = (BTreeMap::new(), 0);
    let session = session(engine);
    for seed in seeds {
        let sampling = Sampling { seed: Some(seed), ..request.sampling.clone() };
        let answer = generate(&session, Request { sampling, ..request.clone() });
        drafted += answer.stats.drafted_tokens();
        *tally.entry(answer.text).or_default() += 1.0;
    }
    (tally, drafted)
}

/// Answers with and without drafts, from different seeds, follow one distribution.
#[test]
fn drafts_do_not_change_the_distribution_of_answers() {
    const ANSWERS: u64 = 400;
    let engine = engine();
    let sampling = Sampling { temperature: 2.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() };
    let grammar = Grammar::Regex("abcabcabc(abc|abd)(abc|abd)".to_owned());
    let request = Request { sampling, grammar: Some(grammar), ignore_eos: false, ..greedy(&repeating(), 40) };
    let (plain, _) = tally(&engine, &without(request.clone()), 0..ANSWERS);
    let (drafted, drafts) = tally(&engine, &eager(request), ANSWERS..2 * ANSWERS);
    assert!(drafts > ANSWERS as usize / 4, "{drafts}");
    let texts: BTreeSet<&String> = plain.keys().chain(drafted.keys()).collect();
    assert!((3..=4).contains(&texts.len()), "{texts:?}");
    let counts = |text: &str| [&plain, &drafted].map(|tally| tally.get(text).copied().unwrap_or_default());
    let chi_square: f64 = texts.iter().map(|text| counts(text)).map(|[a, b]| (a - b).powi(2) / (a + b)).sum();
    // The 99.9 % quantile of three degrees of freedom.
    assert!(chi_square < 16.27, "{chi_square}: {plain:?} {drafted:?}");
}

/// Requests to a recurrent model for texts of three tokens, which repeat often.
fn repetitive() -> Vec<Request> {
    let three = |sampling| {
        let logit_bias = vec![(20, 40.0), (21, 40.0), (22, 40.0)];
        Request { sampling: Sampling { logit_bias, ..sampling }, ..greedy(&repeating(), 60) }
    };
    let few = |seed| Sampling { top_k: 2, temperature: 1.0, seed: Some(seed), ..Sampling::default() };
    let any = |seed| Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
    [Sampling::greedy()].into_iter().chain((0..6).map(few)).chain((0..3).map(any)).map(three).collect()
}

/// Recurrent models go back to the states after any draft, in every sparsity mode.
#[test]
fn recurrent_models_have_drafts_that_change_no_text() {
    for name in RECURRENT {
        for mode in Sparsity::ALL {
            let (sparsity, adaptive) = (SparsityChoice::Mode(mode), Some(false));
            let engine = Engine::open(&model(name), EngineOptions { sparsity, adaptive, ..options() }).unwrap();
            let (mut drafted, mut accepted) = (0, 0);
            for (at, request) in repetitive().into_iter().enumerate() {
                let stats = same_with_and_without(&engine, request, &format!("{name}, {mode}, request {at}"));
                (drafted, accepted) = (drafted + stats.drafted_tokens(), accepted + stats.accepted_tokens());
            }
            assert!(accepted > 0 && accepted < drafted, "{name}, {mode}: {accepted} of {drafted} drafts");
        }
    }
}

/// After drafts, the next turn reuses every token of the answer but the last, and another answer
/// every token of the prompt but the last.
#[test]
fn next_turns_of_recurrent_models_reuse_the_drawn_tokens() {
    for name in RECURRENT {
        let engine = Engine::open(&model(name), options()).unwrap();
        let (mut one, mut drafted) = (session(&engine), 0);
        for request in repetitive() {
            let first = generate(&one, eager(request));
            drafted += first.stats.drafted_tokens();
            let longer: Vec<u32> = repeating().into_iter().chain(first.ids).chain([30, 31]).collect();
            let second = generate(&one, greedy(&longer, 20));
            assert_eq!(second.stats.reused_tokens, longer.len() - 3, "{name}");
            assert_eq!(second.ids, generate(&session(&engine), without(greedy(&longer, 20))).ids, "{name}");
            one = session(&engine);
        }
        assert!(drafted > 0, "{name}");
    }
}

#[test]
fn full_contexts_of_recurrent_models_end_or_shift_as_without_drafts() {
    for name in ["qwen3_5", "nemotron-h", "lfm2"] {
        let engine = Engine::open(&model(name), options()).unwrap();
        for on_full in [ContextPolicy::Stop, ContextPolicy::Shift { keep: 4 }] {
            for request in repetitive() {
                let request = Request { on_full, max_tokens: Some(90), ..request };
                let [plain, drafted] = [without(request.clone()), eager(request)]
                    .map(|request| generate(&session_of(&engine, 80), request));
                assert_eq!((plain.ids, plain.reason), (drafted.ids, drafted.reason), "{name}, {on_full:?}");
            }
        }
    }
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
            drafted += same_with_and_without(&engine, request, &text).drafted_tokens();
        }
    }
    assert!(drafted > 0);
}

/// On a device, or partly on one, recurrent models go back to states in its memory.
#[test]
fn drafts_of_recurrent_models_on_a_device_change_no_text() {
    let open = |name: &str, budget: Option<u64>| {
        let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() };
        let engine = Engine::open(&model(name), EngineOptions { device: DeviceChoice::Gpu(gpu), ..options() }).unwrap();
        let accounted = until("a device", || match engine.device() {
            DeviceStatus::Gpu(memory) if !memory.moving => Some(Some(memory.accounted)),
            DeviceStatus::Cpu { .. } => Some(None),
            _ => None,
        });
        accounted.map(|accounted| (engine, accounted))
    };
    let mut parts = 0;
    for name in ["qwen3_5", "nemotron-h", "lfm2"] {
        let cpu = Engine::open(&model(name), options()).unwrap();
        let (whole, accounted) = open(name, None).unwrap_or_else(|| panic!("{name} is not on the device"));
        // A small model may be of use to a device only as a whole.
        let part = open(name, Some(accounted - 1)).map(|(engine, _)| (engine, "hybrid"));
        parts += usize::from(part.is_some());
        for (engine, place) in [Some((whole, "device")), part].into_iter().flatten() {
            let (mut drafted, mut accepted) = (0, 0);
            for (at, request) in repetitive().into_iter().enumerate() {
                let wanted = generate(&session(&cpu), without(request.clone()));
                let request = Request { speculation: SpeculationMode::Always, ..eager(request) };
                let got = generate(&session(&engine), request);
                assert_eq!(got.ids, wanted.ids, "{name}, {place}, request {at}");
                let stats = got.stats;
                (drafted, accepted) = (drafted + stats.drafted_tokens(), accepted + stats.accepted_tokens());
            }
            assert!(accepted > 0 && accepted < drafted, "{name}, {place}: {accepted} of {drafted} drafts");
        }
    }
    assert!(parts > 0);
}

/// A device also forgets rejected drafts. It drafts by default, because a few tokens have the bits
/// of single tokens there.
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
        assert_eq!(generate(&device, request.clone()).ids, wanted.ids, "request {at}");
        let got = generate(&device, Request { speculation: SpeculationMode::Always, ..eager(request) });
        assert_eq!(got.ids, wanted.ids, "request {at}");
        assert!(at > 0 || got.stats.drafted_tokens() > 0, "{:?}", got.stats);
    }
}
