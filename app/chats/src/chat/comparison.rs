//! Comparisons of answers: two models answer the same request with the same seed, first one and
//! then the other. A separate thread computes them. Nothing here waits for it.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::Mutex;
use thermocline_engine::session::{DeviceStatus, Engine, Event, Request, SparsityChoice};

use crate::chat::side_answer::{SideModel, write_side};
use thermocline_host::{
    answer_stats::AnswerStats,
    engine_handle::{EngineHandle, error_message},
};

/// A side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// Title of the side.
    pub title: String,
    /// The model that answers.
    pub model: SideModel,
}

/// State of one side's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SideState {
    /// It has not begun.
    #[default]
    Waiting,
    /// It is being written.
    Writing,
    /// It is complete.
    Ended,
    /// It failed. Holds the reason as a sentence.
    Failed(String),
}

/// The answer of a side.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SideText {
    /// Title of the side.
    pub title: String,
    /// The text so far.
    pub text: String,
    /// Counts and times so far.
    pub stats: Option<AnswerStats>,
    /// State of the answer.
    pub state: SideState,
}

/// A comparison that is running or has ended. Dropping it ends it.
#[derive(Debug)]
pub struct AnswerComparison {
    sides: Arc<Mutex<[SideText; 2]>>,
    over: Arc<AtomicBool>,
    /// True if the speeds of both sides may be compared, because each side was warmed up. A model
    /// without some neurons is a copy on the CPU that is not warmed up.
    pub race: bool,
}

impl AnswerComparison {
    /// Starts to answer `request` on both sides. `engine` holds the open model. The neurons of
    /// these answers are not recorded. Afterwards the engine gets its sparsity mode `own` and its
    /// VRAM budget back, if a side changed them.
    pub fn start(
        handle: &EngineHandle,
        engine: Engine,
        own: SparsityChoice,
        sides: [Side; 2],
        request: Request,
    ) -> Self {
        let texts = sides.each_ref().map(|side| SideText { title: side.title.clone(), ..SideText::default() });
        let race = !sides.iter().any(|side| matches!(side.model, SideModel::Without(_)));
        let comparison = AnswerComparison { sides: Arc::new(Mutex::new(texts)), over: Arc::default(), race };
        let writer = SideWriter {
            sides: Arc::clone(&comparison.sides),
            over: Arc::clone(&comparison.over),
            handle: handle.clone(),
            own: sides.iter().any(|side| matches!(side.model, SideModel::Mode(_))).then_some(own),
            budget: RacedBudgets::of(&sides, &engine),
            engine,
        };
        let work = move || {
            for (at, side) in sides.iter().enumerate() {
                writer.write(at, &side.model, request.clone());
            }
        };
        if let Err(error) = thread::Builder::new().name("compare-answers".to_owned()).spawn(work) {
            let why = SideState::Failed(format!("The computation could not start: {error}"));
            comparison.sides.lock().iter_mut().for_each(|side| side.state = why.clone());
            comparison.over.store(true, Relaxed);
        }
        comparison
    }

    /// Calls `read` with both sides. The writer waits meanwhile.
    pub fn read<R>(&self, read: impl FnOnce(&[SideText; 2]) -> R) -> R {
        read(&self.sides.lock())
    }

    /// Flag that is set when both sides have ended and the model has its own mode and budget again.
    /// It is also set if the comparison was dropped.
    pub fn over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.over)
    }

    /// True once both sides have ended and the model has its own mode and budget again.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }
}

/// Writes the two answers. It stops when no one else holds `sides`.
struct SideWriter {
    sides: Arc<Mutex<[SideText; 2]>>,
    over: Arc<AtomicBool>,
    handle: EngineHandle,
    engine: Engine,
    /// The engine's own mode, if a side has another mode.
    own: Option<SparsityChoice>,
    budget: Option<RacedBudgets>,
}

