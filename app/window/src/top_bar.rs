//! The bar above the page: the model, its device, what it skips, its speed, and the reasons. The
//! right end is laid out first. Names share the remaining width, and long names are shortened.

use egui::{
    Align, Button, Color32, Context, Label, Layout, PopupCloseBehavior, ProgressBar, RichText, TextStyle, Ui,
    containers::menu::{MenuButton, MenuConfig},
};
use egui_material_icons::icons::{ICON_MEMORY, ICON_VIEW_SIDEBAR};
use thermocline_engine::{
    Error,
    session::{DeviceStatus, Engine, LoadStage, SparsityChoice},
};

use crate::{
    command::{Command, Page},
    model_menu,
    models::prepare_offer,
    race_menu,
    shell::Shell,
    vram::{self, picker},
};
use thermocline_chats::server_switch::ServerState;
use thermocline_host::{engine_handle::ModelState, library::ModelId, units};
use thermocline_rich_text::{
    frame_pace,
    theme::{self, Palette},
    widgets,
};

/// Width of the progress bar while a device loads, in points.
const LOADING: f32 = 96.0;

/// A chip of the bar: its text and its tooltip.
#[derive(Debug)]
struct Chip {
    text: String,
    colour: Color32,
    hint: String,
}

/// The place where the model is computed.
#[derive(Debug)]
enum DevicePlace {
    /// A device or the CPU.
    Known(Chip),
    /// A device that is still loading.
    Loading(LoadStage),
    /// A remote server. It has no menu.
    Remote(Chip),
}

/// The texts of the bar.
#[derive(Debug, Default)]
struct BarWords {
    model: String,
    device: Option<DevicePlace>,
    mode: Option<Chip>,
    rate: Option<String>,
    /// The sign of the server while the server is on.
    serving: Option<Chip>,
}

/// A clickable part of the bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BarPart {
    Chats,
    Neurons,
    Model,
    Device,
    Mode,
    Speed,
    Server,
}

/// Shows the bar above `page`.
pub fn show(ui: &mut Ui, shell: &mut Shell, page: Page) {
    let state = shell.engine_handle.state();
    let reason = match &state {
        ModelState::Ready { model, engine } => why_cpu(ui, shell, model, engine),
        _ => None,
    };
    let serving = serving(&shell.serving.state(), Palette::of(ui));
    let words = BarWords { serving, ..words(&state, reason, Palette::of(ui)) };
    let menu = |ui: &mut Ui, part: BarPart| match (part, &state) {
        (BarPart::Model, _) => model_menu::show(ui, shell, &state, page),
        (BarPart::Device, ModelState::Ready { model, .. }) => picker::choices(ui, shell, model),
        (BarPart::Mode, ModelState::Ready { model, engine }) => mode_menu(ui, shell, model, engine),
        (BarPart::Speed, ModelState::Ready { model, engine }) => vram::why::show(ui, shell, model, engine),
        _ => {}
    };
    let pressed = bar(ui, &words, menu);
    match pressed {
        Some(BarPart::Chats) => shell.queue_command(Command::ToggleChats),
        Some(BarPart::Neurons) => shell.queue_command(Command::ToggleNeurons),
        Some(BarPart::Server) => shell.queue_command(Command::Show(Page::Preferences)),
        _ => {}
    }
}

/// The reason why the CPU computes everything, worded as in the VRAM panel. If the budget is too
/// small, it includes the shortage. `None` if a device computes.
pub fn why_cpu(ctx: &Context, shell: &mut Shell, model: &ModelId, engine: &Engine) -> Option<String> {
    let DeviceStatus::Cpu { reason } = engine.device() else { return None };
    let why = vram::why_cpu(shell, reason.as_deref());
    let too_small = matches!(reason.as_deref(), Some(Error::Memory { .. }));
    let shortage = too_small.then(|| vram::shortage_now(ctx, shell, model, engine)).flatten();
    Some(match shortage {
        Some(shortage) => format!("{why} {shortage}"),
        None => why,
    })
}

/// The sign of the server for other programs. `None` while the server is off.
fn serving(state: &ServerState, palette: Palette) -> Option<Chip> {
    let chip = |colour, hint| Some(Chip { text: "Server".to_owned(), colour, hint });
    match state {
        ServerState::Off => None,
        ServerState::On { url, .. } => chip(palette.good, format!("Other programs can use the model at {url}.")),
        ServerState::Failed(why) => chip(palette.bad, widgets::sentence(format!("the server is not running: {why}"))),
    }
}

