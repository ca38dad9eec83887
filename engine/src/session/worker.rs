//! The engine thread.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError},
    },
    time::Instant,
};

use super::{
    DeviceEvent, Event, GenerationStats, Request, SparsityReport, StopReason,
    context::Context,
    engine::Shared,
    generation::Generation,
    loader::{Loaded, Source},
    outbox::Outbox,
    residence::Residence,
};
use crate::{
    error::{Error, Result},
    model::{Forward, Sparsity, Steering},
    sparsity::placement::Machine,
    telemetry::{Meter, neurons::NeuronRecorder},
};

/// How often neurons give way to what there is no room for before the CPU takes over.
const SQUEEZES: usize = 4;

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
    /// Something was cancelled.
    Wake,
    /// The forward pass is to move: to what `source` gives, or to the CPU.
    Device { source: Option<Arc<dyn Source>> },
    /// A device that was given up is to be tried again.
    RetryDevice,
    /// Callers wish for something else.
    Wish,
    /// So many bytes of the budget are to be left alone for a while.
    Spare { bytes: u64 },
    /// The machine has been measured, or not; what was spared for that can be used again.
    Machine { machine: Option<Box<Machine>> },
    /// A device has been loaded, or not.
    Loaded { number: u64, result: Result<Loaded> },
    /// The last handle is gone.
    Shutdown,
    /// A fault, to see what becomes of it.
    Panic,
}

/// Works until told to stop. A panic stops the engine for good: what was running and whatever is asked later get
/// [`Error::Stopped`] with its message.
pub(super) fn serve(
    shared: &Arc<Shared>,
    forward: Forward,
    neurons: NeuronRecorder,
    source: Option<Arc<dyn Source>>,
    commands: Sender<Command>,
    inbox: Receiver<Command>,
) {
    let residence = Residence::new(Arc::clone(shared), commands, source);
    let meter = Meter::new(&shared.telemetry, neurons);
    let mut worker = Worker { shared, forward, residence, conversations: Vec::new(), meter, squeezed: 0 };
    // What a panic leaves half done is dropped, not used.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run(&inbox))) {
        let message = format!("it failed inside ({}); open the model again", panic_message(panic.as_ref()));
        tracing::error!("{message}");
        // Before the outboxes go, for they quote it. Nobody else sets it.
        let _ = shared.stopped.set(message);
        worker.meter.idle();
        shared.telemetry.generations.set(0);
    }
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
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
    residence: Residence,
    conversations: Vec<Conversation<'a>>,
    meter: Meter<'a>,
    /// How often neurons have given way since the last token.
    squeezed: usize,
}

