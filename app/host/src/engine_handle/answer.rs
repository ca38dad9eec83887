//! A running generation, here or on a server, and its collected events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Receiver,
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use thermocline_engine::{
    Error,
    session::{AnswerText, DeviceEvent, Event, GenerationStats, Request, Session, StopReason, TokenLogprobs},
    tokenizer::reasoning::AnswerPart,
};

use super::session_start::SessionStart;
use crate::remote::{
    Cancel, FinishReason, RemoteClient, RemoteError, RemoteEvent, RemoteRequest, RemoteToolCall, RemoteUsage,
};

/// How a generation ended.
#[derive(Debug)]
pub enum AnswerEnd {
    /// It ended for this reason.
    Done(StopReason, GenerationStats),
    /// An error ended it. The text before the error stays valid.
    Failed(Error),
    /// The server ended it, for a reason in a sentence. The text before that stays valid.
    Refused(String),
}

/// The events since the previous update.
#[derive(Debug, Default)]
pub struct AnswerUpdate {
    /// New text.
    pub text: AnswerText,
    /// Ids of the new tokens.
    pub tokens: Vec<u32>,
    /// Log probabilities of tokens, if the request wants them. The prompt's tokens come first.
    pub logprobs: Vec<TokenLogprobs>,
    /// The embedding of the prompt, if the request wants it.
    pub embedding: Option<Vec<f32>>,
    /// Number of prompt tokens computed, and their total. Set while the engine computes the prompt.
    pub prompt: Option<(usize, usize)>,
    /// Tool calls that a server returned apart from the text, if the request has tools.
    pub tool_calls: Vec<RemoteToolCall>,
    /// Current statistics.
    pub stats: Option<GenerationStats>,
    /// Changes of the device.
    pub device: Vec<DeviceEvent>,
    /// The end of the generation, reported once.
    pub end: Option<AnswerEnd>,
}

/// Time to collect tokens before notifying the window. Waking the window for each token would slow
/// down the model.
pub const BATCH_INTERVAL: Duration = Duration::from_millis(8);

/// Signals an answer's end to threads that only wait for it.
#[derive(Debug, Clone)]
pub struct EndSignal(Arc<EventCollector>);

impl EndSignal {
    /// `true` when the answer has ended.
    pub fn is_over(&self) -> bool {
        self.0.collected.lock().over
    }

    /// Waits for the end, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        self.0.ended.wait_while_for(&mut self.0.collected.lock(), |collected| !collected.over, longest);
    }
}

/// Collector of a generation's events. Dropping it cancels the generation.
#[derive(Debug)]
pub struct Answer {
    events: Arc<EventCollector>,
    source: AnswerSource,
}

/// Where an answer is computed.
#[derive(Debug)]
enum AnswerSource {
    Session(Arc<Session>),
    Server(Cancel),
}

#[derive(Debug, Default)]
struct EventCollector {
    collected: Mutex<CollectedEvents>,
    ended: Condvar,
    /// `true` when the answer was stopped, perhaps before its session has got the request.
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct CollectedEvents {
    update: AnswerUpdate,
    /// `true` when the answer has ended, even if `update.end` was already taken.
    over: bool,
}

impl EventCollector {
    fn end(&self, end: AnswerEnd, notify: &dyn Fn()) {
        let mut collected = self.collected.lock();
        (collected.update.end, collected.over) = (Some(end), true);
        self.ended.notify_all();
        drop(collected);
        notify();
    }
}

impl Answer {
    /// Starts a generation. A separate thread calls `notify` whenever there is a new update.
    pub fn start(notify: impl Fn() + Send + 'static, session: Arc<Session>, request: Request) -> Self {
        let start = SessionStart::new(&session, request);
        let events = Arc::<EventCollector>::default();
        let collector = Arc::clone(&events);
        let work = move || collect(&start.events(&collector.stopped), &collector, &notify);
        if let Err(error) = thread::Builder::new().name("answer".to_owned()).spawn(work) {
            session.cancel();
            events.end(AnswerEnd::Failed(Error::Stopped(format!("the answer could not start: {error}"))), &|| ());
        }
        Answer { events, source: AnswerSource::Session(session) }
    }

    /// Starts a generation on a server. `notify` works as in [`Answer::start`].
    pub fn start_remote(notify: impl Fn() + Send + 'static, client: RemoteClient, request: RemoteRequest) -> Self {
        let (events, cancel) = (Arc::<EventCollector>::default(), Cancel::default());
        let (collector, cancelled) = (Arc::clone(&events), cancel.clone());
        let work = move || collect_remote(&client, &request, &cancelled, &collector, &notify);
        if let Err(error) = thread::Builder::new().name("remote-answer".to_owned()).spawn(work) {
            events.end(AnswerEnd::Refused(format!("the request could not start: {error}")), &|| ());
        }
        Answer { events, source: AnswerSource::Server(cancel) }
    }

