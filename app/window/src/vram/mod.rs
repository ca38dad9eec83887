//! The VRAM panel: the budget and its use. [`slider`] sets the budget, [`bar`] shows what it holds,
//! and [`picker`] chooses the processor. [`tiers`] shows how many weights are in VRAM, in RAM and
//! only on the disk. [`given_up`] lists the disabled driver features, and [`check`] reports
//! contradicting figures.
//!
//! Forecasts of a budget are computed once, for this panel and all others that show them. [`room`]
//! is the available memory, [`forecasts`] is what it would hold, [`speed`] is how fast that would
//! be, and [`why`] explains the speed with the figures of [`reasons`].

mod bar;
mod check;
mod forecasts;
mod given_up;
pub mod picker;
mod reasons;
mod room;
mod slider;
mod speed;
mod tiers;
pub mod why;

use std::time::{Duration, Instant};

use egui::{Align, Context, Layout, ProgressBar, RichText, Ui};
use thermocline_engine::{
    Error,
    session::{AdapterKind, DeviceMemory, DeviceStatus, Engine, LoadStage, Purpose},
};

use self::{
    bar::{BarScale, BarSegment, BudgetMark},
    forecasts::BudgetForecasts,
    reasons::SpeedReasons,
};
pub use self::{
    room::{BudgetRoom, chosen_adapter},
    speed::{ExpectedSpeed, Speed, keep_speed, remembered_speed, speed_of},
};
use crate::{
    adapters::SystemMemory,
    command::{Command, Page},
    shell::Shell,
};
use thermocline_chats::{settings::VramBudget, speeds::ExpectedSpeeds};
use thermocline_host::{
    engine_handle::{self, ModelState},
    library::ModelId,
    units::bytes,
};
use thermocline_rich_text::{
    frame_pace,
    theme::{self, Palette},
    widgets,
};

/// Interval of memory queries, while a GPU is in use and frames are drawn.
const AGE: Duration = Duration::from_secs(10);

/// The budget ignores changes of the limit below 1 / `STILL` of it.
const STILL: u64 = 16;

/// Forecasts and choices for the memory of the open model.
#[derive(Debug, Default)]
pub struct VramState {
    /// The budget while the user drags it.
    pub dragged: Option<VramBudget>,
    /// Forecasts for budgets.
    pub forecasts: BudgetForecasts,
    /// The figures that explain the model's speed.
    pub reasons: SpeedReasons,
    /// Predicted speeds of all models, used until an answer has been measured.
    pub expected_speeds: ExpectedSpeeds,
}

/// The panel of the budget and its use.
#[derive(Debug, Default)]
pub struct VramPanel {
    /// Bytes held, and the time of their last change.
    held: Option<(u64, Instant)>,
    /// The system's reading that the "leave free" budget last followed.
    followed: Option<Instant>,
}

impl VramPanel {
    /// Adjusts the budget so that the chosen amount of VRAM stays free.
    pub fn tick(&mut self, ctx: &Context, shell: &mut Shell) {
        let ModelState::Ready { model, engine } = shell.engine_handle.state() else {
            (self.held, shell.vram.dragged) = (None, None);
            return;
        };
        let DeviceStatus::Gpu(memory) = engine.device() else {
            self.held = None;
            return;
        };
        if self.held.is_none_or(|(held, _)| held != memory.accounted) {
            self.held = Some((memory.accounted, Instant::now()));
        }
        shell.adapters.look(ctx, AGE);
        let Some(VramBudget::LeaveFree(left)) = shell.model_settings(&model).budget else { return };
        let (Some(read), Some(system)) = (shell.adapters.read, system(shell, &memory)) else { return };
        if memory.moving
            || shell.is_comparing()
            || self.followed == Some(read)
            || self.held.is_none_or(|(_, since)| read < since)
        {
            return;
        }
        self.followed = Some(read);
        let Some(can_have) = system.free.and_then(|_| system.can_have(memory.accounted)) else { return };
        let limit = VramBudget::LeaveFree(left).limit(can_have);
        let now = engine.vram_budget().unwrap_or(u64::MAX);
        if limit.abs_diff(now) > limit / STILL {
            shell.toasts.check(engine.set_vram_budget(limit));
        }
    }

