//! Estimates of fit and speed on the models' cards. The open model uses the forecast of its budget
//! slider. Other models are estimated in the background.

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
    adapters::SystemMemory,
    shell::Shell,
    vram::{BudgetRoom, ExpectedSpeed, Speed, chosen_adapter, remembered_speed, speed_of},
};
use thermocline_chats::{
    settings::VramBudget,
    speeds::{DeviceBudget, SpeedSetting},
};
use thermocline_host::{
    engine_handle::ModelState,
    library::{ModelCard, ModelId},
    memory,
    units::bytes,
};
use thermocline_rich_text::{background::Background, frame_pace::FRAME};

/// Age at which an estimate without measured speeds is repeated.
const AGAIN: Duration = Duration::from_secs(10);

/// Weights, in bytes, from which memory bandwidth alone limits the speed of a model. Forecasts of
/// smaller models are inaccurate and not shown.
const FORETOLD: u64 = 1 << 30;

/// Free memory is rounded down to multiples of this many bytes, because it changes all the time.
const STEP: u64 = 16 << 20;

/// Inputs of the estimate of a closed model.
#[derive(Debug, Clone, PartialEq)]
struct FitQuestion {
    /// VRAM that the model may use. `None` uses no GPU.
    budget: Option<u64>,
    /// The budget that the user has chosen.
    chosen: Option<VramBudget>,
    /// All other inputs as text: adapter, mode, context, KV cache, preparation.
    terms: String,
}

/// The part of a model that is in VRAM.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fit {
    /// True if the whole model fits into VRAM and is placed there.
    whole: bool,
    /// Fraction of the work that the neurons in VRAM do. `None` if the CPU does all work.
    hot: Option<f64>,
}

impl Fit {
    fn from_plan(plan: &Plan, fits: bool) -> Self {
        let any = plan.placement.any_resident();
        Fit { whole: any && fits, hot: any.then(|| plan.hot_fraction()) }
    }
}

/// The VRAM that a sentence names.
#[derive(Debug, Clone, Copy)]
struct NamedVram {
    bytes: u64,
    /// True for a budget, false for all free VRAM.
    is_budget: bool,
}

/// An estimate.
#[derive(Debug, Clone, PartialEq)]
struct FitAnswer {
    fit: Fit,
    /// The settings that the model would be opened with.
    setting: SpeedSetting,
    /// Tokens per second, predicted from the speeds of this machine.
    tokens_per_second: Option<f64>,
}

#[derive(Debug)]
struct KnownFit {
    question: FitQuestion,
    asked: Instant,
    answer: Option<FitAnswer>,
}

/// Estimates for the models on cards.
#[derive(Debug, Default)]
pub struct Estimates {
    known: HashMap<ModelId, KnownFit>,
    asking: Background<(ModelId, Option<FitAnswer>)>,
}

impl Estimates {
    /// Rank of the model of `card` by fit, best first: whole in VRAM, some neurons in VRAM, in RAM,
    /// unknown, on disk.
    pub fn rank(&self, card: &ModelCard) -> u8 {
        if memory::too_small_for(card.bytes).is_some() {
            return 4;
        }
        match self.known.get(&card.id).and_then(|entry| entry.answer.as_ref()).map(|answer| answer.fit) {
            Some(Fit { whole: true, .. }) => 0,
            Some(Fit { hot: Some(_), .. }) => 1,
            Some(Fit { hot: None, .. }) => 2,
            None => 3,
        }
    }

    /// A sentence about the fit and speed of the model of `card`. Starts a new estimate if an input
    /// has changed.
    pub fn sentence(&mut self, ctx: &Context, shell: &mut Shell, card: &ModelCard) -> String {
        if let Some(ram) = memory::too_small_for(card.bytes).map(bytes) {
            return format!(
                "Larger than this computer's {ram} of RAM. Weights are read from disk for every token, which is slow."
            );
        }
        let ram = memory::total();
        match shell.engine_handle.state() {
            ModelState::Ready { model, engine } if model == card.id => open(ctx, shell, &model, &engine, ram),
            _ => self.closed(ctx, shell, card, ram),
        }
    }

