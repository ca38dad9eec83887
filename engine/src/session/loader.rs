//! Loading a model into a device, in a thread of its own.

use std::{
    any::Any,
    fmt::Debug,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Sender,
    },
    thread::{self, JoinHandle},
};

use super::{
    DeviceChoice,
    device::DeviceMemory,
    engine::Shared,
    place::{PlaceOptions, Terms, place},
    worker::{Command, panic_message},
};
use crate::{
    error::{Error, Result},
    gpu::{Gpu, GpuOptions, Purpose},
    model::{Model, Processor},
};

/// Told how many bytes of how many have arrived; says whether to go on.
pub(super) type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Where a processor other than the CPU comes from, as often as one is needed.
pub(super) trait Source: Debug + Send + Sync {
    /// Opens the device and loads as much of `model` as is to be there under a budget of so many bytes (`None`: what is
    /// free). [`Error::Cancelled`] if `progress` says so.
    fn load(&self, model: &Model, terms: &Arc<Terms>, budget: Option<u64>, progress: Progress<'_>) -> Result<Loaded>;
}

/// A model in a device.
#[derive(Debug)]
pub(super) struct Loaded {
    pub processor: Box<dyn Processor>,
    pub memory: Box<dyn Ledger>,
}

/// Tells what a device's memory is used for.
pub(super) trait Ledger: Debug + Send {
    fn read(&self) -> DeviceMemory;
}

/// A GPU.
#[derive(Debug)]
struct GpuSource(PlaceOptions);

impl Source for GpuSource {
    fn load(&self, model: &Model, terms: &Arc<Terms>, budget: Option<u64>, progress: Progress<'_>) -> Result<Loaded> {
        let PlaceOptions { gpu, .. } = self.0.clone();
        let options = PlaceOptions { gpu: GpuOptions { budget, ..gpu }, ..self.0.clone() };
        let (processor, gpu) = place(model, &options, terms, progress)?;
        Ok(Loaded { processor: Box::new(processor), memory: Box::new(gpu) })
    }
}

impl Ledger for Gpu {
    fn read(&self) -> DeviceMemory {
        let arena = self.arena();
        DeviceMemory {
            adapter: self.report().name.clone(),
            budget: Some(arena.budget()).filter(|budget| *budget < u64::MAX),
            accounted: arena.used(),
            by_purpose: Purpose::ALL.map(|purpose| (purpose, arena.used_for(purpose))),
            moving: false,
        }
    }
}

/// What `choice` computes on; `None`: the CPU.
pub(super) fn source(choice: &DeviceChoice, place: &PlaceOptions) -> Option<Arc<dyn Source>> {
    let only_if_quicker = matches!(choice, DeviceChoice::Auto(_));
    match choice {
        DeviceChoice::Cpu => None,
        DeviceChoice::Auto(gpu) | DeviceChoice::Gpu(gpu) => {
            Some(Arc::new(GpuSource(PlaceOptions { gpu: gpu.clone(), only_if_quicker, ..place.clone() })))
        }
    }
}

/// A load under way. Its result arrives as [`Command::Loaded`]. Dropping it gives the load up and waits for the thread, which
/// looks up after every piece of the model.
#[derive(Debug)]
pub(super) struct Loader {
    /// Which load of this engine it is.
    pub number: u64,
    /// The budget it loads under.
    pub budget: Option<u64>,
    given_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Begins load `number` from `source`, under the budget that is wished for. [`Error::Stopped`] if there is no thread to be
    /// had.
    pub fn start(number: u64, source: Arc<dyn Source>, shared: Arc<Shared>, done: Sender<Command>) -> Result<Self> {
        let budget = shared.wishes.read().budget;
        let given_up = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&given_up);
        let work = move || {
            let mut progress = |now, total| {
                shared.device.progress(now, total);
                if stop.load(SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            // What a panic leaves half done is dropped, not used; the engine must hear of the end in any case.
            let loaded =
                catch_unwind(AssertUnwindSafe(|| source.load(&shared.model, &shared.terms, budget, &mut progress)));
            let bug = |panic: &(dyn Any + Send)| format!("loading the model failed inside ({})", panic_message(panic));
            let result = loaded.unwrap_or_else(|panic| Err(Error::Stopped(bug(panic.as_ref()))));
            // If the engine is gone, nobody needs it.
            let _ = done.send(Command::Loaded { number, result });
        };
        let thread = thread::Builder::new().name("thermocline-load".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::Stopped(format!("no thread to load the model: {error}")))?;
        Ok(Loader { number, budget, given_up, thread: Some(thread) })
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.given_up.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}