    /// Returns the events since the previous call.
    pub fn take_update(&self) -> AnswerUpdate {
        std::mem::take(&mut self.events.collected.lock().update)
    }

    /// Returns the signal of the answer's end.
    pub fn end_signal(&self) -> EndSignal {
        EndSignal(Arc::clone(&self.events))
    }

    /// Cancels the generation after the current token. The text stays.
    pub fn stop(&self) {
        match &self.source {
            AnswerSource::Session(session) => {
                self.events.stopped.store(true, SeqCst);
                session.cancel();
            }
            AnswerSource::Server(cancel) => cancel.cancel(),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Progress of a server's answer, measured on this machine.
struct RemoteProgress {
    began: Instant,
    /// Time from the request to the first piece of text.
    first: Option<Duration>,
    pieces: usize,
}

impl RemoteProgress {
    /// Current statistics. Without the server's counts, each piece counts as one token, which is
    /// almost always right.
    fn stats(&self, usage: Option<RemoteUsage>) -> GenerationStats {
        let elapsed = self.began.elapsed();
        let time_to_first_token = self.first.unwrap_or(elapsed);
        let usage = usage.unwrap_or(RemoteUsage { completion_tokens: self.pieces, ..RemoteUsage::default() });
        GenerationStats {
            prompt_tokens: usage.prompt_tokens,
            reused_tokens: usage.cached_tokens,
            generated_tokens: usage.completion_tokens,
            decode_steps: usage.completion_tokens.saturating_sub(1),
            prompt_time: time_to_first_token,
            time_to_first_token,
            decode_time: elapsed.saturating_sub(time_to_first_token),
            context_used: usage.prompt_tokens + usage.completion_tokens,
            ..GenerationStats::default()
        }
    }
}

/// Collects a server's answer. Token counts are the server's; times are measured on this machine.
fn collect_remote(
    client: &RemoteClient,
    request: &RemoteRequest,
    cancel: &Cancel,
    collector: &EventCollector,
    notify: &dyn Fn(),
) {
    let mut progress = RemoteProgress { began: Instant::now(), first: None, pieces: 0 };
    let answered = client.chat(request, cancel, &mut |event| {
        let RemoteEvent::Text(part, piece) = event else { return };
        progress.first.get_or_insert_with(|| progress.began.elapsed());
        progress.pieces += 1;
        let mut collected = collector.collected.lock();
        collected.update.text.push(part, piece);
        collected.update.stats = Some(progress.stats(None));
        drop(collected);
        notify();
    });
    let end = match answered {
        Ok(answer) => {
            let mut collected = collector.collected.lock();
            for call in answer.tool_calls {
                if request.tools.is_empty() {
                    let text = format!("\n{}({})\n", call.name, call.arguments);
                    collected.update.text.push(AnswerPart::ToolCall, &text);
                } else {
                    collected.update.tool_calls.push(call);
                }
            }
            drop(collected);
            match answer.reason {
                FinishReason::Length => AnswerEnd::Done(StopReason::MaxTokens, progress.stats(answer.usage)),
                FinishReason::Stop | FinishReason::ToolCalls => {
                    AnswerEnd::Done(StopReason::EndOfText, progress.stats(answer.usage))
                }
                FinishReason::Other(reason) => {
                    AnswerEnd::Refused(format!("{} ended the answer: {reason}", client.server().host()))
                }
            }
        }
        Err(RemoteError::Cancelled) => AnswerEnd::Done(StopReason::Cancelled, progress.stats(None)),
        Err(error) => AnswerEnd::Refused(error.to_string()),
    };
    collector.end(end, notify);
}

/// Collects events until the generation ends.
fn collect(events: &Receiver<Event>, collector: &EventCollector, notify: &dyn Fn()) {
    while let Ok(first) = events.recv() {
        let (mut collected, mut end) = (collector.collected.lock(), None);
        let update = &mut collected.update;
        for event in std::iter::once(first).chain(events.try_iter()) {
            match event {
                Event::Prompt { done, total } => update.prompt = Some((done, total)),
                Event::PromptLogprobs(more) => update.logprobs.extend(more),
                Event::Embedding(embedding) => update.embedding = Some(embedding),
                Event::Token { id, text, logprobs } => {
                    update.tokens.push(id);
                    update.logprobs.extend(logprobs);
                    update.text.append(&text);
                }
                Event::Device(event) => update.device.push(event),
                Event::Stats(stats) => update.stats = Some(stats),
                Event::Done { reason, stats } => end = Some(AnswerEnd::Done(reason, stats)),
                Event::Error(error) => end = Some(AnswerEnd::Failed(error)),
            }
        }
        drop(collected);
        if let Some(end) = end {
            return collector.end(end, notify);
        }
        notify();
        thread::sleep(BATCH_INTERVAL);
    }
    collector.end(
        AnswerEnd::Failed(Error::Stopped("its thread ended unexpectedly. Open the model again".to_owned())),
        notify,
    );
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{ContextPolicy, EngineOptions, Message, Prompt, Role, Sampling, SessionOptions};

    use std::{io::Write, sync::mpsc};

    use super::*;
    use crate::{
        engine_handle::{EngineHandle, ModelState},
        library::ModelId,
        remote::RemoteTimeouts,
        testing::{PATIENCE, eventually, scripted, until},
    };

    fn ready() -> EngineHandle {
        let handle = EngineHandle::new(|| ());
        handle.open(ModelId::Builtin, EngineOptions::default());
        eventually("a model", || matches!(handle.state(), ModelState::Ready { .. }));
        handle
    }

    fn request() -> Request {
        let question = Message::new(Role::User, "Tell me a story about a frog.");
        Request { sampling: Sampling::greedy(), ..Request::new(Prompt::Chat(vec![question])) }
    }

    /// Waits for the end, and returns it with the whole text.
    fn all(answer: &Answer) -> (String, AnswerEnd) {
        let mut text = String::new();
        let end = until("the end", || {
            let AnswerUpdate { text: more, end, .. } = answer.take_update();
            text.push_str(&more);
            end
        });
        (text, end)
    }

    #[test]
    fn answer_collects_the_whole_text_and_can_be_stopped() {
        let handle = ready();
        let session = Arc::new(handle.session(SessionOptions::default()).unwrap());
        let (text, end) = all(&Answer::start(|| (), Arc::clone(&session), request()));
        assert!(text.contains("Once upon a time") && text.to_lowercase().contains("frog"), "{text}");
        assert!(matches!(end, AnswerEnd::Done(StopReason::EndOfText | StopReason::ContextFull, _)), "{end:?}");

        let on_full = ContextPolicy::Shift { keep: 1 };
        let endless = Answer::start(|| (), session, Request { ignore_eos: true, on_full, ..request() });
        eventually("its first words", || !endless.take_update().text.is_empty());
        let ending = endless.end_signal();
        ending.wait(Duration::from_millis(1));
        assert!(!ending.is_over(), "it does not wait any longer");
        endless.stop();
        // The end wakes the waiting thread.
        ending.wait(Duration::from_secs(3600));
        let (_, end) = all(&endless);
        assert!(ending.is_over(), "also when it was taken");
        assert!(matches!(end, AnswerEnd::Done(StopReason::Cancelled, _)), "{end:?}");
    }

    #[test]
    fn invalid_request_ends_with_an_error() {
        let handle = ready();
        let session = Arc::new(handle.session(SessionOptions::default()).unwrap());
        let nonsense = Request { sampling: Sampling { top_p: 7.0, ..Sampling::greedy() }, ..request() };
        let (_, end) = all(&Answer::start(|| (), session, nonsense));
        assert!(matches!(&end, AnswerEnd::Failed(why) if why.to_string().contains("top_p")), "{end:?}");
    }

    #[test]
    fn answer_of_a_server_has_figures_while_it_is_written() {
        let (go_on, goes_on) = mpsc::channel::<()>();
        let goes_on = Mutex::new(goes_on);
        let (server, _requests) = scripted(move |stream| {
            let chunk = |word: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n");
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n".to_owned();
            let _ = stream.write_all((head + &chunk("Once") + &chunk(" upon")).as_bytes());
            let _ = goes_on.lock().recv();
            let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
            let _ = stream.write_all(end.as_bytes());
        });
        let client = RemoteClient::new(server, None, RemoteTimeouts { connect: PATIENCE, silence: PATIENCE });
        let mut request = RemoteRequest::new("m");
        request.push("user", "Hello!");
        let answer = Answer::start_remote(|| (), client, request);
        let mut generated = 0;
        eventually("figures of both pieces", || {
            let update = answer.take_update();
            assert!(update.end.is_none(), "{:?}", update.end);
            generated = update.stats.map_or(generated, |stats| stats.generated_tokens);
            generated == 2
        });
        go_on.send(()).unwrap();
        assert!(matches!(all(&answer).1, AnswerEnd::Done(StopReason::EndOfText, stats) if stats.generated_tokens == 2));
    }
}
