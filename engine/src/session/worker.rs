//! The engine thread.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, RecvError, TryRecvError},
    },
    time::Instant,
};

use super::{
    Event, GenerationStats, Request, StopReason, context::Context, engine::Shared, generation::Generation,
    outbox::Outbox,
};
use crate::{model::Forward, telemetry::Meter};

/// A request on its way to the thread.
#[derive(Debug)]
pub(super) struct Job {
    /// Counts up within its session.
    pub number: u64,
    pub request: Request,
    pub events: Outbox,
    pub asked: Instant,
}

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Command {
    /// A session begins.
    Open { id: u64, context: Context, cancelled: Arc<AtomicU64> },
    /// A session asks.
    Generate { id: u64, job: Box<Job> },
    /// A session ends.
    Close { id: u64 },
    /// The last handle is gone.
    Shutdown,
    /// A fault, to see what becomes of it.
    #[cfg(test)]
    Panic,
}

/// Works until told to stop. A panic stops the engine for good: what was running and whatever is asked later get
/// [`crate::Error::Stopped`] with its message.
pub(super) fn serve(shared: &Shared, forward: Forward, commands: Receiver<Command>) {
    let mut worker = Worker { shared, forward, conversations: Vec::new(), meter: Meter::new(&shared.telemetry) };
    // What a panic leaves half done is dropped, not used.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run(&commands))) {
        let message = format!("it failed inside ({}); open the model again", message(panic.as_ref()));
        tracing::error!("{message}");
        // Before the outboxes go, for they quote it. Nobody else sets it.
        let _ = shared.stopped.set(message);
        worker.meter.idle();
        shared.telemetry.generations.set(0);
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A session as the thread sees it.
struct Conversation<'a> {
    id: u64,
    context: Context,
    cancelled: Arc<AtomicU64>,
    waiting: VecDeque<Job>,
    running: Option<(Generation<'a>, Outbox)>,
}

struct Worker<'a> {
    shared: &'a Shared,
    forward: Forward,
    conversations: Vec<Conversation<'a>>,
    meter: Meter<'a>,
}

impl Worker<'_> {
    /// Commands and steps in turn; sleeps when there is nothing to do.
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let busy = self.conversations.iter().any(|it| it.running.is_some() || !it.waiting.is_empty());
            let command = if busy {
                commands.try_recv()
            } else {
                self.meter.idle();
                commands.recv().map_err(|RecvError| TryRecvError::Disconnected)
            };
            match command {
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return,
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => self.turn(),
            }
            self.account();
        }
    }

    fn obey(&mut self, command: Command) {
        let telemetry = self.meter.telemetry();
        match command {
            Command::Open { id, context, cancelled } => {
                telemetry.sessions.add(1);
                let waiting = VecDeque::new();
                self.conversations.push(Conversation { id, context, cancelled, waiting, running: None });
            }
            Command::Generate { id, job } => {
                if let Some(conversation) = self.conversations.iter_mut().find(|it| it.id == id) {
                    telemetry.generations.add(1);
                    conversation.waiting.push_back(*job);
                }
            }
            Command::Close { id } => {
                if let Some(at) = self.conversations.iter().position(|it| it.id == id) {
                    // Everything it asked for is cancelled by now: this only says so to whoever still listens.
                    while self.step(at) {}
                    self.conversations.remove(at);
                    telemetry.sessions.subtract(1);
                }
            }
            Command::Shutdown => {}
            #[cfg(test)]
            Command::Panic => panic!("asked to"),
        }
    }

    /// One step of every session that has work.
    fn turn(&mut self) {
        for at in 0..self.conversations.len() {
            self.step(at);
        }
    }

    /// One step of a session: the next chunk of its prompt or its next token. Returns whether there was anything to do.
    fn step(&mut self, at: usize) -> bool {
        let Some(conversation) = self.conversations.get_mut(at) else { return false };
        let Conversation { context, cancelled, waiting, running, .. } = conversation;
        if running.is_none() {
            let Some(job) = waiting.pop_front() else { return false };
            *running = start(self.shared, job, context, cancelled, &self.meter);
        }
        let Some((generation, events)) = running else { return true };
        let end = match generation.step(context, &mut self.forward, events, cancelled, &mut self.meter) {
            Ok(None) => return true,
            Ok(Some(reason)) => Ok(reason),
            Err(error) => Err(error),
        };
        if let Some((generation, events)) = running.take() {
            let last = generation.finish(end, context, &events);
            self.meter.telemetry().generations.subtract(1);
            events.finish(last);
        }
        true
    }

    /// Writes down the bytes that are held.
    fn account(&self) {
        let telemetry = self.meter.telemetry();
        telemetry.kv_bytes.set(self.conversations.iter().map(|it| it.context.bytes()).sum());
        telemetry.scratch_bytes.set(self.forward.scratch_bytes());
    }
}

/// Begins a generation, unless it was cancelled while it waited or cannot be done.
fn start<'a>(
    shared: &'a Shared,
    job: Job,
    context: &mut Context,
    cancelled: &AtomicU64,
    meter: &Meter<'_>,
) -> Option<(Generation<'a>, Outbox)> {
    let refused = if job.number < cancelled.load(SeqCst) {
        Event::Done { reason: StopReason::Cancelled, stats: GenerationStats::default() }
    } else {
        match Generation::new(shared, job.number, job.request, job.asked, context) {
            Ok(generation) => return Some((generation, job.events)),
            Err(error) => Event::Error(error),
        }
    };
    meter.telemetry().generations.subtract(1);
    job.events.finish(refused);
    None
}
