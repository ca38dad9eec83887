//! Fair scheduling: how many tokens one stream gets while another is computed.

use thermocline_engine::session::Priority;

use super::{
    streams::{float_options, prompts},
    *,
};

/// While a long prompt is computed, other streams get a token after each of its chunks.
#[test]
fn a_long_prompt_stops_others_for_one_chunk_at_most() {
    let options = EngineOptions { context: Some(4096), chunk: 128, ..float_options() };
    let engine = Engine::open(&model("llama-silu-gqa"), options).unwrap();
    let (short, long) = (session(&engine), session(&engine));
    let prompts = prompts(&engine, 2);
    let events = short.generate(greedy(&prompts[0], 3000));
    let start = engine.telemetry().generated_tokens;
    eventually("tokens", || engine.telemetry().generated_tokens > start + 8);
    let vocab = engine.config().n_vocab as u32;
    let prompt: Vec<u32> = (0..3000).map(|at| (at * at + at * 7) % vocab).collect();
    let listening = long.generate(greedy(&prompt, 1));
    let (mut last, mut worst, mut chunks) = (None, 0, 0);
    for event in &listening {
        if let Event::Prompt { done, .. } = event {
            let now = engine.telemetry().generated_tokens;
            if let Some((before, tokens)) = last {
                worst = worst.max(done - before);
                chunks += usize::from(now > tokens);
            }
            last = Some((done, now));
        }
    }
    short.cancel();
    drop(events);
    assert!(chunks >= 12, "{chunks} chunks with tokens between them, the longest of {worst} tokens");
    assert!(worst <= 128, "{worst}");
}

/// A foreground session keeps its speed beside two background sessions, which do not starve.
#[test]
fn the_foreground_goes_first() {
    let engine =
        Engine::open(&model("llama-silu-gqa"), EngineOptions { context: Some(2048), ..float_options() }).unwrap();
    let prompts = prompts(&engine, 3);
    let background = SessionOptions { priority: Priority::Background, ..SessionOptions::default() };
    let others: Vec<Session> = (0..2).map(|_| engine.session(background.clone()).unwrap()).collect();
    let events: Vec<_> = others.iter().zip(&prompts).map(|(it, prompt)| it.generate(greedy(prompt, 1500))).collect();
    eventually("tokens", || engine.telemetry().generated_tokens > 20);
    let window = session(&engine);
    let before = engine.telemetry().generated_tokens;
    let mine = generate(&window, greedy(&prompts[2], 600));
    let theirs = engine.telemetry().generated_tokens - before - 600;
    others.iter().for_each(Session::cancel);
    drop(events);
    assert_eq!(mine.ids.len(), 600);
    // Each background token delays the foreground by a part of a token's time. The background gets
    // a fifth of the time.
    assert!(theirs > 10, "{theirs}");
    assert!(theirs < 2 * 600, "{theirs}");
}
