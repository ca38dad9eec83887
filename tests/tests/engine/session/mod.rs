//! Sessions on a tiny model: the events of a generation, for various requests and stops.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod answers;
mod draft_model;
mod drafters;
mod embeddings;
mod many_prompts;
mod picture_chats;
mod picture_neurons;
mod prompts;
mod recurrent;
mod speculation;
mod streams;
mod thoughts;
mod timing;
mod turns;
mod windows;

use std::{path::PathBuf, sync::mpsc::Receiver, time::Duration};

use proptest::prelude::*;
use thermocline_engine::{
    Error,
    cpu::CpuOptions,
    runtime::KvType,
    session::{
        ContextPolicy, Engine, EngineOptions, Event, GenerationStats, Message, Prompt, Request, Role, Sampling,
        Session, SessionOptions, SpeculationMode, StopReason, TokenLogprobs,
    },
};
use thermocline_tests::{
    golden::Expected,
    wait::{LONGEST, eventually, until},
};

/// Everything that a generation sent.
#[derive(Debug)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    prompt: Vec<(usize, usize)>,
    reason: StopReason,
    stats: GenerationStats,
}

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn options() -> EngineOptions {
    // More workers than idle cores would make a tiny model slow. One test uses several.
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
    engine.session(SessionOptions { context: Some(context), ..SessionOptions::default() }).unwrap()
}

/// Returns the ids called `name` in a model's expected results.
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

/// Gives `session` a request that has nothing to do with the next one. `how` is 0 if its events are
/// dropped, 1 if a full context ends it, 2 if the context shifts and keeps `keep` tokens, and 3 if
/// it is cancelled after `micros`. Otherwise it is refused.
fn disturb(session: &Session, prompt: &[u32], keep: usize, how: u8, micros: u64) {
    let request = Request { on_full: ContextPolicy::Shift { keep }, ..drawn(prompt, 60, micros) };
    match how {
        0 => drop(session.generate(request)),
        1 => drop(answer(session.generate(Request { on_full: ContextPolicy::Stop, ..request }))),
        2 => drop(answer(session.generate(request))),
        3 => {
            let events = session.generate(request);
            std::thread::sleep(Duration::from_micros(micros));
            session.cancel();
            assert!(answer(events).is_ok());
        }
        _ => drop(answer(session.generate(greedy(&[9999], 3)))),
    }
}

fn answer(events: Receiver<Event>) -> Result<Answer, Error> {
    let (mut ids, mut text, mut logprobs, mut prompt) = (Vec::new(), String::new(), Vec::new(), Vec::new());
    let mut end = None;
    for event in &events {
        assert!(end.is_none(), "{event:?} after the end");
        match event {
            Event::Prompt { done, total } => {
                assert!(ids.is_empty() && done <= total);
                prompt.push((done, total));
            }
            Event::Token { id, text: piece, logprobs: chosen } => {
                ids.push(id);
                text.push_str(&piece);
                logprobs.extend(chosen);
            }
            Event::PromptLogprobs(_) | Event::Embedding(_) => panic!("results that nothing asked for"),
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
    Ok(Answer { ids, text, logprobs, prompt, reason, stats })
}

fn generate(session: &Session, request: Request) -> Answer {
    answer(session.generate(request)).unwrap()
}