impl Worker<'_> {
    /// Commands and steps in turn; sleeps when there is nothing to do.
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            self.residence.tick();
            let busy = self.is_busy();
            if !busy {
                self.meter.idle();
            }
            let command = if busy || self.residence.is_moving() {
                commands.try_recv()
            } else {
                match self.residence.deadline() {
                    None => commands.recv().map_err(|RecvError| TryRecvError::Disconnected),
                    Some(at) => match commands.recv_timeout(at.saturating_duration_since(Instant::now())) {
                        Err(RecvTimeoutError::Timeout) => continue,
                        other => other.map_err(|_| TryRecvError::Disconnected),
                    },
                }
            };
            match command {
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return,
                Ok(command) => {
                    let wish = matches!(command, Command::Wish);
                    self.obey(command);
                    // Wishes may come faster than they are granted.
                    if wish && busy {
                        self.turn();
                    }
                }
                Err(TryRecvError::Empty) => self.turn(),
            }
            self.account();
        }
    }

    /// Whether there is something to compute, and a place to do it.
    fn is_busy(&self) -> bool {
        let asked = |it: &Conversation<'_>| it.running.is_some() || !it.waiting.is_empty();
        !self.residence.is_awaited() && self.conversations.iter().any(asked)
    }

    fn obey(&mut self, command: Command) {
        if matches!(command, Command::Device { .. } | Command::Wish | Command::RetryDevice | Command::Loaded { .. }) {
            self.meter.neurons().forget_paces();
        }
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
            Command::Wake => self.dismiss(),
            Command::Device { source } => {
                self.bring_home();
                self.residence.choose(&mut self.forward, source);
            }
            Command::Wish => self.grant(),
            Command::RetryDevice => self.residence.retry(),
            Command::Spare { bytes } => {
                self.shared.terms.reserve_more(bytes);
                self.replan();
            }
            Command::Machine { machine } => {
                self.shared.terms.reserve_nothing();
                if let Some(machine) = machine {
                    self.shared.terms.set_machine(*machine);
                }
                self.reckon();
                let mut contexts: Vec<&mut Context> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
                let event = self.residence.reconsider(&mut self.forward, &mut contexts);
                self.announce(event);
            }
            Command::Loaded { number, result } => {
                let event = self.residence.loaded(&mut self.forward, number, result);
                self.announce(event);
                self.grant();
            }
            Command::Shutdown => {}
            Command::Panic => panic!("asked to"),
        }
    }

    /// Does what callers wish for last.
    fn grant(&mut self) {
        let wish = self.shared.wishes.take();
        let now = SparsityReport::new(wish.sparsity, &self.shared.model, self.shared.recall);
        if self.forward.sparsity() != now.mode {
            tracing::info!(mode = %now.mode, reason = now.reason, "sparsity");
            self.forward.set_sparsity(now.mode);
            self.shared.terms.set_sparsity(now.mode);
            self.replan();
        }
        *self.shared.sparsity.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let adapt = &self.shared.terms.adapt;
        if adapt.is_on() && !wish.adaptive {
            self.forward.steer(&Steering::default());
        }
        adapt.switch(wish.adaptive, &self.shared.model, self.shared.recall);
        self.reckon();
        if let Some(bytes) = wish.budget {
            let mut contexts: Vec<&mut Context> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
            let event = self.residence.set_budget(&mut self.forward, &mut contexts, bytes);
            self.announce(event);
        }
    }

    /// Tells planners how many tokens the caches that are on the device, or soon will be, have room for.
    fn reckon(&self) {
        let speaks = |it: &&Conversation<'_>| it.running.is_some() || !it.waiting.is_empty() || it.context.on_device();
        let tokens = self.conversations.iter().filter(speaks).map(|it| it.context.capacity()).sum();
        self.shared.terms.set_tokens(tokens);
    }

    /// Plans anew. Returns whether that went well.
    fn replan(&mut self) -> bool {
        self.reckon();
        let mut contexts: Vec<&mut Context> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
        self.residence.replan(&mut self.forward, &mut contexts)
    }

    /// Ends what was cancelled before it began; a request that begins is asked between its tokens.
    fn dismiss(&mut self) {
        for Conversation { cancelled, waiting, .. } in &mut self.conversations {
            let all = std::mem::take(waiting);
            for job in all {
                if job.number < cancelled.load(SeqCst) {
                    refuse(job.events, cancelled_event(), &self.meter);
                } else {
                    waiting.push_back(job);
                }
            }
        }
    }

    /// Tells everybody who listens.
    fn announce(&mut self, event: Option<DeviceEvent>) {
        let Some(event) = event else { return };
        for Conversation { waiting, running, .. } in &self.conversations {
            let running = running.iter().map(|(_, events)| events);
            for events in running.chain(waiting.iter().map(|job| &job.events)) {
                // Whether anybody does is noticed with the next token.
                let _ = events.send(Event::Device(event.clone()));
            }
        }
    }

    /// Gives up the caches on a device that is gone.
    fn release(&mut self) {
        for Conversation { context, .. } in &mut self.conversations {
            if context.on_device() {
                context.release();
            }
        }
    }

    /// Brings the caches on the device into RAM.
    fn bring_home(&mut self) {
        for Conversation { context, .. } in &mut self.conversations {
            context.bring_home(&mut self.forward);
        }
    }

    /// Brings the caches of sessions that are silent into RAM; they return when they are asked. Returns whether there were any
    /// on the device.
    fn make_room(&mut self) -> bool {
        let silent = self.conversations.iter_mut().filter(|it| it.running.is_none() && it.context.on_device());
        silent.map(|it| it.context.bring_home(&mut self.forward)).count() > 0
    }

    /// Lets neurons give way to what there was no room for, unless that has been tried often. Returns whether they did.
    fn squeeze(&mut self, error: &Error) -> bool {
        if self.squeezed == SQUEEZES {
            return false;
        }
        // At first the caches that are new may be all that plans did not know of.
        if let Error::Memory { wanted, available, .. } = error
            && self.squeezed > 0
        {
            self.shared.terms.reserve_more(wanted.saturating_sub(*available).max(self.residence.held() / 16));
        }
        self.squeezed += 1;
        self.replan()
    }

    /// One step of every session that has work, and one of what moves.
    fn turn(&mut self) {
        for at in 0..self.conversations.len() {
            self.step(at);
        }
        let mut contexts: Vec<&mut Context> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
        let follows = self.shared.terms.adapt.is_on();
        if let Err(error) = self.residence.settle(follows, &mut self.forward, &mut contexts) {
            self.fail(error);
        }
    }

    /// The device failed: the CPU goes on.
    fn fail(&mut self, error: Error) {
        self.meter.neurons().forget_paces();
        if matches!(error, Error::Memory { .. }) {
            self.bring_home();
        }
        let event = self.residence.fail(&mut self.forward, error);
        self.release();
        self.announce(event);
    }

    /// One step of a session: the next chunk of its prompt or its next token. Returns whether there was anything to do.
    fn step(&mut self, at: usize) -> bool {
        let Some(conversation) = self.conversations.get_mut(at) else { return false };
        let Conversation { id, context, cancelled, waiting, running } = conversation;
        if running.is_none() {
            let Some(job) = waiting.pop_front() else { return false };
            *running = start(self.shared, *id, job, context, cancelled, &self.meter);
        }
        let Some((generation, events)) = running else { return true };
        let adapt = &self.shared.terms.adapt;
        if self.forward.sparsity() == Sparsity::Predicted && adapt.is_on() {
            self.forward.steer(&adapt.steering());
        }
        let (steps, before) = generation.decoded();
        let stepped = generation.step(context, &mut self.forward, events, cancelled, adapt, &mut self.meter);
        let (decoded, time) = generation.decoded();
        // What moves at the same time takes its share.
        if decoded > steps && !self.residence.is_moving() {
            let resident = self.shared.resident.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let state = self.shared.state(self.forward.sparsity());
            self.shared.observed.token(state, resident.as_ref(), time.saturating_sub(before));
        }
        let end = match stepped {
            Ok(None) => {
                self.squeezed = 0;
                return true;
            }
            Ok(Some(reason)) => Ok(reason),
            Err(error @ (Error::Gpu { .. } | Error::Memory { .. })) if self.residence.on_device() => {
                // The step is done again: with the room of silent sessions, with that of neurons, or on the CPU.
                let full = matches!(error, Error::Memory { .. });
                if full && (self.make_room() || self.squeeze(&error)) {
                    return true;
                }
                self.fail(error);
                return true;
            }
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
    fn account(&mut self) {
        let telemetry = self.meter.telemetry();
        telemetry.kv_bytes.set(self.conversations.iter().map(|it| it.context.bytes()).sum());
        telemetry.scratch_bytes.set(self.forward.scratch_bytes());
        self.residence.account();
        self.residence.show(&self.forward);
    }
}

/// Begins a generation, unless it was cancelled while it waited or cannot be done.
fn start<'a>(
    shared: &'a Shared,
    session: u64,
    job: Job,
    context: &mut Context,
    cancelled: &AtomicU64,
    meter: &Meter<'_>,
) -> Option<(Generation<'a>, Outbox)> {
    if job.number < cancelled.load(SeqCst) {
        refuse(job.events, cancelled_event(), meter);
        return None;
    }
    match Generation::new(shared, session, job.number, job.request, job.asked, context) {
        Ok(generation) => Some((generation, job.events)),
        Err(error) => {
            refuse(job.events, Event::Error(error), meter);
            None
        }
    }
}

/// Ends a request that has not begun.
fn refuse(events: Outbox, with: Event, meter: &Meter<'_>) {
    meter.telemetry().generations.subtract(1);
    events.finish(with);
}

fn cancelled_event() -> Event {
    Event::Done { reason: StopReason::Cancelled, stats: GenerationStats::default() }
}