/// The budgets of both sides, and the engine's own budget.
#[derive(Debug)]
struct RacedBudgets {
    sides: Vec<u64>,
    own: u64,
}

impl RacedBudgets {
    /// `None` if no side has a budget.
    fn of(sides: &[Side; 2], engine: &Engine) -> Option<Self> {
        let budget = |side: &Side| match side.model {
            SideModel::Budget(bytes) => Some(bytes),
            SideModel::Mode(_) | SideModel::Without(_) => None,
        };
        let raced: Vec<u64> = sides.iter().filter_map(budget).collect();
        let in_force = match engine.device() {
            DeviceStatus::Gpu(memory) => memory.budget,
            _ => None,
        };
        // Without a limit, the free VRAM is the limit.
        let own = engine.vram_budget().or(in_force).unwrap_or(u64::MAX);
        (!raced.is_empty()).then_some(RacedBudgets { sides: raced, own })
    }

    /// Gives the engine its own budget back, unless another budget was set meanwhile.
    fn restore(&self, engine: &Engine) {
        if engine.vram_budget().is_some_and(|now| self.sides.contains(&now)) {
            // An engine that has stopped has no budget.
            let _ = engine.set_vram_budget(self.own);
        }
    }
}

impl Drop for SideWriter {
    /// Restores the model's mode and budget, also after an early end, and allows another
    /// comparison.
    fn drop(&mut self) {
        if let Some(own) = self.own {
            // An engine that has stopped has no mode.
            let _ = self.engine.set_sparsity(own);
        }
        if let Some(budget) = &self.budget {
            budget.restore(&self.engine);
        }
        self.over.store(true, Relaxed);
        self.handle.notify();
    }
}

