//! Comparisons of answers: the same request, with the same seed, is answered by two models one after the other. Computed by a
//! thread of its own; nothing here waits for it.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::Mutex;
use thermocline_engine::session::{Engine, Event, Request, SparsityChoice};

use super::{
    AnswerStats,
    side_answer::{SideModel, write_side},
};
use crate::engine_handle::{EngineHandle, error_message};

/// A side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// Its name, as a title.
    pub title: String,
    /// The model that answers.
    pub model: SideModel,
}

/// State of a side's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SideState {
    /// It has not begun.
    #[default]
    Waiting,
    /// It is being written.
    Writing,
    /// It is complete.
    Ended,
    /// It failed; a sentence.
    Failed(String),
}

/// The answer of a side.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SideText {
    /// The side's name.
    pub title: String,
    /// The text so far.
    pub text: String,
    /// Counts and times so far.
    pub stats: Option<AnswerStats>,
    /// State of it.
    pub state: SideState,
}

/// A comparison being made, or its result. Dropping it ends it.
#[derive(Debug)]
pub struct Comparison {
    sides: Arc<Mutex<[SideText; 2]>>,
    stop: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Comparison {
    /// Begins to have `request` answered by both sides, with `engine` for the open model. Its mode is `own` again afterwards, if a
    /// side has another.
    pub fn start(
        handle: &EngineHandle,
        engine: Engine,
        own: SparsityChoice,
        sides: [Side; 2],
        request: Request,
    ) -> Self {
        let texts = sides.each_ref().map(|side| SideText { title: side.title.clone(), ..SideText::default() });
        let comparison = Comparison { sides: Arc::new(Mutex::new(texts)), stop: Arc::default(), over: Arc::default() };
        let writer = Writer {
            sides: Arc::clone(&comparison.sides),
            stop: Arc::clone(&comparison.stop),
            over: Arc::clone(&comparison.over),
            handle: handle.clone(),
            own: sides.iter().any(|side| matches!(side.model, SideModel::Mode(_))).then_some(own),
            engine,
        };
        let work = move || {
            for (at, side) in sides.iter().enumerate() {
                writer.write(at, &side.model, request.clone());
            }
        };
        if let Err(error) = thread::Builder::new().name("compare-answers".to_owned()).spawn(work) {
            let why = SideState::Failed(format!("No thread to compute it: {error}"));
            comparison.sides.lock().iter_mut().for_each(|side| side.state = why.clone());
            comparison.over.store(true, Relaxed);
        }
        comparison
    }

    /// Reads both sides; their writer waits meanwhile.
    pub fn read<R>(&self, read: impl FnOnce(&[SideText; 2]) -> R) -> R {
        read(&self.sides.lock())
    }

    /// True once both sides have ended and the model has its own mode again.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// The writer of the sides.
struct Writer {
    sides: Arc<Mutex<[SideText; 2]>>,
    stop: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    handle: EngineHandle,
    engine: Engine,
    /// Mode of the engine before, if a side has another.
    own: Option<SparsityChoice>,
}

impl Drop for Writer {
    /// Also if it ends early, the model has its own mode again and another comparison can begin.
    fn drop(&mut self) {
        if let Some(own) = self.own {
            // An engine that has stopped has no mode.
            let _ = self.engine.set_sparsity(own);
        }
        self.over.store(true, Relaxed);
        self.handle.notify();
    }
}

impl Writer {
    fn write(&self, at: usize, model: &SideModel, request: Request) {
        if self.stop.load(Relaxed) {
            return;
        }
        self.change(at, |side| side.state = SideState::Writing);
        let mut told = |event: &Event| {
            match event {
                Event::Token { text, .. } => self.change(at, |side| side.text.push_str(text)),
                Event::Stats(stats) => self.change(at, |side| side.stats = Some(AnswerStats::new(stats, None))),
                Event::Done { reason, stats } => {
                    self.change(at, |side| side.stats = Some(AnswerStats::new(stats, Some(reason))));
                }
                _ => {}
            }
            if self.stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let state = match write_side(&self.engine, model, request, &mut told) {
            Ok(()) => SideState::Ended,
            Err(error) => SideState::Failed(error_message(&error)),
        };
        self.change(at, |side| side.state = state);
    }

    fn change(&self, at: usize, change: impl FnOnce(&mut SideText)) {
        if let Some(side) = self.sides.lock().get_mut(at) {
            change(side);
        }
        self.handle.notify();
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        model::NeuronIndex,
        runtime::Sparsity,
        session::{DeviceChoice, EngineOptions, Prompt, Sampling},
    };

    use super::*;
    use crate::{chat::SamplingOverrides, library::ModelId, testing::eventually};

    fn compared(models: [SideModel; 2]) -> (EngineHandle, [SideText; 2]) {
        let handle = EngineHandle::new(|| ());
        let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
        handle.open(ModelId::Builtin, options);
        eventually("a model", || handle.engine().is_some());
        let engine = handle.engine().unwrap();
        let sampling = Sampling { seed: Some(7), ..SamplingOverrides::model_defaults(&ModelId::Builtin) };
        let prompt = Prompt::Text("Once upon a time there was a little dog".to_owned());
        let request = Request { sampling, max_tokens: Some(40), ..Request::new(prompt) };
        let sides = models.map(|model| Side { title: format!("{model:?}"), model });
        let comparison = Comparison::start(&handle, engine, SparsityChoice::Auto, sides, request);
        eventually("both answers", || comparison.is_over());
        let texts = comparison.read(Clone::clone);
        (handle, texts)
    }

    #[test]
    fn modes_that_change_no_answer_write_the_same_and_the_mode_is_restored() {
        let mode = |mode| SideModel::Mode(SparsityChoice::Mode(mode));
        let (handle, [exact, dense]) = compared([mode(Sparsity::Exact), mode(Sparsity::Dense)]);
        assert!(exact.text.len() > 20 && exact.text == dense.text, "{exact:?} {dense:?}");
        let read = |side: &SideText| side.stats.as_ref().and_then(|stats| stats.reads).unwrap().read_bytes;
        assert!(read(&exact) < read(&dense), "{} {}", read(&exact), read(&dense));
        assert!([&exact, &dense].iter().all(|side| side.stats.as_ref().unwrap().decode_tokens_per_second > 0.0));
        let engine = handle.engine().unwrap();
        eventually("its own mode", || engine.sparsity().asked == SparsityChoice::Auto);
    }

    #[test]
    fn answer_without_neurons_is_another_one_with_the_same_seed() {
        let layer = (0..400).map(|neuron| NeuronIndex { layer: 0, neuron }).collect();
        let (_, [whole, less]) = compared([SideModel::Without(Vec::new()), SideModel::Without(layer)]);
        let (_, [again, _]) = compared([SideModel::Without(Vec::new()), SideModel::Without(Vec::new())]);
        assert_eq!((&whole.text, whole.state.clone()), (&again.text, SideState::Ended), "the seed decides");
        assert!(less.state == SideState::Ended && whole.text != less.text, "{whole:?} {less:?}");
        let seed = |side: &SideText| side.stats.as_ref().map(|stats| stats.seed);
        assert_eq!((seed(&whole), seed(&less)), (Some(7), Some(7)));
    }

    #[test]
    fn side_that_fails_says_why() {
        let nowhere = SideModel::Without(vec![NeuronIndex { layer: 99, neuron: 0 }]);
        let (_, [whole, failed]) = compared([SideModel::Without(Vec::new()), nowhere]);
        assert_eq!(whole.state, SideState::Ended);
        assert!(matches!(&failed.state, SideState::Failed(why) if why.contains("layer")), "{failed:?}");
    }
}
