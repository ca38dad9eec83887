//! One generation on the terminal: its tokens, the progress of the prompt, and Ctrl-C.

use std::{
    io::{IsTerminal, Write},
    sync::mpsc::RecvTimeoutError,
    thread,
    time::Duration,
};

use serde_json::{Map, Value, json};
use thermocline_engine::{
    Error,
    session::{DeviceEvent, DraftCounts, DraftSource, Event, GenerationStats, Request, Session, StopReason},
    tokenizer::reasoning::transcript::TranscriptWriter,
};

use crate::{
    engine_options::DeviceArgs,
    failure::{Failure, Outcome, one_line},
    interrupt::InterruptWatch,
    progress::{ProgressUnit, TerminalProgress},
    standard_error::say,
};
use thermocline_host::{answer_stats::reason_name, engine_handle::BATCH_INTERVAL};

/// Interval between checks for Ctrl-C while no token arrives.
const POLL: Duration = Duration::from_millis(20);

/// A complete generation.
#[derive(Debug)]
pub struct CompleteAnswer {
    /// The text, without a stop string. Thoughts are between `<think>` and `</think>`.
    pub text: String,
    /// Ids of the tokens.
    pub tokens: Vec<u32>,
    /// Stop reason.
    pub reason: StopReason,
    /// Statistics.
    pub stats: GenerationStats,
}

/// Generates an answer. `show` receives every token with the text that it completes. If `show`
/// fails, generation stops. It also stops if the GPU has no room for the prompt and `device`
/// requires the GPU.
pub fn answer(
    session: &mut Session,
    request: Request,
    device: Option<&DeviceArgs>,
    show: &mut dyn FnMut(u32, &str) -> Outcome,
) -> Outcome<CompleteAnswer> {
    let watch = InterruptWatch::start();
    let events = session.generate(request);
    let mut progress = Some(TerminalProgress::new("reading the prompt", ProgressUnit::Tokens));
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let mut writer = TranscriptWriter::default();
    let (mut cancelled, mut spoke) = (false, false);
    let mut failure = None;
    loop {
        if watch.pressed() && !cancelled {
            session.cancel();
            cancelled = true;
        }
        let next = events.try_recv().or_else(|_| {
            if std::mem::take(&mut spoke) {
                thread::sleep(BATCH_INTERVAL);
            }
            events.recv_timeout(POLL)
        });
        match next {
            Ok(Event::Prompt { done, total }) => {
                if let Some(progress) = &mut progress {
                    progress.set(done as u64, total as u64);
                }
            }
            Ok(Event::Token { id, text: pieces, .. }) => {
                (progress, spoke) = (None, true);
                let piece: String = pieces.pieces().map(|(part, piece)| writer.push(part, piece)).collect();
                text.push_str(&piece);
                tokens.push(id);
                if failure.is_none()
                    && let Err(error) = show(id, &piece)
                {
                    failure = Some(error);
                    session.cancel();
                }
            }
            Ok(Event::Device(event)) => match (&event, device) {
                (DeviceEvent::Cpu { reason }, Some(device)) if tokens.is_empty() && failure.is_none() => {
                    if let Err(refused) = device.refused(reason) {
                        failure = Some(refused);
                        session.cancel();
                    }
                }
                _ => say(device_line(&event)),
            },
            Ok(Event::Stats(_) | Event::PromptLogprobs(_) | Event::Embedding(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Done { reason, stats }) => {
                return match failure {
                    Some(failure) => Err(failure),
                    None => Ok(CompleteAnswer { text, tokens, reason, stats }),
                };
            }
            Ok(Event::Error(error)) => return Err(failure.unwrap_or(Failure::Engine(error))),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failure.unwrap_or(Failure::Engine(Error::Stopped("it ended without an answer".to_owned()))));
            }
        }
    }
}

/// Describes a device event in one line.
pub fn device_line(event: &DeviceEvent) -> String {
    one_line(&match event {
        DeviceEvent::Lost { adapter, reason } => format!("[GPU {adapter} lost: {reason}; the CPU continues]"),
        DeviceEvent::Cpu { reason } => format!("[the CPU continues: {reason}]"),
        DeviceEvent::Fallback(fallback) => format!("[{fallback}; the model is loaded again]"),
        DeviceEvent::Gpu { adapter } => format!("[GPU {adapter} continues]"),
    })
}