    /// Shows the panel.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        shell.adapters.look(ui, Duration::MAX);
        let state = shell.engine_handle.state();
        let status = match &state {
            ModelState::Ready { engine, .. } => Some(engine.device()),
            _ => None,
        };
        let title = match &status {
            Some(DeviceStatus::Cpu { reason }) if !reason.as_deref().is_some_and(is_small_budget) => "Processor",
            _ => "VRAM budget",
        };
        ui.horizontal(|ui| {
            ui.label(RichText::new(title).font(theme::strong(15.0)));
            if let Some(DeviceStatus::Gpu(memory)) = &status {
                let figure = format!("{} used", bytes(memory.accounted));
                ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                    ui.label(RichText::new(figure).font(theme::strong(13.0)).color(Palette::of(ui).amber));
                });
            }
        });
        match (state, status) {
            (ModelState::Ready { model, engine }, Some(status)) => self.ready(ui, shell, &model, &engine, &status),
            (ModelState::Remote { model, .. }, _) => {
                widgets::muted(
                    ui,
                    format!("{} runs the model. It uses no memory on this computer.", model.server.host()),
                );
            }
            (ModelState::Opening(opening), _) => {
                widgets::muted(ui, format!("Opening {} …", opening.model));
            }
            // The page shows the reason and the remedies.
            (ModelState::Failed { .. }, _) => _ = widgets::muted(ui, "No model is open, so no memory is used."),
            _ => {
                widgets::muted(ui, "No model is open, so no memory is used.");
                if ui.button("Choose a model").clicked() {
                    shell.queue_command(Command::Show(Page::Models));
                }
            }
        }
    }

    fn ready(&mut self, ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, status: &DeviceStatus) {
        picker::show(ui, shell);
        given_up::show(ui, shell);
        let retry = |ui: &mut Ui, shell: &mut Shell| {
            if ui.button("Try the GPU again").clicked() {
                shell.toasts.check(engine.retry_device());
            }
        };
        match status {
            DeviceStatus::Cpu { reason } => {
                widgets::muted(ui, why_cpu(shell, reason.as_deref()));
                match reason.as_deref() {
                    None | Some(Error::NoGpu { .. }) => {}
                    // With a larger budget, the device is used again.
                    Some(Error::Memory { .. }) => {
                        if let Some(room) = BudgetRoom::of(shell, model, engine) {
                            slider::show(ui, shell, model, engine, room);
                        }
                    }
                    Some(_) => retry(ui, shell),
                }
            }
            DeviceStatus::Loading(stage) => {
                let text = match (stage, stage.bytes()) {
                    (LoadStage::Testing, _) => "Testing the driver …".to_owned(),
                    (_, (_, 0)) => "Opening the GPU …".to_owned(),
                    (_, (done, total)) => format!("{} of {} are in VRAM", bytes(done), bytes(total)),
                };
                ui.add(ProgressBar::new(stage.fraction()).text(text).desired_height(20.0));
                ui.request_repaint_after(frame_pace::pace(ui));
            }
            DeviceStatus::Lost { adapter, reason } => {
                widgets::trouble(
                    ui,
                    format!(
                        "{adapter} stopped working: {reason}. The CPU continues. Thermocline will retry \
                    the GPU soon"
                    ),
                );
                retry(ui, shell);
                ui.request_repaint_after(Duration::from_millis(250));
            }
            DeviceStatus::Gpu(memory) => self.device(ui, shell, model, engine, memory),
        }
        tiers::show(ui, engine, status);
    }

    fn device(&mut self, ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, memory: &DeviceMemory) {
        let system = system(shell, memory);
        let Some(room) = BudgetRoom::of(shell, model, engine) else { return };
        let wrong = check::disagreement(memory, self.comparable(shell, memory, system));
        let palette = Palette::of(ui);
        let parts: Vec<BarSegment> = parts_of(memory, &palette).into_iter().filter(|part| part.amount > 0).collect();
        let told = room.told(room.choice(shell, model), shell.vram.dragged);
        let scale = BarScale { total: room.most.max(memory.accounted), end: Some(room.end()), format: bytes };
        bar::show(ui, "Used by the model", &parts, scale, Some(BudgetMark { at: told, breached: wrong.is_some() }));
        ui.add_enabled_ui(!shell.is_comparing(), |ui| slider::show(ui, shell, model, engine, room));
        if memory.moving {
            widgets::muted(ui, "Weights are being moved, a few with every token.");
            ui.request_repaint_after(Duration::from_millis(250));
        }
        if let Some(SystemMemory { total: Some(total), used: Some(used), used_here, .. }) = system {
            let here = used_here.unwrap_or(memory.accounted).min(used);
            let part = |name: &str, amount, colour| BarSegment { name: name.to_owned(), amount, colour };
            let all = [
                part("this program", here, palette.hot),
                part("other programs", used - here, palette.muted),
                part("free", total.saturating_sub(used), palette.raised),
            ];
            ui.add_space(4.0);
            // The slider shows the total of the panel, so this bar has a legend but no total.
            bar::show(ui, "VRAM, as reported by the system", &all, BarScale { total, end: None, format: bytes }, None);
            let told = used_here
                .map_or("does not report it per program".to_owned(), |here| format!("reports {}", bytes(here)));
            // The two figures are read at different moments.
            let earlier = match (shell.adapters.read, self.held) {
                (Some(read), Some((_, since))) if read < since => ", read before the last change",
                _ => "",
            };
            widgets::muted(ui, format!("The model uses {}. The system {told}{earlier}.", bytes(memory.accounted)));
        }
        if let Some(wrong) = wrong {
            widgets::trouble(ui, wrong);
        }
    }

    /// The system's reading, if it can be compared with the engine's: taken after the last change,
    /// for memory of the device's own.
    fn comparable(&self, shell: &Shell, memory: &DeviceMemory, system: Option<SystemMemory>) -> Option<SystemMemory> {
        let kind = shell.adapters.named(&memory.adapter)?.kind;
        let (read, (_, since)) = (shell.adapters.read?, self.held?);
        system.filter(|_| kind == AdapterKind::Discrete && read > since)
    }
}

