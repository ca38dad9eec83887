//! The preparation of a model.

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

use thermocline_host::{engine_handle::error_message, memory};
use thermocline_rich_text::waker::Waker;

/// Tokens of text that a preparation reads.
#[cfg(not(test))]
const TOKENS: u64 = 32 << 10;
/// Tests read fewer, with a model of a few thousand weights.
#[cfg(test)]
const TOKENS: u64 = 4 << 10;

/// The stage of a preparation.
#[derive(Debug, Clone)]
pub enum PreparationStage {
    /// The preparation runs. `None` until it reports progress.
    Running(Option<PrepareProgress>),
    /// The user paused it. Finished work is stored beside the model.
    Paused,
    /// The sidecar is written.
    Done,
    /// The preparation failed for this reason.
    Failed(String),
}

/// Prepares one model on a background thread. Dropping it pauses the preparation.
#[derive(Debug)]
pub struct Preparation {
    /// The model's file or folder.
    pub path: PathBuf,
    stage: Arc<Mutex<PreparationStage>>,
    paused: Arc<AtomicBool>,
    /// True once its end was reported to the user.
    pub noticed: bool,
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.pause();
    }
}

impl Preparation {
    /// Starts the preparation, or continues a paused one of this model.
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
            *stage.lock() = PreparationStage::Failed(format!("preparing could not start: {error}"));
        }
        Preparation { path, stage, paused, noticed: false }
    }

    /// The current stage.
    pub fn stage(&self) -> PreparationStage {
        self.stage.lock().clone()
    }

    /// Requests a pause. The preparation stops soon afterwards.
    pub fn pause(&self) {
        self.paused.store(true, Relaxed);
    }

    /// True between the request of a pause and the pause.
    pub fn is_pausing(&self) -> bool {
        self.paused.load(Relaxed) && matches!(*self.stage.lock(), PreparationStage::Running(_))
    }
}

/// Prepares the model at `path`.
fn prepare(path: &Path, progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>) -> Result<(), Error> {
    // An older sidecar must not influence the new one, so it is not loaded.
    let model = Model::open(path, &LoadOptions::default())?;
    let options = PrepareOptions {
        tokens: TOKENS,
        bundles: memory::bundles_pay(&model),
        ..PrepareOptions::new(path_beside(&model.checkpoint.path))
    };
    prepare::run(&Arc::new(model), &options, progress).map(drop)
}
