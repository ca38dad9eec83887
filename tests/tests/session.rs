//! Sessions on a tiny model: what comes out of the channel, whatever is asked and whenever it is stopped.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    path::PathBuf,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use thermocline_engine::{
    Error,
    cpu::CpuOptions,
    model::KvType,
    session::{
        ContextPolicy, Engine, EngineOptions, Event, GenerationStats, Message, Prompt, Request, Role, Sampling,
        Session, SessionOptions, StopReason,
    },
};
use thermocline_tests::golden::Expected;

/// Everything a generation sent.
#[derive(Debug)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    prompt: Vec<(usize, usize)>,
    reason: StopReason,
    stats: GenerationStats,
}

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn options() -> EngineOptions {
    // More workers than idle cores make a tiny model slow; one test takes several.
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    EngineOptions { kv_type: KvType::F32, cpu, ..EngineOptions::default() }
}

fn engine() -> Engine {
    Engine::open(&model("llama-relu"), options()).unwrap()
}

fn session(engine: &Engine) -> Session {
    engine.session(SessionOptions::default()).unwrap()
}

fn session_of(engine: &Engine, context: usize) -> Session {
    engine.session(SessionOptions { context: Some(context), kv_type: None }).unwrap()
}

/// The ids called `name` in a model's expected results.
fn expected(model_name: &str, name: &str) -> Vec<u32> {
    Expected::read(&model(model_name).join("expected.safetensors")).ids(name)
}

fn greedy(prompt: &[u32], tokens: usize) -> Request {
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens(prompt.to_vec()))
    }
}

fn drawn(prompt: &[u32], tokens: usize, seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.5, seed: Some(seed), ..Sampling::default() };
    Request { sampling, ..greedy(prompt, tokens) }
}

fn answer(events: Receiver<Event>) -> Result<Answer, Error> {
    let (mut ids, mut text, mut prompt) = (Vec::new(), String::new(), Vec::new());
    let mut end = None;
    for event in &events {
        assert!(end.is_none(), "{event:?} after the end");
        match event {
            Event::Prompt { done, total } => {
                assert!(ids.is_empty() && done <= total);
                prompt.push((done, total));
            }
            Event::Token { id, text: piece } => {
                ids.push(id);
                text.push_str(&piece);
            }
            Event::Device(event) => panic!("{event:?} without a device"),
            Event::Stats(stats) => assert!(stats.context_used <= stats.context_length),
            Event::Done { reason, stats } => end = Some(Ok((reason, stats))),
            Event::Error(error) => end = Some(Err(error)),
        }
    }
    let (reason, stats) = end.expect("an end")?;
    if reason != StopReason::Cancelled {
        assert_eq!(stats.generated_tokens, ids.len());
    }
    Ok(Answer { ids, text, prompt, reason, stats })
}

fn ask(session: &Session, request: Request) -> Answer {
    answer(session.generate(request)).unwrap()
}

/// Waits for something the engine thread is about to do.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn greedy_tokens_are_the_reference_implementations() {
    for name in ["llama-relu", "opt", "qwen3", "gemma2"] {
        let engine = Engine::open(&model(name), options()).unwrap();
        let session = session(&engine);
        let prompt = expected(name, "input_ids");
        let got = ask(&session, greedy(&prompt, 16));
        assert_eq!(got.ids, expected(name, "greedy_ids"), "{name}");
        assert_eq!(got.reason, StopReason::MaxTokens);
        assert_eq!((got.stats.prompt_tokens, got.stats.reused_tokens), (24, 0));
        assert_eq!((got.stats.generated_tokens, got.stats.decode_steps), (16, 15));
        assert_eq!(got.stats.context_used, 24 + 15);
        assert_eq!(got.prompt, [(0, 24)]);
    }
}

#[test]
fn text_is_what_the_ids_say() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    for seed in 0..8 {
        let got = ask(&session(&engine), drawn(&prompt, 60, seed));
        let mut stream = engine.tokenizer().stream();
        let mut want: String = got.ids.iter().map(|&id| stream.push(id)).collect();
        want.push_str(&stream.finish());
        assert_eq!(got.text, want);
    }
}

#[test]
fn same_seed_same_text_on_any_number_of_threads() {
    let prompt = expected("llama-relu", "input_ids");
    let texts = |threads| {
        let cpu = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let engine = Engine::open(&model("llama-relu"), EngineOptions { cpu, ..options() }).unwrap();
        let session = session(&engine);
        [7, 7, 8].map(|seed| {
            let got = ask(&session, drawn(&prompt, 40, seed));
            assert_eq!(got.stats.seed, seed);
            got.text
        })
    };
    let want = texts(1);
    assert_eq!(want[0], want[1]);
    assert_ne!(want[0], want[2]);
    for threads in [2, 3] {
        assert_eq!(texts(threads), want, "{threads} threads");
    }
}

