//! The engine thread carries out commands and takes turns. A turn computes tokens of all sessions
//! in one pass, then a chunk of one prompt.

mod drafting;
mod placing;
mod turn;

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError},
    },
    time::{Duration, Instant},
};

use super::{
    DeviceEvent, Event, GenerationStats, Priority, Request, SparsityReport, StopReason,
    context::SessionContext,
    device_manager::DeviceManager,
    drafter::Drafter,
    engine_state::EngineState,
    generation::{Generation, StepResources},
    lent_turn::TurnLoan,
    loader::{DeviceSource, LoadedDevice},
    request::{EngineStop, EventSender},
    turns::Turns,
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::{Meter, neurons::NeuronRecorder},
};
use thermocline_run::{
    hybrid::{PictureDevice, PictureProcessor},
    placement::Machine,
    runtime::{Forward, Sparsity, ThresholdCorrection},
};

/// Number of attempts to make room by releasing neurons, before the CPU takes over.
const EVICTIONS: usize = 4;
/// Interval at which firing counts are saved while there is nothing to compute.
const COUNTS_PERIOD: Duration = Duration::from_secs(300);

/// A request that waits for the thread.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// Number of the request within its session, ascending.
    pub number: u64,
    pub request: Request,
    pub events: EventSender,
    pub requested_at: Instant,
}

/// A command to the engine thread.
#[derive(Debug)]
pub(super) enum EngineCommand {
    /// A session begins.
    Open { id: u64, context: Box<SessionContext>, cancelled: Arc<AtomicU64>, priority: Priority },
    /// A session has a request.
    Generate { id: u64, request: Box<QueuedRequest> },
    /// A session ends.
    Close { id: u64 },
    /// A request was cancelled.
    Wake,
    /// Switch to the device of `source`, or to the CPU.
    SwitchDevice { source: Option<Arc<dyn DeviceSource>> },
    /// Try a device again that was given up.
    RetryDevice,
    /// Apply the latest settings.
    ApplySettings,
    /// Leave `bytes` of the budget free until the next [`EngineCommand::SetMachine`].
    Reserve { bytes: u64 },
    /// Use these speeds for plans; `None` uses the known speeds. Ends a reservation.
    SetMachine { machine: Option<Box<Machine>> },
    /// Let another thread compute.
    Lend(TurnLoan),
    /// Load `number` has ended.
    Loaded { number: u64, result: Result<LoadedDevice> },
    /// The last handle was dropped.
    Shutdown,
    /// Panic, for tests of internal faults.
    #[cfg(any(test, feature = "test-hooks"))]
    Panic,
}

/// The parts that the engine thread computes with.
#[derive(Debug)]
pub(super) struct EngineProcessors {
    /// The model.
    pub forward: Forward,
    /// The model that drafts tokens, if there is one.
    pub drafter: Option<Drafter>,
    /// The vision tower, if there is one.
    pub tower: Option<PictureProcessor>,
}

/// Carries out commands and requests until the last handle is dropped. A panic stops the engine for
/// good: running and later requests get [`Error::Stopped`] with its message. The loss of a mapped
/// file also stops it, with [`Error::FileLost`].
pub(super) fn serve(
    state: &Arc<EngineState>,
    processors: EngineProcessors,
    neurons: NeuronRecorder,
    source: Option<Arc<dyn DeviceSource>>,
    commands: Sender<EngineCommand>,
    inbox: Receiver<EngineCommand>,
) {
    let device = DeviceManager::new(Arc::clone(state), commands, source);
    let meter = Meter::new(&state.figures.telemetry, neurons);
    let (conversations, turns) = (Vec::new(), Turns::default());
    let EngineProcessors { forward, drafter, tower } = processors;
    let (evictions, placement_due) = (0, false);
    let mut worker =
        EngineWorker { state, forward, drafter, tower, device, conversations, meter, evictions, turns, placement_due };
    // State that a panic leaves half changed is dropped, not used.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run(&inbox))) {
        let message = format!("an internal error occurred ({}); open the model again", panic_message(panic.as_ref()));
        tracing::error!("{message}");
        // The reason must be set before the event senders are dropped, because they report it. A
        // lost file may have set it earlier.
        let _ = state.stopped.set(EngineStop::Fault(message));
    }
    worker.meter.idle();
    state.figures.telemetry.generations.set(0);
}

