//! Estimates for models that are not open: fit and speed, computed in the background.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use egui::Context;
use thermocline_engine::{
    model::LoadOptions,
    placement::{GpuUse, Plan},
    session::{AdapterReport, DeviceStatus, Engine, EngineOptions, unopened_planner},
};

use crate::{
    engine_handle::ModelState,
    library::{ModelCard, ModelId},
    memory,
    settings::VramBudget,
    ui::{adapters::SystemMemory, background::Background, frame_pace::FRAME, shell::Shell, vram::speed},
    units::{bytes, rate},
};

/// After this time an estimate without measured speeds is made again.
const AGAIN: Duration = Duration::from_secs(10);

/// Bytes of weights from which on memory alone decides how fast a model is, so that a forecast is near the truth.
const FORETOLD: u64 = 1 << 30;

/// Free memory is reckoned with in steps of so many bytes: it changes all the time.
const STEP: u64 = 16 << 20;

/// Inputs of an estimate.
#[derive(Debug, Clone, PartialEq)]
struct Question {
    /// VRAM it may take; `None`: no GPU is to be used.
    budget: Option<u64>,
    /// True if the user chose it.
    chosen: bool,
    /// Everything else, in words: adapter, mode, context, cache, preparation, and what an open model has shown.
    terms: String,
}

/// An estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Answer {
    /// True if the whole model fits into VRAM and is placed there.
    whole: bool,
    /// Fraction of the work that neurons in VRAM do; `None`: the CPU does it all.
    hot: Option<f64>,
    tokens_per_second: Option<f64>,
}

impl Answer {
    fn from_plan(plan: &Plan, fits: bool, tokens_per_second: Option<f64>) -> Self {
        let any = plan.placement.first_resident < plan.layers.len();
        Answer { whole: any && fits, hot: any.then(|| plan.hot_fraction()), tokens_per_second }
    }
}

#[derive(Debug)]
struct Entry {
    question: Question,
    asked: Instant,
    answer: Option<Answer>,
}

/// Estimates of the models on cards.
#[derive(Debug, Default)]
pub struct Estimates {
    known: HashMap<ModelId, Entry>,
    asking: Background<(ModelId, Option<Answer>)>,
}

impl Estimates {
    /// Rank of the model of `card` by fit, best first: as a whole in VRAM, its hot neurons there, in RAM, not known, on disk.
    pub fn rank(&self, card: &ModelCard) -> u8 {
        if memory::total().is_some_and(|ram| needed(card) > ram) {
            return 4;
        }
        match self.known.get(&card.id).and_then(|entry| entry.answer) {
            Some(Answer { whole: true, .. }) => 0,
            Some(Answer { hot: Some(_), .. }) => 1,
            Some(Answer { hot: None, .. }) => 2,
            None => 3,
        }
    }

    /// Fit and speed of the model of `card`, as a sentence; starts a new estimate after a change.
    pub fn sentence(&mut self, ctx: &Context, shell: &Shell, card: &ModelCard) -> String {
        let ram = memory::total();
        if let Some(ram) = ram.filter(|ram| needed(card) > *ram) {
            let ram = bytes(ram);
            return format!(
                "Larger than this computer's {ram} of RAM: it will be read from disk all the time, slowly."
            );
        }
        if let Some((id, answer)) = self.asking.take()
            && let Some(entry) = self.known.get_mut(&id)
        {
            entry.answer = answer;
        }
        let engine = match shell.engine_handle.state() {
            ModelState::Ready { model, engine } if model == card.id => Some(engine),
            _ => None,
        };
        let is_open = engine.is_some();
        let options = shell.engine_options(&card.id);
        let gpu = adapter(shell, &card.id).cloned();
        let question = question(shell, card, &options, gpu.as_ref(), engine.as_ref());
        let stale = |entry: &Entry| {
            let unknown = entry.answer.is_none_or(|answer| answer.tokens_per_second.is_none());
            entry.question != question || (unknown && entry.asked.elapsed() > AGAIN)
        };
        if self.known.get(&card.id).is_none_or(stale) {
            if self.asking.is_busy() {
                ctx.request_repaint_after(FRAME);
            } else {
                let answer = self.known.remove(&card.id).and_then(|entry| entry.answer);
                let entry = Entry { question: question.clone(), asked: Instant::now(), answer };
                self.known.insert(card.id.clone(), entry);
                let (id, budget) = (card.id.clone(), question.budget.unwrap_or(0));
                let gpu = gpu.filter(|_| question.budget.is_some());
                let gpu_use = if gpu.is_some() { options.device.gpu_use() } else { GpuUse::Never };
                // Without a thread nothing is foretold.
                let _ = self.asking.start(ctx, move || {
                    let answer = match engine {
                        Some(engine) => open(&engine, budget),
                        None => closed(&id, &options, gpu.as_ref(), budget, gpu_use),
                    };
                    (id, answer)
                });
            }
        }
        let kept = shell.settings.models.get(&card.id.key()).and_then(|chosen| chosen.rate).filter(|_| !is_open);
        let mut answer = self.known.get(&card.id).and_then(|entry| entry.answer);
        if let (Some(answer), Some(_)) = (&mut answer, kept) {
            // What was measured is better than what is foretold.
            answer.tokens_per_second = None;
        }
        let mut sentence = words(&question, answer, ram);
        if let Some(kept) = kept {
            sentence += &format!(" It answered with {} last.", rate(kept));
        }
        sentence
    }
}