#[test]
fn only_new_tokens_are_computed_and_the_answer_is_the_same() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    let first = session(&engine);
    let begun = ask(&first, greedy(&prompt, 10));
    // The last generated token was never fed back.
    let held = [&prompt[..], &begun.ids[..9]].concat();
    let longer = [&prompt[..], &begun.ids[..], &[5, 6, 7]].concat();
    let reused = ask(&first, greedy(&longer, 20));
    assert_eq!(reused.stats.reused_tokens, held.len());
    assert_eq!(reused.prompt, [(33, 37)]);
    let fresh = ask(&session(&engine), greedy(&longer, 20));
    assert_eq!((fresh.stats.reused_tokens, &fresh.ids), (0, &reused.ids));

    // The same prompt again: only its last token, whose logits are wanted.
    let again = ask(&first, greedy(&longer, 20));
    assert_eq!((again.stats.reused_tokens, &again.ids), (36, &reused.ids));
    // Another turn in the middle.
    let turned = [&prompt[..12], &[9, 10]].concat();
    let turn = ask(&first, greedy(&turned, 20));
    assert_eq!(turn.stats.reused_tokens, 12);
    assert_eq!(turn.ids, ask(&session(&engine), greedy(&turned, 20)).ids);
    assert_eq!(engine.telemetry().reused_tokens, 33 + 36 + 12);
}

#[test]
fn cancelling_takes_at_most_one_token() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    for _ in 0..20 {
        let events = session.generate(endless.clone());
        let start = engine.telemetry().generated_tokens;
        eventually("tokens", || engine.telemetry().generated_tokens > start + 3);
        session.cancel();
        let then = engine.telemetry().generated_tokens;
        let got = answer(events).unwrap();
        assert_eq!(got.reason, StopReason::Cancelled);
        assert_eq!(got.stats.generated_tokens, got.ids.len());
        assert!(engine.telemetry().generated_tokens <= then + 1);
    }
    // What was asked after the cancellation is not cancelled, and the cache is what it says it is.
    assert_eq!(ask(&session, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn cancelling_reaches_requests_that_wait() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 0 }, max_tokens: None, ..greedy(&prompt, 0) };
    let events: Vec<_> = (0..3).map(|_| session.generate(endless.clone())).collect();
    session.cancel();
    for events in events {
        assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    }
    eventually("nothing running", || engine.telemetry().generations == 0);
}

#[test]
fn requests_of_a_session_wait_for_each_other() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let first = session.generate(greedy(&prompt, 16));
    let second = session.generate(greedy(&prompt, 8));
    let (first, second) = (answer(first).unwrap(), answer(second).unwrap());
    assert_eq!(first.ids, expected("llama-relu", "greedy_ids"));
    assert_eq!(second.ids, first.ids[..8]);
    assert_eq!(second.stats.reused_tokens, 23);
}

#[test]
fn stop_strings_end_the_text_and_are_no_part_of_it() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let whole = ask(&session, drawn(&prompt, 40, 3)).text;
    let characters: Vec<(usize, char)> = whole.char_indices().collect();
    let mut found = 0;
    for window in characters.windows(3) {
        let start = window[0].0;
        let stop: String = window.iter().map(|(_, character)| character).collect();
        let request = Request { stop: vec!["never there".to_owned(), stop.clone()], ..drawn(&prompt, 40, 3) };
        let got = ask(&session, request);
        let first = whole.find(&stop).unwrap();
        assert_eq!(got.text, whole[..first], "stop {stop:?} at {start}");
        assert_eq!(got.reason, StopReason::StopString(stop));
        found += 1;
    }
    assert!(found > 20, "the text is too short to test with: {whole:?}");
    let possible: String = whole.chars().last().into_iter().chain("?".chars()).collect();
    let got = ask(&session, Request { stop: vec![possible], ..drawn(&prompt, 40, 3) });
    assert_eq!(got.text, whole, "text held back must come out at the end");
}