/// `reason` says why the CPU computes everything, if it does.
fn words(state: &ModelState, reason: Option<String>, palette: Palette) -> BarWords {
    let model = match state {
        ModelState::Empty => "No model".to_owned(),
        ModelState::Opening(opening) => format!("Opening {} …", opening.model),
        ModelState::Ready { model, .. } => model.to_string(),
        ModelState::Remote { model, .. } => model.name.clone(),
        ModelState::Failed { model, failure, .. } => format!("{model} {failure}"),
    };
    match state {
        ModelState::Ready { engine, .. } => {
            let report = engine.sparsity();
            let hint = format!("Sparsity: {}", widgets::sentence(&report.reason));
            let mode = Chip { text: report.at_work.name().to_owned(), colour: palette.good, hint };
            // While no answer is written, it shows the rate of the latest answer.
            let lately =
                Some(engine.telemetry().decode_rate).filter(|rate| *rate > 0.0).or_else(|| engine.observed_rate());
            let rate = Some(lately.map_or_else(|| "Speed".to_owned(), units::rate));
            let device = Some(device_place(engine, reason, palette));
            BarWords { model, device, mode: Some(mode), rate, serving: None }
        }
        ModelState::Remote { model: remote, .. } => {
            let colour = if remote.server.is_private() { palette.cold } else { palette.amber };
            let text = format!("Messages are sent to {}", remote.server.host());
            let chip = Chip { text, colour, hint: remote.server.destination() };
            BarWords { model, device: Some(DevicePlace::Remote(chip)), ..BarWords::default() }
        }
        _ => BarWords { model, ..BarWords::default() },
    }
}

fn device_place(engine: &Engine, reason: Option<String>, palette: Palette) -> DevicePlace {
    let chip = |text: String, hint: String| Chip { text, colour: palette.text, hint };
    DevicePlace::Known(match engine.device() {
        DeviceStatus::Cpu { .. } => chip("CPU".to_owned(), reason.unwrap_or_default()),
        DeviceStatus::Loading(stage) => return DevicePlace::Loading(stage),
        DeviceStatus::Gpu(memory) => {
            let whole = engine.resident().is_some_and(|it| it.first_layer == 0 && it.head);
            let cpu = if whole { "" } else { " + CPU" };
            chip(format!("{}{cpu}", memory.adapter), format!("Runs on {}{cpu}", memory.adapter))
        }
        DeviceStatus::Lost { adapter, reason } => {
            let hint = widgets::sentence(format!("{adapter} stopped working: {reason}"));
            Chip { text: "GPU lost".to_owned(), colour: palette.bad, hint }
        }
    })
}

/// Draws the bar. `menu` fills the menus of its chips. Returns the switch that was pressed.
fn bar(ui: &mut Ui, words: &BarWords, mut menu: impl FnMut(&mut Ui, BarPart)) -> Option<BarPart> {
    let mut pressed = None;
    ui.horizontal(|ui| {
        let chats = "Show or hide the chats";
        if ui.button(ICON_VIEW_SIDEBAR).accessible_name(chats).on_hover_text(chats).clicked() {
            pressed = Some(BarPart::Chats);
        }
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let neurons = "Show or hide the neurons";
            if ui.button(ICON_MEMORY).accessible_name(neurons).on_hover_text(neurons).clicked() {
                pressed = Some(BarPart::Neurons);
            }
            if let Some(chip) = &words.serving {
                let text = RichText::new(&chip.text).color(chip.colour);
                if ui.add(Button::new(text).frame(false)).on_hover_text(&chip.hint).clicked() {
                    pressed = Some(BarPart::Server);
                }
            }
            if let Some(rate) = &words.rate {
                let text = RichText::new(rate).font(theme::strong(14.0)).color(Palette::of(ui).amber);
                let rate = MenuButton::from_button(Button::new(text).frame(false));
                // This menu is for reading: a click inside does not close it.
                let rate = rate.config(MenuConfig::new().close_behavior(PopupCloseBehavior::CloseOnClickOutside));
                let (response, _) = rate.ui(ui, |ui| menu(ui, BarPart::Speed));
                response.on_hover_text("Recent tokens per second. Click to see what limits the speed.");
            }
            ui.with_layout(Layout::left_to_right(Align::Center), |ui| chips(ui, words, &mut menu));
        });
    });
    pressed
}