/// Writes generated text and flushes. On a terminal, it removes control characters.
pub fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        let harmless = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
        write!(out, "{}", text.chars().map(harmless).collect::<String>())?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Describes the forgotten part of a conversation in one line; `None` if nothing is forgotten.
pub fn forgotten_line(stats: &GenerationStats) -> Option<String> {
    let GenerationStats { forgotten_tokens, forgotten_turns, context_length, .. } = stats;
    let turns = match forgotten_turns {
        0 => String::new(),
        1 => "the oldest question and its answer, ".to_owned(),
        turns => format!("the oldest {turns} questions and their answers, "),
    };
    (*forgotten_tokens > 0).then(|| {
        format!(
            "[the context of {context_length} tokens is full: {turns}{forgotten_tokens} tokens are forgotten; --ctx N makes it larger]"
        )
    })
}

/// Formats the statistics in one line.
pub fn stats_line(stats: &GenerationStats, reason: &StopReason) -> String {
    let reused = match stats.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} reused)"),
    };
    let drafts = match stats.drafted_tokens() {
        0 => String::new(),
        n => format!(" ({} of {n} drafts accepted)", stats.accepted_tokens()),
    };
    let ended = match reason {
        StopReason::EndOfText => String::new(),
        StopReason::StopString(text) => format!(", stopped at {text:?}"),
        StopReason::MaxTokens => ", --max-tokens reached".to_owned(),
        StopReason::ContextFull => ", context full".to_owned(),
        StopReason::Cancelled => ", stopped".to_owned(),
    };
    format!(
        "[prompt {} tokens{reused}, {:.1}/s; answer {} tokens{drafts}, {:.1}/s; first after {:.0} ms; context {}/{}; seed {}{ended}]",
        stats.prompt_tokens,
        stats.prompt_rate(),
        stats.generated_tokens,
        stats.decode_rate(),
        stats.time_to_first_token.as_secs_f64() * 1e3,
        stats.context_used,
        stats.context_length,
        stats.seed,
    )
}

/// Formats the answer as JSON. Times are in milliseconds, rates in tokens per second.
pub fn to_json(answer: &CompleteAnswer) -> Value {
    let stats = &answer.stats;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let by_source = |count: fn(DraftCounts) -> usize| -> Map<String, Value> {
        let counts = DraftSource::ALL.map(|source| (source.name().to_owned(), count(stats.drafts.of(source)).into()));
        counts.into_iter().collect()
    };
    let stop_string = if let StopReason::StopString(text) = &answer.reason { Some(text) } else { None };
    json!({
        "text": answer.text,
        "tokens": answer.tokens,
        "reason": reason_name(&answer.reason),
        "stop_string": stop_string,
        "stats": {
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "computed_pictures": stats.computed_pictures,
            "device_pictures": stats.device_pictures,
            "generated_tokens": stats.generated_tokens,
            "drafted": by_source(|drafts| drafts.drafted),
            "accepted": by_source(|drafts| drafts.accepted),
            "prompt_ms": milliseconds(stats.prompt_time),
            "time_to_first_token_ms": milliseconds(stats.time_to_first_token),
            "decode_ms": milliseconds(stats.decode_time),
            "prompt_tokens_per_second": stats.prompt_rate(),
            "decode_tokens_per_second": stats.decode_rate(),
            "context_used": stats.context_used,
            "context_length": stats.context_length,
            "forgotten_tokens": stats.forgotten_tokens,
            "forgotten_turns": stats.forgotten_turns,
            "seed": stats.seed,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_counted_for_each_source() {
        let mut stats = GenerationStats { generated_tokens: 9, ..GenerationStats::default() };
        assert!(!stats_line(&stats, &StopReason::EndOfText).contains("draft"));
        stats.drafts.add(DraftSource::Lookup, DraftCounts { drafted: 5, accepted: 2 });
        stats.drafts.add(DraftSource::Head, DraftCounts { drafted: 3, accepted: 1 });
        let line = stats_line(&stats, &StopReason::EndOfText);
        assert!(line.contains("answer 9 tokens (3 of 8 drafts accepted)"), "{line}");
        let answer = CompleteAnswer { stats, reason: StopReason::EndOfText, text: String::new(), tokens: Vec::new() };
        let json = to_json(&answer);
        assert_eq!(json["stats"]["drafted"], json!({ "lookup": 5, "mtp": 3, "model": 0 }));
        assert_eq!(json["stats"]["accepted"], json!({ "lookup": 2, "mtp": 1, "model": 0 }));
    }
}