/// True if a device is not used because the budget is too small for any part.
fn is_small_budget(reason: &Error) -> bool {
    matches!(reason, Error::Memory { .. })
}

/// Why the CPU computes everything, for the user. `reason` is the engine's. `None` means that no
/// GPU was requested. The missing bytes of a budget that is too small are shown by the slider and
/// by [`shortage_now`].
pub fn why_cpu(shell: &Shell, reason: Option<&Error>) -> String {
    match reason {
        None | Some(Error::NoGpu { .. }) => alone(shell),
        Some(Error::Memory { .. }) => {
            "The model runs on the CPU alone because the VRAM budget is too small for any part of it.".to_owned()
        }
        Some(reason) => {
            format!("The model runs on the CPU alone. {}", widgets::sentence(engine_handle::error_message(reason)))
        }
    }
}

/// The missing bytes of the slider's budget, as the slider shows them. `None` if nothing is
/// missing, or if that is not known yet.
pub fn shortage_now(ctx: &Context, shell: &mut Shell, model: &ModelId, engine: &Engine) -> Option<String> {
    let room = BudgetRoom::of(shell, model, engine)?;
    let budget = room.budget(shell.vram.dragged);
    let forecast = shell.vram.forecasts.about(ctx, model, engine, budget, shell.vram.dragged.is_some())?;
    slider::shortage(&forecast)
}

/// Why the CPU computes alone, for the user: there is a card, only a software driver, or nothing.
fn alone(shell: &Shell) -> String {
    let list = shell.adapters.list().unwrap_or_default();
    let software = list.iter().find(|adapter| adapter.kind == AdapterKind::Software);
    let why = match (list.iter().any(|adapter| adapter.kind != AdapterKind::Software), software) {
        (true, _) => "It uses no VRAM.".to_owned(),
        (false, Some(driver)) => format!(
            "No GPU was found, only a software driver ({}). It is slower than the CPU, so it is used only if you choose it.",
            driver.name
        ),
        (false, None) => {
            "No driver offers a GPU. If this computer has one, install its maker's Vulkan driver.".to_owned()
        }
    };
    format!("The model runs on the CPU alone. Neurons that do not fire are skipped, as the map shows. {why}")
}

fn system(shell: &Shell, memory: &DeviceMemory) -> Option<SystemMemory> {
    shell.adapters.named(&memory.adapter).map(|adapter| SystemMemory::of(&adapter.vram))
}

fn parts_of(memory: &DeviceMemory, palette: &Palette) -> Vec<BarSegment> {
    let part = |(purpose, bytes): &(Purpose, u64)| {
        let (name, colour) = match purpose {
            Purpose::Attention => ("attention", palette.deep),
            Purpose::Ffn => ("neurons", palette.hot),
            Purpose::Head => ("head", palette.cold),
            Purpose::Vectors => ("norms and biases", palette.cold.gamma_multiply(0.5)),
            Purpose::Kv => ("KV", palette.amber),
            Purpose::Scratch => ("scratch", palette.muted),
            Purpose::Staging => ("staging", palette.muted.gamma_multiply(0.5)),
            Purpose::Predictor => ("predictors", palette.good),
        };
        BarSegment { name: name.to_owned(), amount: *bytes, colour }
    };
    memory.by_purpose.iter().map(part).collect()
}

#[cfg(test)]
pub(super) mod tests;
