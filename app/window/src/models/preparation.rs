//! A preparation under way.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use egui::Context;
use parking_lot::Mutex;
use thermocline_engine::{
    Error,
    model::{LoadOptions, Model},
    sparsity::{
        prepare::{self, PrepareOptions, PrepareProgress},
        sidecar::path_beside,
    },
};

use thermocline_host::engine_handle::error_message;
use thermocline_rich_text::waker::Waker;

/// Tokens of text that a preparation reads.
#[cfg(not(test))]
const TOKENS: u64 = 32 << 10;
/// Fewer, for a model of a few thousand weights.
#[cfg(test)]
const TOKENS: u64 = 4 << 10;

/// How it stands.
#[derive(Debug, Clone)]
pub enum PreparationStage {
    /// It goes on; `None`: it is only beginning.
    Running(Option<PrepareProgress>),
    /// The user paused it. What was done is kept beside the model.
    Paused,
    /// The sidecar is written.
    Done,
    /// It could not be done, and why.
    Failed(String),
}

/// Prepares one model in the background. Dropping it pauses it.
#[derive(Debug)]
pub struct Preparation {
    /// The model's file or folder.
    pub path: PathBuf,
    stage: Arc<Mutex<PreparationStage>>,
    paused: Arc<AtomicBool>,
    /// True once its end has been told.
    pub noticed: bool,
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Preparation {
    /// Begins, or goes on from where an earlier one of this model was paused.
    pub fn begin(ctx: &Context, path: PathBuf) -> Self {
        let (stage, paused) = (Arc::new(Mutex::new(PreparationStage::Running(None))), Arc::new(AtomicBool::new(false)));
        let (to, stop, model, waker) = (Arc::clone(&stage), Arc::clone(&paused), path.clone(), Waker::of(ctx));
        let work = move || {
            let end = prepare(&model, &mut |progress| {
                *to.lock() = PreparationStage::Running(Some(*progress));
                waker.in_time();
                if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            *to.lock() = match end {
                Ok(()) => PreparationStage::Done,
                Err(Error::Cancelled) => PreparationStage::Paused,
                Err(error) => PreparationStage::Failed(error_message(&error)),
            };
            waker.now();
        };
        if let Err(error) = thread::Builder::new().name("prepare".to_owned()).spawn(work) {
            *stage.lock() = PreparationStage::Failed(format!("no thread to prepare with: {error}"));
        }
        Preparation { path, stage, paused, noticed: false }
    }

    /// How it stands.
    pub fn stage(&self) -> PreparationStage {
        self.stage.lock().clone()
    }

    /// Stops at the next opportunity, which is soon.
    pub fn pause(&self) {
        self.paused.store(true, Relaxed);
    }

    /// True after a request to pause, until it has paused.
    pub fn is_pausing(&self) -> bool {
        self.paused.load(Relaxed) && matches!(*self.stage.lock(), PreparationStage::Running(_))
    }
}

/// Prepares the model at `path`.
fn prepare(path: &Path, progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>) -> Result<(), Error> {
    // What an older sidecar says must not flow into the new one.
    let model = Model::open(path, &LoadOptions::default())?;
    let options = PrepareOptions { tokens: TOKENS, ..PrepareOptions::new(path_beside(&model.checkpoint.path)) };
    prepare::run(&Arc::new(model), &options, progress).map(drop)
}