#[test]
fn the_end_token_ends_unless_ignored() {
    let engine = engine();
    let session = session(&engine);
    let eos = engine.tokenizer().eos().unwrap();
    let sampling = Sampling { logit_bias: vec![(eos, 1000.0)], ..Sampling::greedy() };
    let request = |ignore_eos| Request { sampling: sampling.clone(), ignore_eos, ..greedy(&[5, 6], 4) };
    let got = ask(&session, request(false));
    assert_eq!((got.reason, got.ids.len(), got.text.as_str()), (StopReason::EndOfText, 0, ""));
    let got = ask(&session, request(true));
    assert_eq!((got.reason, got.ids), (StopReason::MaxTokens, vec![eos; 4]));
}

#[test]
fn a_full_context_stops_or_shifts() {
    for (name, keep) in [("llama-relu", 4), ("llama-relu", 0), ("opt", 3), ("gemma3", 31)] {
        let engine = Engine::open(&model(name), EngineOptions { context: Some(32), ..options() }).unwrap();
        let session = session(&engine);
        let prompt = &expected(name, "input_ids")[..20];
        let stopped = ask(&session, greedy(prompt, 500));
        assert_eq!(stopped.reason, StopReason::ContextFull);
        // The token that no longer fits is still a result.
        assert_eq!((stopped.ids.len(), stopped.stats.context_used), (13, 32));

        let shift = ContextPolicy::Shift { keep };
        let shifted = ask(&session, Request { on_full: shift, ..greedy(prompt, 150) });
        assert_eq!((shifted.reason, shifted.ids.len()), (StopReason::MaxTokens, 150), "{name}");
        assert_eq!(shifted.ids[..13], stopped.ids);
        assert!(shifted.stats.context_used <= 32);

        // Entries that were moved are not taken for the prompt's own.
        let after = ask(&session, greedy(prompt, 8));
        assert_eq!(after.ids, stopped.ids[..8]);
        assert!(after.stats.reused_tokens <= keep.min(19));
    }
}

#[test]
fn shifting_with_learned_positions_is_a_fresh_computation() {
    let engine = Engine::open(&model("opt"), EngineOptions { context: Some(16), ..options() }).unwrap();
    let prompt = &expected("opt", "input_ids")[..12];
    let shift = ContextPolicy::Shift { keep: 2 };
    let got = ask(&session(&engine), Request { on_full: shift, ..greedy(prompt, 12) });
    // Tokens 0..16 fill the context; the shift keeps 2 and the last 7, and the fifth token is computed behind those.
    let all = [prompt, &got.ids].concat();
    let rest = [&all[..2], &all[9..17]].concat();
    let fresh = ask(&session(&engine), greedy(&rest, 6));
    assert_eq!(got.ids[5..11], fresh.ids);
}

#[test]
fn prompts_of_any_length_have_an_answer_or_a_reason() {
    let engine = engine();
    let session = session_of(&engine, 16);
    let prompt = expected("llama-relu", "input_ids");
    let error = answer(session.generate(greedy(&prompt, 4))).unwrap_err();
    assert!(matches!(error, Error::ContextFull { wanted: 24, available: 16 }), "{error}");
    let full = ask(&session, greedy(&prompt[..16], 4));
    assert_eq!((full.ids.len(), full.reason), (1, StopReason::ContextFull));
    let shift = ContextPolicy::Shift { keep: 2 };
    let shortened = ask(&session, Request { on_full: shift, ..greedy(&prompt, 40) });
    assert_eq!((shortened.ids.len(), shortened.stats.prompt_tokens), (40, 9));
    let kept = [&prompt[..2], &prompt[17..]].concat();
    assert_eq!(shortened.ids[..7], ask(&session, greedy(&kept, 7)).ids);

    let tiny = session_of(&engine, 1);
    let shift = ContextPolicy::Shift { keep: 0 };
    assert_eq!(ask(&tiny, Request { on_full: shift, ..greedy(&prompt, 9) }).ids.len(), 9);
    let error = answer(tiny.generate(Request { on_full: ContextPolicy::Shift { keep: 1 }, ..greedy(&[3], 2) }));
    assert!(matches!(error.unwrap_err(), Error::Invalid { what: "keep", .. }));
}

#[test]
fn an_empty_prompt_begins_with_bos() {
    let engine = engine();
    let bos = engine.tokenizer().bos().unwrap();
    let want = ask(&session(&engine), greedy(&[bos], 8));
    for prompt in [Prompt::Tokens(Vec::new()), Prompt::Text(String::new())] {
        let got = ask(&session(&engine), Request { prompt, ..greedy(&[], 8) });
        assert_eq!((got.stats.prompt_tokens, &got.ids), (1, &want.ids));
    }
}