/// Memory that a model takes, its cache included, as far as can be told from a card.
fn needed(card: &ModelCard) -> u64 {
    card.bytes + card.bytes / 16
}

/// The adapter a model would be computed by; `None`: the CPU.
fn adapter<'s>(shell: &'s Shell, model: &ModelId) -> Option<&'s AdapterReport> {
    match shell.settings.models.get(&model.key()).and_then(|chosen| chosen.device.as_deref()) {
        None => shell.adapters.best(),
        Some(name) => shell.adapters.named(name),
    }
}

/// The budget in force.
fn in_force(engine: &Engine) -> Option<u64> {
    match engine.device() {
        DeviceStatus::Gpu(memory) => memory.budget,
        _ => engine.vram_budget(),
    }
}

/// `engine` has the model of the card, if that is open.
fn question(
    shell: &Shell,
    card: &ModelCard,
    options: &EngineOptions,
    gpu: Option<&AdapterReport>,
    engine: Option<&Engine>,
) -> Question {
    let kept = shell.settings.models.get(&card.id.key()).and_then(|chosen| chosen.budget);
    let dragged = engine.and(shell.dragged);
    let memory = gpu.map(|gpu| SystemMemory::of(&gpu.vram)).unwrap_or_default();
    // Another model would be closed first.
    let held = shell.engine_handle.engine().map_or(0, |engine| engine.telemetry().device_bytes);
    let free = memory.free.map(|free| free.saturating_add(held).min(memory.total.unwrap_or(u64::MAX))).or(memory.total);
    let limit = |budget: VramBudget| budget.limit(free.unwrap_or(0), 0);
    let set = dragged.map(limit).or_else(|| engine.and_then(in_force)).or(kept.map(limit));
    let budget = set.or(free.map(|free| free / STEP * STEP)).filter(|_| gpu.is_some());
    let seen = engine.and_then(Engine::observed_rate).map(|rate| (20.0 * rate.ln()).round());
    let mode = engine.map(|engine| engine.sparsity().mode.name());
    let terms = format!(
        "{:?} {} {mode:?} {:?} {} {} {:?} {seen:?}",
        gpu.map(|gpu| &gpu.name),
        options.sparsity,
        options.context,
        options.kv_type.name(),
        card.prepared,
        card.recall
    );
    Question { budget, chosen: matches!(dragged.or(kept), Some(VramBudget::AtMost(_))), terms }
}

/// Of the model that is open.
fn open(engine: &Engine, budget: u64) -> Option<Answer> {
    let forecast = engine.forecast(budget).ok()?;
    let seen = engine.observed_rate().filter(|_| in_force(engine).is_none_or(|now| now == budget));
    Some(Answer::from_plan(&forecast.plan, forecast.everything <= budget, seen.or(forecast.tokens_per_second)))
}

