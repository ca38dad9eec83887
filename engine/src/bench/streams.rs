//! Measures several streams at once, as a server's clients cause them. All streams request their
//! own answers at the same time and share the passes of one engine.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::session::{Engine, Event, Prompt, Request, Sampling, SessionOptions, SpeculationMode};
use thermocline_base::error::{Error, Result};

/// The numbers and lengths of streams to measure.
#[derive(Debug, Clone)]
pub struct StreamsOptions {
    /// Numbers of simultaneous streams, measured one after another.
    pub streams: Vec<usize>,
    /// Prompt tokens of each stream, at least 1. No two prompts start with the same token.
    pub prompt: usize,
    /// Tokens of each answer, at least 2.
    pub generate: usize,
    /// Timed runs for every number of streams.
    pub repetitions: usize,
    /// The source of drafted tokens.
    pub speculation: SpeculationMode,
}

/// The mean speed over the runs with one number of streams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamsRecord {
    /// Number of streams.
    pub streams: usize,
    /// Tokens of each prompt.
    pub n_prompt: usize,
    /// Tokens of each answer.
    pub n_gen: usize,
    /// Tokens per second of all streams together, while all of them decode.
    pub decode_ts: f64,
    /// `decode_ts` divided by the `decode_ts` of the first measured number of streams.
    pub ratio: f64,
    /// Answer tokens per second, over a time that includes the prompts.
    pub total_ts: f64,
    /// Milliseconds to a stream's first token, averaged over the streams.
    pub first_ms: f64,
    /// Milliseconds to the first token of the stream that waited longest.
    pub last_first_ms: f64,
    /// Average number of tokens that a pass decoded.
    pub batch: f64,
}

/// Measures every number of streams on `engine`, whose contexts must have room. Calls `progress` at
/// the start of each run.
///
/// # Errors
/// [`Error::Invalid`] without streams or tokens, and the errors of a generation.
pub fn run_streams(
    engine: &Engine,
    options: &StreamsOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<StreamsRecord>> {
    let StreamsOptions { prompt, generate, .. } = *options;
    if prompt == 0 || generate < 2 || options.streams.contains(&0) {
        let got = format!("{prompt} prompt tokens and {generate} generated tokens");
        return Err(Error::invalid("streams", "streams with a prompt and at least two tokens to generate", got));
    }
    let mut records: Vec<StreamsRecord> = Vec::new();
    for streams in &options.streams {
        // The first run is not counted, because buffers grow in it.
        once(engine, &StreamsOptions { prompt: prompt.min(32), generate: 4, ..options.clone() }, *streams)?;
        let mut runs = Vec::new();
        for number in 0..options.repetitions.max(1) {
            progress(number);
            runs.push(once(engine, options, *streams)?);
        }
        let mean = |of: fn(&StreamsRun) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let decode_ts = mean(|run| run.decode_ts);
        let first = records.first().map_or(decode_ts, |first| first.decode_ts);
        records.push(StreamsRecord {
            streams: *streams,
            n_prompt: prompt,
            n_gen: generate,
            decode_ts,
            ratio: decode_ts / first,
            total_ts: mean(|run| run.total_ts),
            first_ms: mean(|run| run.first_ms),
            last_first_ms: mean(|run| run.last_first_ms),
            batch: mean(|run| run.batch),
        });
    }
    Ok(records)
}

/// Figures of one run.
#[derive(Debug)]
struct StreamsRun {
    decode_ts: f64,
    total_ts: f64,
    first_ms: f64,
    last_first_ms: f64,
    batch: f64,
}

/// Times of a stream's tokens since the start. The stream was requested at `requested`.
fn listen(events: &Receiver<Event>, started: Instant, requested: Duration) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for event in events {
        match event {
            Event::Token { .. } => times.push(started.elapsed()),
            // An event may wait for the rest of a character, and thus for the next pass.
            Event::Done { stats, .. } => {
                if let Some(first) = times.first_mut() {
                    *first = requested + stats.time_to_first_token;
                }
            }
            Event::Error(error) => return Err(error),
            _ => {}
        }
    }
    Ok(times)
}