    /// The sentence for a closed model.
    fn closed(&mut self, ctx: &Context, shell: &mut Shell, card: &ModelCard, ram: Option<u64>) -> String {
        if let Some((id, answer)) = self.asking.take()
            && let Some(entry) = self.known.get_mut(&id)
        {
            entry.answer = answer;
        }
        let options = shell.engine_options(&card.id);
        let gpu = chosen_adapter(shell, &card.id);
        let question = question(shell, card, &options, gpu);
        let stale = |entry: &KnownFit| {
            let unknown = entry.answer.as_ref().is_none_or(|answer| answer.tokens_per_second.is_none());
            entry.question != question || (unknown && entry.asked.elapsed() > AGAIN)
        };
        if self.known.get(&card.id).is_none_or(stale) {
            if self.asking.is_busy() {
                ctx.request_repaint_after(FRAME);
            } else {
                let answer = self.known.remove(&card.id).and_then(|entry| entry.answer);
                let entry = KnownFit { question: question.clone(), asked: Instant::now(), answer };
                self.known.insert(card.id.clone(), entry);
                let (id, asked, gpu) = (card.id.clone(), question.clone(), gpu.cloned());
                // If no thread can start, nothing is predicted.
                let _ = self.asking.start(ctx, move || {
                    let answer = estimate(&id, &options, gpu.as_ref(), &asked);
                    (id, answer)
                });
            }
        }
        let vram = question
            .budget
            .map(|bytes| NamedVram { bytes, is_budget: matches!(question.chosen, Some(VramBudget::AtMost(_))) });
        let Some(answer) = self.known.get(&card.id).and_then(|entry| entry.answer.as_ref()) else {
            return words(vram, None, Speed::Unknown, ram);
        };
        if let Some(rate) = answer.tokens_per_second {
            shell.vram.expected_speeds.tell(card.id.key(), &answer.setting, rate);
        }
        let expected = answer.tokens_per_second.map(|rate| ExpectedSpeed { rate, corrected: false });
        words(vram, Some(answer.fit), remembered_speed(shell, &card.id.key(), &answer.setting, expected), ram)
    }
}

/// The sentence for the open model. It uses the forecast and the speed that the budget slider
/// shows.
fn open(ctx: &Context, shell: &mut Shell, model: &ModelId, engine: &Engine, ram: Option<u64>) -> String {
    let room = BudgetRoom::of(shell, model, engine);
    let budget = room.map_or(0, |room| room.budget(shell.vram.dragged));
    let forecast = shell.vram.forecasts.about(ctx, model, engine, budget, shell.vram.dragged.is_some());
    let told = room.map(|room| match &forecast {
        Some(forecast) if forecast.budget != budget => forecast.budget,
        _ => room.told(room.choice(shell, model), shell.vram.dragged),
    });
    let vram = told.map(|bytes| NamedVram { bytes, is_budget: true });
    let Some(forecast) = forecast else { return words(vram, None, Speed::Unknown, ram) };
    let limit = room.map_or(0, |room| shell.vram.dragged.map_or(room.now, |choice| choice.limit(room.can_have)));
    let fit = Fit::from_plan(&forecast.plan, forecast.everything <= limit);
    let speed = speed_of(shell, model, engine, &forecast);
    words(vram, Some(fit), speed, ram)
}

fn question(shell: &Shell, card: &ModelCard, options: &EngineOptions, gpu: Option<&AdapterReport>) -> FitQuestion {
    let chosen = shell.settings.models.get(&card.id.key()).and_then(|chosen| chosen.budget);
    let budget = gpu.and_then(|gpu| {
        // Opening this model would first close the open one on this adapter.
        let held = match shell.engine_handle.engine().map(|engine| engine.device()) {
            Some(DeviceStatus::Gpu(memory)) if memory.adapter == gpu.name => memory.accounted,
            _ => 0,
        };
        let can_have = SystemMemory::of(&gpu.vram).can_have(held);
        let chosen = chosen.map(|budget| budget.limit(can_have.unwrap_or(0)));
        chosen.or(can_have.map(|bytes| bytes / STEP * STEP))
    });
    let terms = format!(
        "{:?} {} {:?} {:?} {} {} {:?}",
        gpu.map(|gpu| &gpu.name),
        options.sparsity,
        options.level,
        options.context,
        options.kv_type.name(),
        card.prepared,
        card.recall
    );
    FitQuestion { budget, chosen, terms }
}

/// Estimates a closed model.
fn estimate(id: &ModelId, options: &EngineOptions, gpu: Option<&AdapterReport>, of: &FitQuestion) -> Option<FitAnswer> {
    let gpu = gpu.filter(|_| of.budget.is_some());
    let gpu_use = if gpu.is_some() { options.device.gpu_use() } else { GpuUse::Never };
    let model = id.open(&LoadOptions { read_mode: options.read_mode, activation: options.activation }).ok()?;
    let planner = unopened_planner(&model, options, gpu).ok()?;
    let budget = of.budget.unwrap_or(0);
    let forecast = planner.forecast(budget, gpu_use);
    let foretold = forecast.tokens_per_second.filter(|_| model.checkpoint.tensor_bytes() >= FORETOLD);
    let device = gpu.filter(|_| forecast.plan.placement.any_resident());
    let setting = SpeedSetting {
        mode: SpeedSetting::mode_name(planner.inputs().sparsity.name(), options.level),
        device: device.map(|gpu| DeviceBudget { adapter: gpu.name.clone(), budget: of.chosen }),
        context: planner.inputs().context,
    };
    let fit = Fit::from_plan(&forecast.plan, forecast.everything <= budget);
    Some(FitAnswer { fit, setting, tokens_per_second: foretold })
}

