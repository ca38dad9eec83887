//! Searches folders for models on a background thread.

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
    library::{AssistantCard, FoundModel, ModelCard, ModelId, scan},
};
use thermocline_rich_text::{background::Background, waker::Waker};

/// The models found so far. Dropping this, or a new search, ends a running search. Known models
/// stay listed until a search has ended without finding them.
#[derive(Debug, Default)]
pub struct ModelSearch {
    /// The cards of the models.
    pub cards: Vec<ModelCard>,
    /// Assistants, which draft for models. A search shows them when it ends.
    pub assistants: Vec<AssistantCard>,
    /// Files that look like models but are broken or unreadable, with the reason.
    pub broken: Vec<(PathBuf, String)>,
    /// Models that only the latest search has found.
    pub added: Vec<ModelId>,
    /// Counts the changes of the cards.
    pub revision: u64,
    roots: Option<Vec<PathBuf>>,
    running: Option<RunningSearch>,
    fresh: Background<Option<Box<ModelCard>>>,
}

#[derive(Debug)]
struct RunningSearch {
    /// Dropping it ends the search.
    found: Receiver<FoundModel>,
    /// True for the first search of all.
    is_first: bool,
    /// The models found by this search, with their order.
    seen: HashMap<ModelId, usize>,
    /// Assistants found by this search.
    assistants: Vec<AssistantCard>,
    /// Broken files found by this search.
    broken: Vec<(PathBuf, String)>,
}

impl ModelSearch {
    /// True while the search runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Searches `roots`. Does nothing if they were searched already, unless `again`.
    ///
    /// # Errors
    /// A sentence if no thread can start.
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
                // The receiver may be dropped. The scan below notices that.
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
        thread.spawn(work).map_err(|error| format!("the search for models could not start: {error}"))?;
        let (seen, assistants, broken) = (HashMap::new(), Vec::new(), Vec::new());
        self.running = Some(RunningSearch { found, is_first, seen, assistants, broken });
        Ok(())
    }

    /// Takes the results that have arrived.
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
                Ok(FoundModel::Assistant(card)) => running.assistants.push(card),
                Ok(FoundModel::Broken { path, error }) => running.broken.push((path, error_message(&error))),
                Ok(FoundModel::Closed { path, error }) => running.broken.push((path, error.to_string())),
                Err(TryRecvError::Empty) => {
                    self.running = Some(running);
                    return;
                }
                Err(TryRecvError::Disconnected) => break,
            }
        }
        // Removes models that no longer exist, and restores the order of the search.
        self.cards.retain(|card| running.seen.contains_key(&card.id));
        self.cards.sort_by_key(|card| running.seen.get(&card.id).copied());
        (self.assistants, self.broken) = (running.assistants, running.broken);
        self.revision += 1;
    }

    /// Replaces the older card of the same model, or appends the card.
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

    /// Reads one card again after its model was prepared.
    ///
    /// # Errors
    /// A sentence if no thread can start.
    pub fn refresh(&mut self, ctx: &Context, id: ModelId) -> Result<(), String> {
        self.fresh.start(ctx, move || ModelCard::read(&id).ok().map(Box::new))
    }
}
