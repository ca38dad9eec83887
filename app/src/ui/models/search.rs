//! Looking for models in folders, beside the frames.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, TryRecvError},
    },
    thread,
};

use egui::Context;

use crate::{
    engine_handle::error_message,
    library::{FoundModel, ModelCard, ModelId, scan},
    ui::background::Background,
};

/// Models found so far. Dropping it, or a new search, ends the old one.
#[derive(Debug, Default)]
pub struct ModelSearch {
    /// Models.
    pub cards: Vec<ModelCard>,
    /// Files that look like models and are none, or cannot be read, with the reason.
    pub broken: Vec<(PathBuf, String)>,
    roots: Option<Vec<PathBuf>>,
    running: Option<Running>,
    fresh: Background<Option<Box<ModelCard>>>,
}

#[derive(Debug)]
struct Running {
    found: Receiver<FoundModel>,
    cancelled: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancelled.store(true, Relaxed);
    }
}

impl ModelSearch {
    /// True while the search runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Looks into `roots`, unless they were looked into already and not `again`.
    ///
    /// # Errors
    /// A sentence, if the system has no thread for it.
    pub fn look(&mut self, ctx: &Context, roots: Vec<PathBuf>, again: bool) -> Result<(), String> {
        if self.roots.as_ref() == Some(&roots) && !again {
            return Ok(());
        }
        self.roots = Some(roots.clone());
        self.running = None;
        self.cards.clear();
        self.broken.clear();
        let (sender, found) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (ctx, stop) = (ctx.clone(), Arc::clone(&cancelled));
        let work = move || {
            if let Ok(card) = ModelCard::read(&ModelId::Builtin) {
                // The receiver may be gone, which the next line finds out.
                let _ = sender.send(FoundModel::Model(Box::new(card)));
            }
            let _ = scan(&roots, &mut |found| {
                let heard = sender.send(found).is_ok() && !stop.load(Relaxed);
                ctx.request_repaint_after(super::super::frame_pace::FRAME);
                if heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            drop(sender);
            ctx.request_repaint();
        };
        let thread = thread::Builder::new().name("library".to_owned());
        thread.spawn(work).map_err(|error| format!("no thread to look for models with: {error}"))?;
        self.running = Some(Running { found, cancelled });
        Ok(())
    }

    /// Takes what was found since.
    pub fn follow(&mut self) {
        if let Some(Some(new)) = self.fresh.take()
            && let Some(card) = self.cards.iter_mut().find(|card| card.id == new.id)
        {
            *card = *new;
        }
        let Some(running) = &self.running else { return };
        loop {
            match running.found.try_recv() {
                Ok(FoundModel::Model(card)) => self.cards.push(*card),
                Ok(FoundModel::Broken { path, error }) => self.broken.push((path, error_message(&error))),
                Ok(FoundModel::Closed { path, error }) => self.broken.push((path, error.to_string())),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => break,
            }
        }
        self.running = None;
    }

    /// Reads one card anew, after its model was prepared.
    ///
    /// # Errors
    /// A sentence, if the system has no thread for it.
    pub fn refresh(&mut self, ctx: &Context, id: ModelId) -> Result<(), String> {
        self.fresh.start(ctx, move || ModelCard::read(&id).ok().map(Box::new))
    }
}