fn words(vram: Option<NamedVram>, fit: Option<Fit>, speed: Speed, ram: Option<u64>) -> String {
    let rate = speed.known().map(|rate| format!(", {rate}")).unwrap_or_default();
    let in_ram = match ram {
        Some(_) => "Fits in RAM",
        None => "The size of the RAM is unknown",
    };
    let Some(NamedVram { bytes: size, is_budget }) = vram else { return format!("{in_ram}{rate}.") };
    let room = match is_budget {
        true => format!("the VRAM budget of {}", bytes(size)),
        false => format!("the {} of free VRAM", bytes(size)),
    };
    match fit {
        None => format!("Estimating what fits in {room} …"),
        Some(Fit { whole: true, .. }) => format!("Fits completely in {room}{rate}."),
        Some(Fit { hot: Some(0.0), .. }) => {
            format!("Does not fit in {room}. Some layers' attention goes there, all neurons stay in RAM{rate}.")
        }
        Some(Fit { hot: Some(hot), .. }) => {
            let work = 100.0 * hot;
            format!(
                "Does not fit in {room}. Neurons doing {work:.0} % of the work go there, the others stay in RAM{rate}."
            )
        }
        Some(Fit { hot: None, .. }) => format!("{in_ram}. Runs on the CPU, without {room}{rate}."),
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        placement::Machine,
        session::{DeviceChoice, Fallbacks, GpuOptions},
    };

    use super::*;

    #[test]
    fn estimate_sentence_names_a_speed_only_where_one_is_known() {
        let vram = |is_budget| Some(NamedVram { bytes: 6 << 30, is_budget });
        let fit = |whole, hot| Some(Fit { whole, hot });
        let said = |vram, fit, speed| words(vram, fit, speed, Some(1 << 40));
        assert_eq!(
            said(vram(true), fit(true, Some(1.0)), Speed::Expected(41.2)),
            "Fits completely in the VRAM budget of 6.0 GiB, about 41 tok/s."
        );
        assert_eq!(
            said(vram(false), fit(false, Some(0.83)), Speed::Expected(12.0)),
            "Does not fit in the 6.0 GiB of free VRAM. Neurons doing 83 % of the work go there, the others stay in RAM, about 12 tok/s."
        );
        let unknown = said(vram(false), fit(true, Some(1.0)), Speed::Unknown);
        assert_eq!(unknown, "Fits completely in the 6.0 GiB of free VRAM.");
        assert_eq!(
            said(vram(true), fit(false, Some(0.0)), Speed::Unknown),
            "Does not fit in the VRAM budget of 6.0 GiB. Some layers' attention goes there, all neurons stay in RAM."
        );
        assert_eq!(said(None, fit(false, None), Speed::Expected(3.21)), "Fits in RAM, about 3.2 tok/s.");
        assert_eq!(said(None, fit(false, None), Speed::Measured(3.21)), "Fits in RAM, measured at 3.2 tok/s.");
        let without = said(vram(true), fit(false, None), Speed::Unknown);
        assert!(without.starts_with("Fits in RAM. Runs on the CPU"), "{without}");
        assert!(said(vram(true), None, Speed::Unknown).starts_with("Estimating"));
    }

    #[test]
    fn closed_model_is_estimated_from_its_file() {
        let asked = |budget| FitQuestion { budget, chosen: None, terms: String::new() };
        let mut machine = Machine::typical();
        machine.assumed = false;
        let options = EngineOptions { machine: Some(machine), ..EngineOptions::default() };
        let known = estimate(&ModelId::Builtin, &options, None, &asked(None)).unwrap();
        assert!(known.fit.hot.is_none() && !known.fit.whole && known.setting.device.is_none());
        assert_eq!(known.tokens_per_second, None, "the caches decide how fast so small a model is");
        let unknown = estimate(&ModelId::Builtin, &EngineOptions::default(), None, &asked(None)).unwrap();
        assert_eq!(unknown.tokens_per_second, None);
        let nowhere = ModelId::from_key("/nowhere.gguf");
        assert_eq!(estimate(&nowhere, &options, None, &asked(None)), None);
        let all = thermocline_engine::session::adapters(&Fallbacks::default());
        let device = DeviceChoice::Gpu(GpuOptions::default());
        let options = EngineOptions { device, ..options };
        let at = |bytes: u64| estimate(&ModelId::Builtin, &options, all.first(), &asked(Some(bytes))).unwrap();
        let some = |answer: &FitAnswer| !answer.fit.whole && answer.fit.hot.is_some_and(|hot| hot > 0.0);
        let whole = at(1 << 40);
        assert_eq!(whole.setting.device.as_ref().map(|it| &it.adapter), all.first().map(|it| &it.name));
        assert!(whole.fit.whole && (4..64).any(|mib| some(&at(mib << 20))), "{whole:?} {:?}", at(16 << 20));
    }
}