/// Draws the names in the width that the switches and the rate leave. The mode gets its full width,
/// the others at least half of the rest.
fn chips(ui: &mut Ui, words: &BarWords, mut menu: impl FnMut(&mut Ui, BarPart)) {
    let gap = ui.spacing().item_spacing.x;
    let device = match &words.device {
        None => 0.0,
        Some(DevicePlace::Loading(_)) => LOADING + gap,
        Some(DevicePlace::Known(chip) | DevicePlace::Remote(chip)) => width(ui, &chip.text) + gap,
    };
    let mode = words.mode.as_ref().map_or(0.0, |chip| width(ui, &chip.text) + gap);
    let rest = ui.available_width() - mode;
    let button = |text: RichText| MenuButton::from_button(Button::new(text).truncate());
    let model = button(RichText::new(&words.model));
    let (response, _) =
        within(ui, (rest - device).max(0.5 * (rest - gap)), |ui| model.ui(ui, |ui| menu(ui, BarPart::Model)));
    response.on_hover_text(format!("{}: choose another model", words.model));
    let rest = ui.available_width() - mode;
    match &words.device {
        None => {}
        Some(DevicePlace::Known(chip)) => {
            let device = button(RichText::new(&chip.text).color(chip.colour));
            let (response, _) = within(ui, rest, |ui| device.ui(ui, |ui| menu(ui, BarPart::Device)));
            response.on_hover_text(&chip.hint);
        }
        Some(DevicePlace::Loading(stage)) => {
            let fraction = stage.fraction();
            let text = match stage {
                LoadStage::Testing => "Testing …".to_owned(),
                LoadStage::Opening | LoadStage::Uploading { .. } => format!("Loading {:.0} %", fraction * 100.0),
            };
            let bar = ProgressBar::new(fraction).text(text);
            ui.add(bar.desired_width(LOADING.min(rest)));
            ui.request_repaint_after(frame_pace::pace(ui));
        }
        Some(DevicePlace::Remote(chip)) => {
            let badge = Label::new(RichText::new(&chip.text).color(chip.colour)).truncate();
            within(ui, rest, |ui| ui.add(badge)).on_hover_text(&chip.hint);
        }
    }
    if let Some(chip) = &words.mode {
        let mode = button(RichText::new(&chip.text).color(chip.colour));
        let (response, _) = mode.ui(ui, |ui| menu(ui, BarPart::Mode));
        response.on_hover_text(&chip.hint);
    }
}

/// Width of a button with this text, in points.
fn width(ui: &Ui, text: &str) -> f32 {
    let font = TextStyle::Button.resolve(ui.style());
    let galley = ui.painter().layout_no_wrap(text.to_owned(), font, Color32::PLACEHOLDER);
    (galley.size().x + 2.0 * ui.spacing().button_padding.x).max(ui.spacing().interact_size.x).ceil() + 1.0
}

/// Draws contents that are at most `width` points wide.
fn within<R>(ui: &mut Ui, width: f32, contents: impl FnOnce(&mut Ui) -> R) -> R {
    let limited = |ui: &mut Ui| {
        ui.set_max_width(width.max(0.0));
        contents(ui)
    };
    ui.scope(limited).inner
}

/// The label and the explanation of a sparsity mode.
pub(super) fn about(choice: SparsityChoice) -> (&'static str, &'static str) {
    match choice.name() {
        "dense" => ("Dense", "Computes every neuron"),
        "exact" => ("Exact", "Skips neurons whose gate is zero. Answers stay the same."),
        "predicted" => ("Predicted", "Predictors choose the neurons to skip in advance. Fastest, but approximate."),
        "threshold" => ("Threshold", "Skips neurons with small activations, also in models without ReLU. Approximate."),
        _ => ("Automatic", "The fastest mode with almost no loss of quality"),
    }
}

/// Shows the levels of input sparsity of a prepared model, each with its cost. Choosing a level
/// reopens the model.
fn input_levels(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let weights = &engine.model().weights;
    if weights.input_figures.is_empty() {
        return;
    }
    ui.separator();
    let now = weights.input_level;
    let mut chosen = None;
    if ui.selectable_label(now.is_none(), "Keep small inputs").clicked() && now.is_some() {
        chosen = Some(None);
    }
    for figures in &weights.input_figures {
        let level = figures.level as f32;
        let label = format!("Skip small inputs: {:.0} %", 100.0 * figures.level);
        let this = now.is_some_and(|now| (now - level).abs() < 1e-3);
        let cost = format!(
            "Threshold skips small inputs in all layers, Exact and Predicted only in attention. Measured {}",
            figures.cost()
        );
        if ui.selectable_label(this, label).on_hover_text(cost).clicked() && !this {
            chosen = Some(Some(level));
        }
    }
    if let Some(level) = chosen {
        let settings = shell.model_settings(model);
        settings.level = level;
        if level.is_some() && settings.sparsity.as_deref().is_none_or(|mode| mode == "auto" || mode == "dense") {
            settings.sparsity = Some("threshold".to_owned());
        }
        shell.queue_command(Command::OpenModel(model.clone()));
        ui.close();
    }
}