impl SideWriter {
    /// True if the comparison was dropped.
    fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.sides) == 1
    }

    fn write(&self, at: usize, model: &SideModel, request: Request) {
        if self.is_dropped() {
            return;
        }
        self.change(at, |side| side.state = SideState::Writing);
        let mut told = |event: Option<&Event>| {
            match event {
                Some(Event::Token { text, .. }) => self.change(at, |side| side.text.push_str(text)),
                Some(Event::Stats(stats)) => self.change(at, |side| side.stats = Some(AnswerStats::new(stats, None))),
                Some(Event::Done { reason, stats }) => {
                    self.change(at, |side| side.stats = Some(AnswerStats::new(stats, Some(reason))));
                }
                _ => {}
            }
            if self.is_dropped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
        session::{DeviceChoice, EngineOptions, Prompt, Sampling, SessionOptions},
    };

    use super::*;
    use crate::chat::SamplingOverrides;
    use thermocline_host::{library::ModelId, testing::eventually};

    /// A running comparison of the built-in model on the CPU.
    fn begun(models: [SideModel; 2], budget: Option<u64>) -> (EngineHandle, AnswerComparison) {
        let handle = EngineHandle::new(|| ());
        let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
        handle.open(ModelId::Builtin, options);
        eventually("a model", || handle.engine().is_some());
        let engine = handle.engine().unwrap();
        budget.into_iter().for_each(|bytes| engine.set_vram_budget(bytes).unwrap());
        let sampling = Sampling { seed: Some(7), ..SamplingOverrides::model_defaults(&ModelId::Builtin) };
        let prompt = Prompt::Text("Once upon a time there was a little dog".to_owned());
        let request = Request { sampling, max_tokens: Some(40), ..Request::new(prompt) };
        let sides = models.map(|model| Side { title: format!("{model:?}"), model });
        let comparison = AnswerComparison::start(&handle, engine, SparsityChoice::Auto, sides, request);
        (handle, comparison)
    }

    fn compared(models: [SideModel; 2]) -> (EngineHandle, [SideText; 2]) {
        let (handle, comparison) = begun(models, None);
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
        let written = [&exact, &dense].map(|side| side.stats.as_ref().unwrap().generated_tokens as u64);
        let more = engine.telemetry().generated_tokens - written.iter().sum::<u64>();
        assert!(more >= 2, "each side was warmed up: {more}");
    }

    /// Traces that an answer leaves: the index of the latest token, counts and tokens of the first
    /// layer, and the measured speed.
    fn traces(engine: &Engine) -> (Option<u64>, Vec<u32>, u64, Option<f64>) {
        let (board, tally) = (engine.neurons(), engine.neurons().tally(0));
        (board.latest().map(|token| token.index), tally.counts, tally.tokens, engine.observed_rate())
    }

    #[test]
    fn comparison_leaves_no_trace_in_time_line_counts_and_speed() {
        let handle = EngineHandle::new(|| ());
        handle.open(ModelId::Builtin, EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() });
        eventually("a model", || handle.engine().is_some());
        let engine = handle.engine().unwrap();
        let prompt = Prompt::Text("Once upon a time there was a little dog".to_owned());
        let request = Request { max_tokens: Some(40), ignore_eos: true, ..Request::new(prompt) };
        let session = engine.session(SessionOptions::default()).unwrap();
        session.generate(request.clone()).into_iter().for_each(drop);
        let before = traces(&engine);
        assert!(before.0.is_some() && before.3.is_some(), "{before:?}");
        let mode = |mode| SideModel::Mode(SparsityChoice::Mode(mode));
        let one = vec![NeuronIndex { layer: 0, neuron: 0 }];
        for models in [
            [mode(Sparsity::Exact), mode(Sparsity::Dense)],
            [SideModel::Without(Vec::new()), SideModel::Without(one)],
            [SideModel::Budget(100), SideModel::Budget(200)],
        ] {
            let sides = models.map(|model| Side { title: String::new(), model });
            let comparison =
                AnswerComparison::start(&handle, engine.clone(), SparsityChoice::Auto, sides, request.clone());
            eventually("both answers", || comparison.is_over());
            comparison.read(|sides| assert!(sides.iter().all(|side| side.state == SideState::Ended), "{sides:?}"));
            eventually("its own mode", || engine.sparsity().asked == SparsityChoice::Auto);
            assert_eq!(traces(&engine), before);
        }
    }

    #[test]
    fn budget_is_restored_at_the_end_of_a_race_and_when_it_is_stopped_or_fails() {
        let race = || [SideModel::Budget(100), SideModel::Budget(200)];
        let own = Some(7 << 20);
        let (handle, comparison) = begun(race(), own);
        eventually("both answers", || comparison.is_over());
        let [one, other] = comparison.read(Clone::clone);
        assert!(one.text.len() > 20 && one.text == other.text, "a budget changes no answer: {one:?} {other:?}");
        assert_eq!((one.state, other.state), (SideState::Ended, SideState::Ended));
        assert_eq!(handle.engine().unwrap().vram_budget(), own);

        let (handle, comparison) = begun(race(), own);
        let engine = handle.engine().unwrap();
        eventually("the first side", || comparison.read(|sides| !sides[0].text.is_empty()));
        let over = comparison.over();
        drop(comparison);
        eventually("the end of a race that is stopped", || over.load(Relaxed));
        assert_eq!(engine.vram_budget(), own);

        let nowhere = SideModel::Without(vec![NeuronIndex { layer: 99, neuron: 0 }]);
        let (handle, comparison) = begun([SideModel::Budget(100), nowhere], own);
        eventually("the end of a race that fails", || comparison.is_over());
        assert!(comparison.read(|sides| matches!(sides[1].state, SideState::Failed(_))));
        assert_eq!(handle.engine().unwrap().vram_budget(), own);

        // A budget that the user sets during the race stays.
        let (handle, comparison) = begun(race(), own);
        let engine = handle.engine().unwrap();
        eventually("the second side", || comparison.read(|sides| !sides[1].text.is_empty()));
        engine.set_vram_budget(300).unwrap();
        eventually("both answers", || comparison.is_over());
        assert_eq!(engine.vram_budget(), Some(300));
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