/// The message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The engine thread's view of a session.
struct ServedSession<'a> {
    id: u64,
    context: SessionContext,
    cancelled: Arc<AtomicU64>,
    priority: Priority,
    /// Time of its last computation.
    used_at: Instant,
    waiting: VecDeque<QueuedRequest>,
    running: Option<(Generation<'a>, EventSender)>,
}

/// The engine thread's state.
struct EngineWorker<'a> {
    state: &'a EngineState,
    forward: Forward,
    drafter: Option<Drafter>,
    tower: Option<PictureProcessor>,
    device: DeviceManager,
    conversations: Vec<ServedSession<'a>>,
    meter: Meter<'a>,
    /// How often neurons were released since the last token.
    evictions: usize,
    turns: Turns,
    /// True if a change of the placement waits for the end of an answer
    /// ([`EngineWorker::postpones_placement`]).
    placement_due: bool,
}

impl EngineWorker<'_> {
    /// Alternates commands and turns; sleeps when there is nothing to do.
    fn run(&mut self, commands: &Receiver<EngineCommand>) {
        let mut counts_saved = Instant::now();
        loop {
            self.device.retry_if_due();
            let busy = self.is_busy();
            if !busy {
                self.meter.idle();
                if counts_saved.elapsed() > COUNTS_PERIOD {
                    self.save_counts();
                    counts_saved = Instant::now();
                }
            }
            let command = if busy || self.device.moving {
                commands.try_recv()
            } else {
                match self.device.deadline() {
                    None => commands.recv().map_err(|RecvError| TryRecvError::Disconnected),
                    Some(at) => match commands.recv_timeout(at.saturating_duration_since(Instant::now())) {
                        Err(RecvTimeoutError::Timeout) => continue,
                        other => other.map_err(|_| TryRecvError::Disconnected),
                    },
                }
            };
            match command {
                Ok(EngineCommand::Shutdown) | Err(TryRecvError::Disconnected) => return self.save_counts(),
                Ok(command) => {
                    let repeats = matches!(command, EngineCommand::ApplySettings | EngineCommand::Lend(_));
                    self.handle_command(command);
                    // These commands may arrive faster than they are carried out, so that turns are
                    // taken in between.
                    if repeats && busy {
                        self.run_turn();
                    }
                }
                Err(TryRecvError::Empty) => self.run_turn(),
            }
            self.place_drafter(None);
            self.publish_memory();
            // Requests end with the stop error when their event senders are dropped.
            if self.state.stop_error().is_some() {
                return;
            }
        }
    }

    /// Saves the firing counts for the next run.
    fn save_counts(&self) {
        let Some(counts) = &self.state.figures.counts else { return };
        if let Err(error) = counts.save(&self.state.figures.neurons) {
            tracing::warn!(%error, "the firing counts were not saved");
        }
    }

    /// True if there is something to compute and a processor to compute it.
    fn is_busy(&self) -> bool {
        let has_work = |it: &ServedSession<'_>| it.running.is_some() || !it.waiting.is_empty();
        !self.device.is_awaited() && self.conversations.iter().any(has_work)
    }

    fn handle_command(&mut self, command: EngineCommand) {
        if matches!(
            command,
            EngineCommand::SwitchDevice { .. }
                | EngineCommand::ApplySettings
                | EngineCommand::RetryDevice
                | EngineCommand::Loaded { .. }
        ) {
            self.meter.neurons().forget_paces();
            self.conversations.iter_mut().for_each(|it| it.context.controller.forget_costs());
        }
        let telemetry = self.meter.telemetry();
        match command {
            EngineCommand::Open { id, context, cancelled, priority } => {
                telemetry.sessions.add(1);
                let waiting = VecDeque::new();
                let (running, used_at) = (None, Instant::now());
                let opened = ServedSession { id, context: *context, cancelled, priority, used_at, waiting, running };
                self.conversations.push(opened);
            }
            EngineCommand::Generate { id, request } => {
                if let Some(conversation) = self.conversations.iter_mut().find(|it| it.id == id) {
                    telemetry.generations.add(1);
                    conversation.waiting.push_back(*request);
                }
            }
            EngineCommand::Close { id } => {
                if let Some(at) = self.conversations.iter().position(|it| it.id == id) {
                    // All requests of the session are cancelled by now, so this only sends their
                    // last events.
                    while self.step(at, usize::MAX) {}
                    self.conversations.remove(at);
                    telemetry.sessions.subtract(1);
                    self.hold_experts();
                }
            }
            EngineCommand::Wake => self.end_cancelled(),
            EngineCommand::SwitchDevice { source } => {
                self.move_caches_to_ram();
                self.device.switch_source(&mut self.forward, source);
                // The switch also changed settings, and if nothing is loaded, no later event would
                // apply them.
                self.apply_settings();
            }
            EngineCommand::ApplySettings => self.apply_settings(),
            EngineCommand::RetryDevice => self.device.retry(),
            EngineCommand::Lend(turn) => turn.wait(),
            EngineCommand::Reserve { bytes } => {
                self.state.planner.reserve_more(bytes);
                if !self.postpones_placement() {
                    self.replan();
                }
            }
            EngineCommand::SetMachine { machine } => {
                self.state.planner.clear_reserve();
                if let Some(machine) = machine {
                    self.state.planner.set_machine(*machine);
                }
                if !self.postpones_placement() {
                    self.replan_for_new_speeds();
                }
            }
            EngineCommand::Loaded { number, mut result } => {
                let drafter = result.as_mut().ok().and_then(|device| device.drafter.take());
                let events = self.device.finish_load(&mut self.forward, number, result);
                self.place_drafter(drafter);
                self.send_device_events(&events);
                self.apply_settings();
            }
            EngineCommand::Shutdown => {}
            #[cfg(any(test, feature = "test-hooks"))]
            EngineCommand::Panic => panic!("asked to"),
        }
    }

    /// Applies the latest requested settings.
    fn apply_settings(&mut self) {
        let settings = self.state.settings.take();
        let now = SparsityReport::new(settings.sparsity, &self.state.model, self.state.recall);
        if self.forward.sparsity() != now.mode {
            tracing::info!(mode = %now.mode, reason = now.reason, "the sparsity mode changes");
            self.forward.set_sparsity(now.mode);
            self.state.planner.set_sparsity(now.mode);
            if !self.postpones_placement() {
                self.replan();
            }
        }
        *self.state.sparsity.lock() = now;
        let adaptation = &self.state.planner.adaptation;
        if adaptation.is_on() && !settings.adaptive {
            self.forward.correct_thresholds(ThresholdCorrection::NONE);
        }
        adaptation.switch(settings.adaptive, &self.state.model, self.state.recall);
        self.update_planned_context();
        if let Some(bytes) = settings.budget
            && !self.postpones_placement()
        {
            self.fit_drafter(bytes);
            let mut contexts: Vec<&mut SessionContext> =
                self.conversations.iter_mut().map(|it| &mut it.context).collect();
            let events = self.device.set_budget(&mut self.forward, &mut contexts, bytes);
            self.send_device_events(&events);
        }
    }

    /// Ends requests that were cancelled before they started. Running requests notice a
    /// cancellation between tokens.
    fn end_cancelled(&mut self) {
        for ServedSession { cancelled, waiting, .. } in &mut self.conversations {
            let all = std::mem::take(waiting);
            for request in all {
                if request.number < cancelled.load(SeqCst) {
                    refuse(request.events, cancelled_event(), &self.meter);
                } else {
                    waiting.push_back(request);
                }
            }
        }
    }

    /// Sends `event` to all running and waiting requests.
    fn send_device_events(&self, device_events: &[DeviceEvent]) {
        for ServedSession { waiting, running, .. } in &self.conversations {
            let running = running.iter().map(|(_, events)| events);
            for events in running.chain(waiting.iter().map(|request| &request.events)) {
                // A missing receiver is noticed with the next token.
                device_events.iter().for_each(|event| _ = events.send(Event::Device(event.clone())));
            }
        }
    }

    /// Drops the caches that are on a lost device.
    fn drop_device_caches(&mut self) {
        for ServedSession { context, .. } in &mut self.conversations {
            if context.on_device() {
                context.drop_cache();
            }
        }
    }

    /// Moves all caches on the device into RAM.
    fn move_caches_to_ram(&mut self) {
        for ServedSession { context, .. } in &mut self.conversations {
            context.move_to_ram(&mut self.forward);
        }
    }

    /// Moves the caches of idle sessions into RAM until their next request. True if any cache was
    /// on the device.
    fn move_idle_caches_to_ram(&mut self) -> bool {
        let idle = self.conversations.iter_mut().filter(|it| it.running.is_none() && it.context.on_device());
        idle.map(|it| it.context.move_to_ram(&mut self.forward)).count() > 0
    }

    /// Releases neurons to make room, unless that was tried too often. True on success.
    fn evict_neurons(&mut self, error: &Error) -> bool {
        if self.evictions == EVICTIONS {
            return false;
        }
        // The first failure may only come from new caches, which the plan did not include.
        if let Error::Memory { wanted, available, .. } = error
            && self.evictions > 0
        {
            self.state.planner.reserve_more(wanted.saturating_sub(*available).max(self.device.held_bytes() / 16));
        }
        self.evictions += 1;
        self.replan()
    }

    /// Takes one turn of the sessions with work, and moves weights by one step.
    fn run_turn(&mut self) {
        for at in 0..self.conversations.len() {
            if self.make_room(at) {
                self.start(at);
            }
        }
        self.hold_experts();
        let candidates = self.candidates();
        // On a device a pass of several sequences skips nothing, unlike passes of single sequences.
        let mode = self.forward.sparsity();
        let approximate = matches!(mode, Sparsity::Predicted | Sparsity::Threshold);
        let apart = approximate && self.device.on_device();
        let mut turn = self.turns.next(&candidates, mode != Sparsity::Dense);
        turn.together &= !apart && turn.tokens.len() <= self.forward.chunk();
        self.take_turn(&turn, &candidates);
        self.hold_experts();
        self.move_weights();
    }

    /// Continues on the CPU after the device has failed.
    fn continue_on_cpu(&mut self, error: Error) {
        self.meter.neurons().forget_paces();
        if matches!(error, Error::Memory { .. }) {
            self.move_caches_to_ram();
        }
        let events = self.device.device_failed(&mut self.forward, error);
        self.drop_device_caches();
        self.place_drafter(None);
        self.conversations.iter_mut().for_each(|it| it.context.controller.forget_costs());
        self.send_device_events(&events);
    }

    /// Ends generations.
    fn finish(&mut self, ends: Vec<(usize, Result<StopReason>)>) {
        for (at, end) in ends {
            let ServedSession { context, running, used_at, .. } = &mut self.conversations[at];
            *used_at = Instant::now();
            if let Some((generation, events)) = running.take() {
                let last = generation.finish(end, context, &events);
                self.meter.telemetry().generations.subtract(1);
                events.finish(last);
            }
        }
    }

    /// Reacts to a full or failed device. If it is full, moves the caches of idle sessions or
    /// releases neurons. Otherwise continues on the CPU. The failed step is repeated later.
    fn recover(&mut self, error: Error) {
        let full = matches!(error, Error::Memory { .. });
        if !(full && (self.move_drafter_to_cpu() || self.move_idle_caches_to_ram() || self.evict_neurons(&error))) {
            self.continue_on_cpu(error);
        }
    }

    /// Starts the next request of a session that has none running, unless it was cancelled while it
    /// waited or is invalid. False if the session has no request.
    fn start(&mut self, at: usize) -> bool {
        let Some(conversation) = self.conversations.get_mut(at) else { return false };
        let ServedSession { id, context, cancelled, waiting, running, .. } = conversation;
        if running.is_some() {
            return true;
        }
        let Some(QueuedRequest { number, request, events, requested_at }) = waiting.pop_front() else { return false };
        if number < cancelled.load(SeqCst) {
            refuse(events, cancelled_event(), &self.meter);
            return true;
        }
        match Generation::new(self.state, *id, number, request, requested_at, context) {
            Ok(generation) => {
                *running = Some((generation, events));
                self.free_memory_of_drafts(at);
            }
            Err(error) => refuse(events, Event::Error(error), &self.meter),
        }
        true
    }

    /// Frees the memory for drafts of every idle conversation except conversation `kept`, which
    /// keeps it for its next answer. Allocating it takes about as long as a token.
    fn free_memory_of_drafts(&mut self, kept: usize) {
        let conversations = self.conversations.iter_mut().enumerate();
        let idle = conversations.filter(|(at, it)| *at != kept && it.running.is_none());
        idle.for_each(|(_, it)| it.context.free_separate());
    }

    /// Computes one step of a session: the next chunk of its prompt, of at most `most` tokens, or
    /// its next token. False if the session has no work.
    fn step(&mut self, at: usize, most: usize) -> bool {
        if !self.start(at) {
            return false;
        }
        // Several streams are computed together, without drafts.
        let alone = self.conversations.iter().filter(|it| it.running.is_some()).count() == 1;
        let ServedSession { context, cancelled, running, used_at, .. } = &mut self.conversations[at];
        let Some((generation, events)) = running else { return true };
        *used_at = Instant::now();
        let machine = self.state.planner.machine();
        let device = self.device.gpu().map(|gpu| PictureDevice { gpu, machine: &machine });
        match generation.embed_picture(context, self.tower.as_mut(), device, cancelled) {
            Ok(false) => {}
            Ok(true) => return true,
            // The CPU computes what the device cannot.
            Err(error) => {
                let end = if matches!(error, Error::Cancelled) { Ok(StopReason::Cancelled) } else { Err(error) };
                self.finish(vec![(at, end)]);
                return true;
            }
        }
        let adaptation = &self.state.planner.adaptation;
        if self.forward.sparsity() == Sparsity::Predicted && adaptation.is_on() {
            self.forward.correct_thresholds(adaptation.threshold_correction());
        }
        let ((steps, before), recorded) = (generation.progress.single_steps, generation.recorded);
        let (forward, meter) = (&mut self.forward, &mut self.meter);
        let drafter = self.drafter.as_mut().filter(|_| alone);
        let resources = StepResources { forward, drafter, events, cancelled, adaptation, meter };
        let stepped = generation.step(context, most, resources);
        let (decoded, time) = generation.progress.single_steps;
        let drafter_failed = generation.drafter_failed;
        // While weights move, the measured rate does not belong to the placement.
        if recorded && decoded > steps && !self.device.moving {
            let resident = self.state.device.resident.lock().clone();
            let conditions = self.state.decode_conditions(self.forward.sparsity());
            let time = time.saturating_sub(before);
            if let Some(times) = generation.step_times() {
                self.state.figures.timed_tokens.record(conditions.clone(), times, time);
            }
            self.state.figures.decode_rates.record_token(conditions, resident.as_ref(), time);
        }
        if drafter_failed && self.move_drafter_to_cpu() {
            self.allow_drafter(at);
        }
        let end = match stepped {
            Ok(None) => {
                self.evictions = 0;
                return true;
            }
            Ok(Some(reason)) => Ok(reason),
            Err(Error::Cancelled) => Ok(StopReason::Cancelled),
            Err(error @ (Error::Gpu { .. } | Error::Memory { .. })) if self.device.on_device() => {
                self.recover(error);
                return true;
            }
            Err(error) => Err(error),
        };
        self.finish(vec![(at, end)]);
        true
    }

    /// Publishes the bytes that the engine holds.
    fn publish_memory(&mut self) {
        let telemetry = self.meter.telemetry();
        telemetry.kv_bytes.set(self.conversations.iter().map(|it| it.context.bytes()).sum());
        let of_drafter = self.drafter.as_ref().map_or(0, Drafter::scratch_bytes);
        telemetry.scratch_bytes.set(self.forward.scratch_bytes() + of_drafter);
        self.device.publish_memory();
        self.device.publish_resident(&mut self.forward);
    }
}

/// Ends a request that has not started.
fn refuse(events: EventSender, with: Event, meter: &Meter<'_>) {
    meter.telemetry().generations.subtract(1);
    events.finish(with);
}

fn cancelled_event() -> Event {
    Event::Done { reason: StopReason::Cancelled, stats: GenerationStats::default() }
}
