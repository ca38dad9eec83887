//! Looking for models in folders, beside the frames.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    path::PathBuf,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
};

use egui::Context;

use thermocline_host::{
    engine_handle::error_message,
    library::{FoundModel, ModelCard, ModelId, scan},
};
use thermocline_rich_text::{background::Background, waker::Waker};

/// Models found so far. Dropping it, or a new search, ends the old one; models that were known stay until the new one has ended
/// without them.
#[derive(Debug, Default)]
pub struct ModelSearch {
    /// Models.
    pub cards: Vec<ModelCard>,
    /// Files that look like models and are none, or cannot be read, with the reason.
    pub broken: Vec<(PathBuf, String)>,
    /// Models that the latest search has found and none before it.
    pub added: Vec<ModelId>,
    /// Number of changes of the cards.
    pub revision: u64,
    roots: Option<Vec<PathBuf>>,
    running: Option<RunningSearch>,
    fresh: Background<Option<Box<ModelCard>>>,
}

#[derive(Debug)]
struct RunningSearch {
    /// The search ends once this is dropped.
    found: Receiver<FoundModel>,
    /// True if there was no search before.
    is_first: bool,
    /// Models in the order in which it has found them.
    seen: HashMap<ModelId, usize>,
    /// Files that it has found to be no models.
    broken: Vec<(PathBuf, String)>,
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
        let is_first = self.roots.replace(roots.clone()).is_none();
        self.running = None;
        self.added.clear();
        let (sender, found) = mpsc::channel();
        let waker = Waker::of(ctx);
        let work = move || {
            if let Ok(card) = ModelCard::read(&ModelId::Builtin) {
                // The receiver may be gone, which the next line finds out.
                let _ = sender.send(FoundModel::Model(Box::new(card)));
            }
            let _ = scan(&roots, &mut |found| {
                let heard = sender.send(found).is_ok();
                waker.after(thermocline_rich_text::frame_pace::FRAME);
                if heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            drop(sender);
            waker.now();
        };
        let thread = thread::Builder::new().name("library".to_owned());
        thread.spawn(work).map_err(|error| format!("no thread to look for models with: {error}"))?;
        let (seen, broken) = (HashMap::new(), Vec::new());
        self.running = Some(RunningSearch { found, is_first, seen, broken });
        Ok(())
    }

    /// Takes what was found since.
    pub fn follow(&mut self) {
        if let Some(Some(new)) = self.fresh.take()
            && let Some(card) = self.cards.iter_mut().find(|card| card.id == new.id)
        {
            *card = *new;
            self.revision += 1;
        }
        let Some(mut running) = self.running.take() else { return };
        loop {
            match running.found.try_recv() {
                Ok(FoundModel::Model(card)) => self.keep(*card, &mut running),
                Ok(FoundModel::Broken { path, error }) => running.broken.push((path, error_message(&error))),
                Ok(FoundModel::Closed { path, error }) => running.broken.push((path, error.to_string())),
                Err(TryRecvError::Empty) => {
                    self.running = Some(running);
                    return;
                }
                Err(TryRecvError::Disconnected) => break,
            }
        }
        // Models that are gone, and the order in which they were found.
        self.cards.retain(|card| running.seen.contains_key(&card.id));
        self.cards.sort_by_key(|card| running.seen.get(&card.id).copied());
        self.broken = std::mem::take(&mut running.broken);
        self.revision += 1;
    }

    /// Keeps a card in the place of an older one of the same model, or behind the others.
    fn keep(&mut self, card: ModelCard, running: &mut RunningSearch) {
        let place = running.seen.len();
        running.seen.insert(card.id.clone(), place);
        self.revision += 1;
        match self.cards.iter_mut().find(|old| old.id == card.id) {
            Some(old) => *old = card,
            None => {
                if !running.is_first {
                    self.added.push(card.id.clone());
                }
                self.cards.push(card);
            }
        }
    }

    /// Reads one card anew, after its model was prepared.
    ///
    /// # Errors
    /// A sentence, if the system has no thread for it.
    pub fn refresh(&mut self, ctx: &Context, id: ModelId) -> Result<(), String> {
        self.fresh.start(ctx, move || ModelCard::read(&id).ok().map(Box::new))
    }
}
