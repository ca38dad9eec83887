//! A generation under way, or ended.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc::Receiver},
    thread,
    time::Duration,
};

use thermocline_engine::{
    Error,
    session::{DeviceEvent, Event, GenerationStats, Request, Session, StopReason},
};

/// How a generation ended.
#[derive(Debug)]
pub enum End {
    /// As [`StopReason`] says.
    Done(StopReason, GenerationStats),
    /// By an error. What was said before it stands.
    Failed(Error),
}

/// What is new since the last time.
#[derive(Debug, Default)]
pub struct Update {
    /// More text.
    pub text: String,
    /// Ids of the tokens that made it.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt in the cache, and of how many; once, while it is computed.
    pub prompt: Option<(usize, usize)>,
    /// Running figures.
    pub stats: Option<GenerationStats>,
    /// What happened to the device.
    pub device: Vec<DeviceEvent>,
    /// The end.
    pub end: Option<End>,
}

/// Words are gathered for so long before anybody hears of them: who is woken for each takes the processor from the model.
pub const GATHERED: Duration = Duration::from_millis(8);

/// The end of an answer, for whoever wants only that.
#[derive(Debug, Clone)]
pub struct Ending(Arc<News>);

impl Ending {
    /// Whether it has come.
    pub fn is_over(&self) -> bool {
        self.0.lock().over
    }

    /// Waits for it, but no longer than `longest`.
    pub fn wait(&self, longest: Duration) {
        drop(self.0.ended.wait_timeout_while(self.0.lock(), longest, |heard| !heard.over));
    }
}

/// Collects what a generation says. Dropping it cancels the generation.
#[derive(Debug)]
pub struct Answer {
    news: Arc<News>,
    session: Arc<Session>,
}

#[derive(Debug, Default)]
struct News {
    heard: Mutex<Heard>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    update: Update,
    /// Whether the end has come, taken or not.
    over: bool,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: End) {
        let mut heard = self.lock();
        (heard.update.end, heard.over) = (Some(end), true);
        self.ended.notify_all();
    }
}

impl Answer {
    /// Asks. `notify` is called, from a thread of its own, whenever there is something to take.
    pub fn begin(notify: impl Fn() + Send + 'static, session: Arc<Session>, request: Request) -> Self {
        let events = session.generate(request);
        let news = Arc::<News>::default();
        let to = Arc::clone(&news);
        let listen = move || listen(&events, &to, &notify);
        if let Err(error) = thread::Builder::new().name("answer".to_owned()).spawn(listen) {
            session.cancel();
            news.end(End::Failed(Error::Stopped(format!("no thread to listen with: {error}"))));
        }
        Answer { news, session }
    }

    /// What is new.
    pub fn take(&self) -> Update {
        std::mem::take(&mut self.news.lock().update)
    }

    /// Its end.
    pub fn ending(&self) -> Ending {
        Ending(Arc::clone(&self.news))
    }

    /// Ends it after the token being computed; what was said stands.
    pub fn stop(&self) {
        self.session.cancel();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.session.cancel();
    }
}

fn listen(events: &Receiver<Event>, news: &News, notify: &dyn Fn()) {
    while let Ok(first) = events.recv() {
        let (mut heard, mut end) = (news.lock(), None);
        let update = &mut heard.update;
        for event in std::iter::once(first).chain(events.try_iter()) {
            match event {
                Event::Prompt { done, total } => update.prompt = Some((done, total)),
                Event::Token { id, text } => {
                    update.tokens.push(id);
                    update.text.push_str(&text);
                }
                Event::Device(event) => update.device.push(event),
                Event::Stats(stats) => update.stats = Some(stats),
                Event::Done { reason, stats } => end = Some(End::Done(reason, stats)),
                Event::Error(error) => end = Some(End::Failed(error)),
            }
        }
        drop(heard);
        if let Some(end) = end {
            news.end(end);
            notify();
            return;
        }
        notify();
        thread::sleep(GATHERED);
    }
    news.end(End::Failed(Error::Stopped("it has ended; open the model again".to_owned())));
    notify();
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use thermocline_engine::session::{EngineOptions, Message, Prompt, Role, Sampling, SessionOptions};

    use super::*;
    use crate::{
        host::{Host, HostState},
        library::ModelId,
    };

    fn ready() -> Host {
        let host = Host::new(|| ());
        host.open(ModelId::Builtin, EngineOptions::default());
        while !matches!(host.state(), HostState::Ready { .. }) {
            thread::sleep(Duration::from_millis(2));
        }
        host
    }

    fn request() -> Request {
        let question = Message { role: Role::User, content: "Tell me a story about a frog.".to_owned() };
        Request { sampling: Sampling::greedy(), ..Request::new(Prompt::Chat(vec![question])) }
    }

    /// Everything until the end.
    fn all(answer: &Answer) -> (String, End) {
        let (began, mut text) = (Instant::now(), String::new());
        loop {
            let Update { text: more, end, .. } = answer.take();
            text.push_str(&more);
            if let Some(end) = end {
                return (text, end);
            }
            assert!(began.elapsed() < Duration::from_secs(30), "no end within 30 s of {text:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_answer_arrives_whole_and_can_be_stopped() {
        let host = ready();
        let session = Arc::new(host.session(SessionOptions::default()).unwrap());
        let (text, end) = all(&Answer::begin(|| (), Arc::clone(&session), request()));
        assert!(text.contains("Once upon a time") && text.to_lowercase().contains("frog"), "{text}");
        assert!(matches!(end, End::Done(StopReason::EndOfText | StopReason::ContextFull, _)), "{end:?}");

        let endless = Answer::begin(|| (), session, Request { ignore_eos: true, ..request() });
        while endless.take().text.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        let (began, ending) = (Instant::now(), endless.ending());
        ending.wait(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(10), "it does not wait any longer");
        assert!(!ending.is_over());
        endless.stop();
        ending.wait(Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(50), "the end wakes who waits for it");
        let (_, end) = all(&endless);
        assert!(ending.is_over(), "also when it was taken");
        assert!(matches!(end, End::Done(StopReason::Cancelled | StopReason::ContextFull, _)), "{end:?}");
    }

    #[test]
    fn what_cannot_be_computed_ends_with_a_sentence() {
        let host = ready();
        let session = Arc::new(host.session(SessionOptions::default()).unwrap());
        let nonsense = Request { sampling: Sampling { top_p: 7.0, ..Sampling::greedy() }, ..request() };
        let (_, end) = all(&Answer::begin(|| (), session, nonsense));
        assert!(matches!(&end, End::Failed(why) if why.to_string().contains("top_p")), "{end:?}");
    }
}