#[test]
fn text_and_chats_are_prompts_too() {
    let engine = engine();
    let session = session(&engine);
    let text = "Grüße, 世界 👋🏽\u{0}\n";
    let tokens = engine.tokenizer().encode(text, thermocline_engine::tokenizer::EncodeOptions::CHAT).unwrap();
    let got = ask(&session, Request { prompt: Prompt::Text(text.to_owned()), ..greedy(&[], 8) });
    assert_eq!(got.ids, ask(&session, greedy(&tokens, 8)).ids);
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let mut chat = vec![message(Role::User, "Hello")];
    let first = ask(&session, Request { prompt: Prompt::Chat(chat.clone()), ..greedy(&[], 4) });
    chat.extend([message(Role::Assistant, &first.text), message(Role::User, "More")]);
    let second = ask(&session, Request { prompt: Prompt::Chat(chat), ..greedy(&[], 4) });
    assert!(second.stats.prompt_tokens > first.stats.prompt_tokens);
    assert!(second.stats.reused_tokens > 0, "the beginning of the chat is the same");
}

#[test]
fn bad_requests_are_refused_and_the_session_goes_on() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let good = greedy(&prompt, 16);
    let sampling = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling::greedy();
        change(&mut sampling);
        Request { sampling, ..good.clone() }
    };
    for (bad, what) in [
        (sampling(|s| s.temperature = f32::NAN), "temperature"),
        (sampling(|s| s.top_p = -0.5), "top_p"),
        (sampling(|s| s.logit_bias = vec![(384, 1.0)]), "logit_bias"),
        (Request { stop: vec![String::new()], ..good.clone() }, "stop"),
        (greedy(&[1, 384], 3), "prompt"),
        (greedy(&[u32::MAX], 3), "prompt"),
        (Request { on_full: ContextPolicy::Shift { keep: usize::MAX }, ..good.clone() }, "keep"),
    ] {
        match answer(session.generate(bad)) {
            Err(Error::Invalid { what: got, .. }) => assert_eq!(got, what),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(ask(&session, good.clone()).ids, expected("llama-relu", "greedy_ids"));
    }
    let banned = sampling(|s| s.logit_bias = (0..384).map(|id| (id, f32::NEG_INFINITY)).collect());
    let error = answer(session.generate(banned)).unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "logits", .. }), "{error}");
    assert_eq!(ask(&session, Request { max_tokens: Some(0), ..good.clone() }).ids.len(), 0);
    assert_eq!(ask(&session, good).ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn sessions_that_take_turns_do_not_disturb_each_other() {
    let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 5, ..options() }).unwrap();
    let prompt = expected("llama-relu", "input_ids");
    let requests: Vec<Request> = (0..4).map(|n| drawn(&prompt[n as usize..], 60, n)).collect();
    let alone: Vec<Vec<u32>> = requests.iter().map(|request| ask(&session(&engine), request.clone()).ids).collect();
    let sessions: Vec<Session> = requests.iter().map(|_| session(&engine)).collect();
    let events: Vec<_> = sessions.iter().zip(&requests).map(|(it, request)| it.generate(request.clone())).collect();
    let together: Vec<Vec<u32>> = events.into_iter().map(|events| answer(events).unwrap().ids).collect();
    assert_eq!(together, alone);
}