fn once(engine: &Engine, options: &StreamsOptions, streams: usize) -> Result<StreamsRun> {
    let StreamsOptions { prompt, generate, speculation, .. } = *options;
    let vocab = engine.config().n_vocab;
    // No two prompts start with the same token.
    let id = |stream: usize, at: usize| ((at * 7919 + at * at * 31 + stream * 104_729 + 11) % vocab) as u32;
    let sessions = (0..streams).map(|_| engine.session(SessionOptions::default())).collect::<Result<Vec<_>>>()?;
    let before = engine.telemetry();
    let started = Instant::now();
    let all = std::thread::scope(|scope| {
        let listeners: Vec<_> = sessions
            .iter()
            .enumerate()
            .map(|(stream, session)| {
                let request = Request {
                    sampling: Sampling::greedy(),
                    max_tokens: Some(generate),
                    ignore_eos: true,
                    speculation,
                    ..Request::new(Prompt::Tokens((0..prompt).map(|at| id(stream, at)).collect()))
                };
                let requested = started.elapsed();
                let events = session.generate(request);
                scope.spawn(move || listen(&events, started, requested))
            })
            .collect();
        let ended = || Error::Stopped("a thread that receives an answer ended early".to_owned());
        listeners.into_iter().map(|it| it.join().map_err(|_| ended())?).collect::<Result<Vec<_>>>()
    })?;
    let after = engine.telemetry();
    let seconds =
        |times: &[Duration], at: Option<usize>| at.and_then(|at| times.get(at)).map_or(0.0, Duration::as_secs_f64);
    let firsts: Vec<f64> = all.iter().map(|times| seconds(times, Some(0))).collect();
    let lasts = all.iter().map(|times| seconds(times, times.len().checked_sub(1)));
    let (begun, end) = (firsts.iter().copied().fold(0.0, f64::max), lasts.clone().fold(0.0, f64::max));
    // All streams decode until the first one ends.
    let until = lasts.fold(f64::INFINITY, f64::min);
    let together = all.iter().flatten().filter(|time| (begun..=until).contains(&time.as_secs_f64())).count();
    let passes = (after.decode_passes - before.decode_passes).max(1);
    let generated: usize = all.iter().map(Vec::len).sum();
    Ok(StreamsRun {
        decode_ts: together.saturating_sub(streams) as f64 / (until - begun).max(1e-9),
        total_ts: generated as f64 / end.max(1e-9),
        first_ms: firsts.iter().sum::<f64>() / streams as f64 * 1e3,
        last_first_ms: begun * 1e3,
        batch: (after.generated_tokens - before.generated_tokens) as f64 / passes as f64,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::session::{AnswerText, EngineOptions, GenerationStats, SparsityChoice, StopReason};
    use thermocline_run::runtime::Sparsity;

    #[test]
    fn first_token_counts_from_when_it_was_chosen_even_if_its_event_was_late() {
        let (sender, events) = std::sync::mpsc::channel();
        let text = AnswerText::default;
        (0..3).for_each(|id| sender.send(Event::Token { id, text: text(), logprobs: None }).unwrap());
        let stats = GenerationStats { time_to_first_token: Duration::from_millis(2), ..GenerationStats::default() };
        sender.send(Event::Done { reason: StopReason::MaxTokens, stats }).unwrap();
        drop(sender);
        let (hour, requested) = (Duration::from_secs(3600), Duration::from_millis(1));
        let times = listen(&events, Instant::now().checked_sub(hour).unwrap_or_else(Instant::now), requested).unwrap();
        assert_eq!((times.len(), times[0]), (3, Duration::from_millis(3)));
        assert!(times[1] > times[0], "{times:?}");
    }

    #[test]
    fn streams_share_passes_and_are_measured() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/llama-relu");
        let sparsity = SparsityChoice::Mode(Sparsity::Dense);
        let engine = Engine::open(Path::new(path), EngineOptions { sparsity, ..EngineOptions::default() }).unwrap();
        // Enough tokens that no stream ends before a busy machine starts the last one.
        let speculation = SpeculationMode::Off;
        let options = StreamsOptions { streams: vec![1, 4], prompt: 8, generate: 240, repetitions: 2, speculation };
        let mut runs = 0;
        let records = run_streams(&engine, &options, &mut |_| runs += 1).unwrap();
        assert_eq!((runs, records.len(), records[0].streams, records[1].streams), (4, 2, 1, 4));
        assert!((records[0].ratio - 1.0).abs() < 1e-9 && records[1].batch > 2.0, "{records:?}");
        assert!(records.iter().all(|it| it.decode_ts > 0.0 && it.total_ts > 0.0 && it.first_ms > 0.0));
        assert!(records.iter().all(|it| it.last_first_ms >= it.first_ms * 0.999));
        let none = StreamsOptions { streams: vec![0], ..options };
        assert!(matches!(run_streams(&engine, &none, &mut |_| ()), Err(Error::Invalid { .. })));
    }
}