fn mode_menu(ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine) {
    let report = engine.sparsity();
    for choice in SparsityChoice::ALL {
        let (name, what) = about(choice);
        let would = engine.sparsity_of(choice);
        let item = Button::selectable(report.asked == choice, name);
        let item = ui.add_enabled(would.obstacle().is_none(), item).on_hover_text(what);
        if let Some(why) = would.obstacle() {
            item.on_disabled_hover_text(widgets::sentence(why));
        } else if item.clicked() {
            shell.model_settings(model).sparsity = Some(choice.name().to_owned());
            shell.toasts.check(engine.set_sparsity(choice));
            ui.close();
        }
    }
    race_menu::show(ui, shell, model, engine);
    prepare_offer(ui, shell);
    input_levels(ui, shell, model, engine);
    ui.separator();
    let mut adaptive = engine.adaptive();
    let check = ui.checkbox(&mut adaptive, "Adapt to the current text");
    let hint = "Moves neurons that fire often in the current text into VRAM, in place of neurons that do not";
    if check.on_hover_text(hint).changed() {
        shell.model_settings(model).adaptive = Some(adaptive);
        shell.toasts.check(engine.set_adaptive(adaptive));
    }
}

#[cfg(test)]
mod tests {
    use egui::Rect;
    use egui_kittest::{Harness, kittest::Queryable};

    use super::*;

    /// Widths of the bar in windows of 900, 1100 and 1280 points with their columns, and in the
    /// narrowest window.
    const WIDTHS: [f32; 4] = [636.0, 388.0, 568.0, 448.0];

    fn chip(text: &str) -> Chip {
        Chip { text: text.to_owned(), colour: Color32::WHITE, hint: String::new() }
    }

    /// The parts of the bar from left to right.
    fn parts(width: f32, words: BarWords) -> Vec<(String, Rect)> {
        let mut names = vec![words.model.clone()];
        names.extend(match &words.device {
            Some(DevicePlace::Known(chip) | DevicePlace::Remote(chip)) => Some(chip.text.clone()),
            Some(DevicePlace::Loading(_)) => Some("Loading 40 %".to_owned()),
            None => None,
        });
        names.extend(words.mode.as_ref().map(|chip| chip.text.clone()));
        names.extend(words.rate.clone());
        let show = move |ui: &mut Ui, installed: &mut bool| {
            if !std::mem::replace(installed, true) {
                return theme::install(ui);
            }
            ui.set_max_width(width);
            bar(ui, &words, |_, _| ());
        };
        let mut it = Harness::builder().with_size([width + 16.0, 60.0]).build_ui_state(show, false);
        it.run_steps(4);
        let all = [vec!["Show or hide the chats".to_owned()], names, vec!["Show or hide the neurons".to_owned()]];
        all.concat().into_iter().map(|name| (name.clone(), it.get_by_label(&name).rect())).collect()
    }

    #[test]
    fn parts_of_the_line_do_not_overlap_with_long_names() {
        let long = "Mistral-Small-24B-Instruct-2501-reasoning-Q4_K_M";
        let adapter = "llvmpipe (LLVM 15.0.6, 256 bits) + CPU";
        for width in WIDTHS {
            for device in [
                DevicePlace::Known(chip(adapter)),
                DevicePlace::Known(chip("CPU")),
                DevicePlace::Loading(LoadStage::Uploading { done: 4, total: 10 }),
                DevicePlace::Remote(chip("Messages are sent to a.server.with.a.long.name.example.org")),
            ] {
                for model in [long, "Storyteller"] {
                    let mode = (!matches!(device, DevicePlace::Remote(_))).then(|| chip("predicted"));
                    let device = match &device {
                        DevicePlace::Known(it) => DevicePlace::Known(chip(&it.text)),
                        DevicePlace::Remote(it) => DevicePlace::Remote(chip(&it.text)),
                        DevicePlace::Loading(fraction) => DevicePlace::Loading(*fraction),
                    };
                    let rate = Some("123.4 tok/s".to_owned());
                    let words = BarWords { model: model.to_owned(), device: Some(device), mode, rate, serving: None };
                    let parts = parts(width, words);
                    for pair in parts.windows(2) {
                        assert!(pair[0].1.right() < pair[1].1.left(), "{width}: {pair:?}");
                    }
                    let (name, last) = &parts[parts.len() - 1];
                    assert!(last.right() <= width + 8.5, "{width}: {name} at {last:?}");
                }
            }
        }
    }

    #[test]
    fn short_names_are_shown_in_full() {
        let words = BarWords {
            model: "Storyteller".to_owned(),
            device: Some(DevicePlace::Known(chip("NVIDIA RTX 4090 + CPU"))),
            mode: Some(chip("exact")),
            ..BarWords::default()
        };
        let parts = parts(WIDTHS[0], words);
        let wide = |at: usize| parts[at].1.width();
        assert!(wide(1) > 80.0 && wide(2) > 150.0 && wide(3) > 50.0, "{parts:?}");
    }
}