/// Of one that is not.
fn closed(
    id: &ModelId,
    options: &EngineOptions,
    gpu: Option<&AdapterReport>,
    budget: u64,
    gpu_use: GpuUse,
) -> Option<Answer> {
    let model = id.open(&LoadOptions { read_mode: options.read_mode, activation: options.activation }).ok()?;
    let forecast = unopened_planner(&model, options, gpu).ok()?.forecast(budget, gpu_use);
    let foretold = forecast.tokens_per_second.filter(|_| model.checkpoint.tensor_bytes() >= FORETOLD);
    Some(Answer::from_plan(&forecast.plan, forecast.everything <= budget, foretold))
}

fn words(question: &Question, answer: Option<Answer>, ram: Option<u64>) -> String {
    let rate = answer.and_then(|answer| answer.tokens_per_second);
    let rate = rate.map(|rate| format!(", {}", speed(Some(rate)))).unwrap_or_default();
    let in_ram = match ram {
        Some(_) => "Fits in RAM",
        None => "The system does not say how much RAM there is",
    };
    let Some(budget) = question.budget else { return format!("{in_ram}{rate}.") };
    let room = match question.chosen {
        true => format!("the VRAM budget of {}", bytes(budget)),
        false => format!("the {} of free VRAM", bytes(budget)),
    };
    match answer {
        None => format!("Reckoning what fits in {room} …"),
        Some(Answer { whole: true, .. }) => format!("Fits in {room} as a whole{rate}."),
        Some(Answer { hot: Some(hot), .. }) => {
            let work = 100.0 * hot;
            format!("Larger than {room}: hot neurons there ({work:.0} % of the work), the others in RAM{rate}.")
        }
        Some(Answer { hot: None, .. }) => format!("{in_ram}; the CPU computes it, without {room}{rate}."),
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::placement::Machine;

    use super::*;

    #[test]
    fn estimate_sentence_names_a_speed_only_where_one_is_known() {
        let question = |budget, chosen| Question { budget, chosen, terms: String::new() };
        let answer = |whole, hot, tokens_per_second| Some(Answer { whole, hot, tokens_per_second });
        let (chosen, free) = (question(Some(6 << 30), true), question(Some(6 << 30), false));
        let said = |question: &Question, answer| words(question, answer, Some(1 << 40));
        assert_eq!(
            said(&chosen, answer(true, Some(1.0), Some(41.2))),
            "Fits in the VRAM budget of 6.0 GiB as a whole, about 41 tok/s."
        );
        assert_eq!(
            said(&free, answer(false, Some(0.83), Some(12.0))),
            "Larger than the 6.0 GiB of free VRAM: hot neurons there (83 % of the work), the others in RAM, about 12 tok/s."
        );
        assert_eq!(said(&free, answer(true, Some(1.0), None)), "Fits in the 6.0 GiB of free VRAM as a whole.");
        assert_eq!(said(&question(None, false), answer(false, None, Some(3.21))), "Fits in RAM, about 3.2 tok/s.");
        assert!(said(&chosen, answer(false, None, None)).starts_with("Fits in RAM; the CPU computes it"));
        assert!(said(&chosen, None).starts_with("Reckoning"));
    }

    #[test]
    fn closed_model_is_estimated_from_its_file() {
        let mut machine = Machine::typical();
        machine.assumed = false;
        let options = EngineOptions { machine: Some(machine), ..EngineOptions::default() };
        let known = closed(&ModelId::Builtin, &options, None, 0, GpuUse::Never).unwrap();
        assert!(known.hot.is_none() && !known.whole);
        assert_eq!(known.tokens_per_second, None, "the caches decide how fast so small a model is");
        let unknown = closed(&ModelId::Builtin, &EngineOptions::default(), None, 0, GpuUse::Never).unwrap();
        assert_eq!(unknown.tokens_per_second, None);
        let nowhere = ModelId::from_key("/nowhere.gguf");
        assert_eq!(closed(&nowhere, &options, None, 0, GpuUse::Never), None);
        let all = thermocline_engine::session::adapters();
        let whole = closed(&ModelId::Builtin, &options, all.first(), 1 << 40, GpuUse::Always).unwrap();
        let at = |mib: u64| closed(&ModelId::Builtin, &options, all.first(), mib << 20, GpuUse::Always).unwrap();
        let some = |answer: &Answer| !answer.whole && answer.hot.is_some_and(|hot| hot > 0.0);
        assert!(whole.whole && (4..64).map(at).any(|answer| some(&answer)), "{whole:?} {:?}", at(16));
    }
}