#[test]
fn turns_are_fair() {
    let engine = engine();
    let (long, short) = (session(&engine), session(&engine));
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    let events = long.generate(endless);
    assert_eq!(ask(&short, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
    long.cancel();
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
}

#[test]
fn a_long_prompt_reports_its_progress_in_chunks() {
    let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 10, ..options() }).unwrap();
    let prompt = expected("llama-relu", "input_ids");
    let got = ask(&session(&engine), greedy(&prompt, 16));
    assert_eq!(got.prompt, [(0, 24), (10, 24), (20, 24)]);
    assert_eq!(got.ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn dropping_any_end_frees_what_it_held() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    assert_eq!(engine.memory().kv, 0);

    let first = session(&engine);
    let events = first.generate(endless.clone());
    assert!(matches!(events.recv().unwrap(), Event::Prompt { .. }));
    drop(events);
    eventually("the end of a generation nobody listens to", || engine.telemetry().generations == 0);
    assert_eq!(ask(&first, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
    let memory = engine.memory();
    assert!(memory.kv > 0 && memory.scratch > 0 && memory.weights > 0, "{memory:?}");

    let events = first.generate(endless.clone());
    drop(first);
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    eventually("the session's end", || engine.telemetry().sessions == 0 && engine.memory().kv == 0);

    // The engine ends with its last handle, here the session's.
    let last = session(&engine);
    let model = std::sync::Arc::downgrade(engine.model());
    drop(engine);
    let events = last.generate(endless);
    drop(last);
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    assert!(model.upgrade().is_none(), "the model outlived the engine");
}

#[test]
fn options_are_checked() {
    let open = |name, options| Engine::open(&model(name), options);
    assert_eq!(engine().context(), 256);
    let long = open("llama-relu", EngineOptions { context: Some(1000), ..options() }).unwrap();
    assert_eq!(session(&long).context(), 1000);
    for (name, options, what) in [
        ("llama-relu", EngineOptions { context: Some(0), ..options() }, "context"),
        ("opt", EngineOptions { context: Some(100_000), ..options() }, "context"),
        ("llama-relu", EngineOptions { chunk: 0, ..options() }, "chunk"),
    ] {
        assert!(matches!(open(name, options), Err(Error::Invalid { what: got, .. }) if got == what));
    }
    let error = long.session(SessionOptions { context: Some(usize::MAX), kv_type: None }).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert!(matches!(open("not there", options()), Err(Error::Io { .. })));
}

#[test]
fn every_sampler_runs_on_real_logits() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let base = Sampling { seed: Some(1), temperature: 1.0, ..Sampling::default() };
    let all = Sampling {
        top_k: 0,
        typical_p: 0.9,
        repeat_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.2,
        penalty_last_n: usize::MAX,
        dry_multiplier: 0.8,
        logit_bias: vec![(7, 2.0), (8, f32::NEG_INFINITY)],
        ..base.clone()
    };
    for sampling in [
        base.clone(),
        Sampling { top_k: 1, ..base.clone() },
        Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..base.clone() },
        Sampling { temperature: 1e-9, ..base.clone() },
        Sampling { temperature: 1e9, ..base },
        all,
    ] {
        let request = Request { sampling, ..greedy(&prompt, 50) };
        assert_eq!(ask(&session, request.clone()).ids, ask(&session, request).ids);
    }
}

#[test]
fn many_threads_may_ask_cancel_and_leave_at_once() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (engine, prompt) = (engine.clone(), &prompt);
            scope.spawn(move || {
                let shift = ContextPolicy::Shift { keep: thread as usize };
                for round in 0..15 {
                    let session = session_of(&engine, 48);
                    let request = Request { on_full: shift, ..drawn(prompt, 5 + 20 * (round % 3), thread) };
                    let events: Vec<_> = (0..3).map(|_| session.generate(request.clone())).collect();
                    match (thread + round as u64) % 4 {
                        0 => session.cancel(),
                        1 => std::thread::scope(|scope| drop(scope.spawn(|| session.cancel()))),
                        2 => drop(session),
                        _ => assert_eq!(session.context(), 48),
                    }
                    for events in events {
                        let got = answer(events).unwrap();
                        assert!(matches!(got.reason, StopReason::MaxTokens | StopReason::Cancelled));
                    }
                }
            });
        }
    });
    eventually("all sessions gone", || engine.telemetry().sessions == 0);
    assert_eq!((engine.telemetry().generations, engine.memory().kv), (0, 0));
    assert_eq!(ask(&session(&engine), greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever happened to a session before, its answer is that of a fresh one.
    #[test]
    fn the_past_does_not_show(
        past in prop::collection::vec((0usize..24, 1usize..24, 0u8..5, 0u64..3000), 1..12),
    ) {
        let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 7, ..options() }).unwrap();
        let session = session_of(&engine, 40);
        let tokens = expected("llama-relu", "input_ids");
        for (from, length, how, wait) in past {
            let prompt = &tokens[from.min(length)..];
            let shift = ContextPolicy::Shift { keep: length.min(30) };
            let request = Request { on_full: shift, ..drawn(prompt, 60, wait) };
            match how {
                0 => drop(session.generate(request)),
                1 => drop(answer(session.generate(Request { on_full: ContextPolicy::Stop, ..request }))),
                2 => drop(answer(session.generate(request))),
                3 => drop(answer(session.generate(greedy(&[9999], 3)))),
                _ => {
                    let events = session.generate(request);
                    std::thread::sleep(Duration::from_micros(wait));
                    session.cancel();
                    prop_assert!(answer(events).is_ok());
                }
            }
        }
        prop_assert_eq!(ask(&session, greedy(&tokens, 16)).ids, expected("llama-relu", "greedy_ids"));
    }
}
