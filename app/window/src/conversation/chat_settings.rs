//! The settings of one chat: system prompt, sampling, and presets of both.

use egui::{CollapsingHeader, Context, Grid, Id, LayerId, Slider, TextStyle, Ui};
use egui_material_icons::icons::{ICON_CONTENT_COPY, ICON_DELETE};
use thermocline_engine::session::Sampling;

use super::Conversation;
use crate::{keyboard, shell::Shell};
use thermocline_chats::{
    chat::SamplingOverrides,
    store::{Preset, PresetId, Store, StoreError},
};
use thermocline_host::library::ModelId;
use thermocline_rich_text::{
    text::{Edition, TextField},
    widgets::{icon_button, muted},
};

/// The window with a chat's settings.
#[derive(Debug, Default)]
pub struct ChatSettings {
    /// True while the window is shown.
    pub open: bool,
    /// The layer of the window in the previous frame.
    layer: Option<LayerId>,
    presets: Option<Vec<(PresetId, Preset)>>,
    /// The edition of the text fields. It separates the undo history of each chat.
    edition: Edition,
    name: String,
    /// True if a new preset applies to the open model only.
    only_here: bool,
}

/// The settings of one chat.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenOptions {
    /// The system prompt.
    pub system_prompt: String,
    /// How tokens are chosen.
    pub choices: SamplingOverrides,
}

impl ChatSettings {
    /// Reloads the presets, because another chat is shown.
    pub fn refresh(&mut self) {
        (self.presets, self.edition) = (None, Edition::default());
    }

    /// Closes the window.
    pub fn close(&mut self) {
        (self.open, self.presets, self.layer) = (false, None, None);
    }

    /// True if a field of the window has the keyboard focus.
    pub fn is_written_in(&self, ctx: &Context) -> bool {
        self.layer.is_some_and(|layer| keyboard::is_written_on(ctx, layer))
    }

    /// Shows the settings if they are open. `model` is the key of the open model, `base` its own
    /// sampling.
    ///
    /// # Errors
    /// If the store cannot read or write the settings.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        store: &mut Store,
        options: &mut ChosenOptions,
        model: Option<&str>,
        base: &Sampling,
    ) -> Result<(), StoreError> {
        let mut open = self.open;
        let mut result = None;
        let anchor = ui.max_rect().right_bottom() - egui::vec2(16.0, 132.0);
        let shown = egui::Window::new("Chat settings")
            .open(&mut open)
            .collapsible(false)
            // Otherwise only the title bar drags the window, and it becomes a Tab stop.
            .drag_area(egui::WindowDrag::Anywhere)
            .resizable(false)
            .pivot(egui::Align2::RIGHT_BOTTOM)
            .default_pos(anchor)
            .default_size([400.0, (anchor.y - 64.0).max(160.0)])
            // The window is as high as its contents, up to the room above the composer.
            .max_height((anchor.y - 64.0).max(160.0))
            .vscroll(true)
            .show(ui, |ui| {
                let edition = self.edition;
                result = Some(ui.push_id(edition, |ui| {
                    system_prompt(ui, edition, &mut options.system_prompt);
                    let presets = self.presets(ui, store, options, model);
                    ui.separator();
                    sampling(ui, &mut options.choices, base);
                    presets
                }));
            });
        self.layer = shown.map(|shown| shown.response.layer_id);
        if !open {
            self.close();
        }
        result.map_or(Ok(()), |shown| shown.inner)
    }

    fn presets(
        &mut self,
        ui: &mut Ui,
        store: &mut Store,
        options: &mut ChosenOptions,
        model: Option<&str>,
    ) -> Result<(), StoreError> {
        if self.presets.is_none() {
            self.presets = Some(store.presets(model)?);
        }
        let mut changed = false;
        ui.label("Presets");
        for (id, preset) in self.presets.iter().flatten() {
            ui.horizontal(|ui| {
                let of_model = if preset.model.is_some() { "for this model only" } else { "for any model" };
                if ui
                    .button(&preset.name)
                    .on_hover_text(format!("Apply this preset to this chat ({of_model})"))
                    .clicked()
                {
                    options.system_prompt.clone_from(&preset.system_prompt);
                    options.choices = SamplingOverrides::from_json(preset.sampling.as_deref());
                }
                let duplicate = icon_button(ui, ICON_CONTENT_COPY, &format!("Duplicate {}", preset.name)).clicked();
                let replace = ui.button("Replace").on_hover_text("Save this chat's settings to the preset").clicked();
                let remove = icon_button(ui, ICON_DELETE, &format!("Remove {}", preset.name)).clicked();
                changed |= duplicate || replace || remove;
                if duplicate {
                    store.add_preset(preset)?;
                }
                if replace {
                    let (system_prompt, sampling) = (options.system_prompt.clone(), options.choices.to_json());
                    store.set_preset(*id, &Preset { system_prompt, sampling, ..preset.clone() })?;
                }
                if remove {
                    store.remove_preset(*id)?;
                }
                Ok::<(), StoreError>(())
            })
            .inner?;
        }
        if self.presets.iter().flatten().next().is_none() {
            muted(ui, "No presets yet. Save these settings under a name to use them in other chats.");
        }
        ui.horizontal(|ui| {
            let field = TextField::line(Id::unique("name of a preset"), TextStyle::Body.resolve(ui.style()));
            let field = field.show(ui, &mut self.name, |field| field.desired_width(160.0).hint_text("Name"));
            field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::TextInput, true, "Name of the preset"));
            let named = !self.name.trim().is_empty();
            if ui.add_enabled(named, egui::Button::new("Save as preset")).clicked() {
                let model = model.filter(|_| self.only_here).map(str::to_owned);
                let (system_prompt, sampling) = (options.system_prompt.clone(), options.choices.to_json());
                store.add_preset(&Preset { name: self.name.trim().to_owned(), model, system_prompt, sampling })?;
                self.name.clear();
                changed = true;
            }
            ui.add_enabled_ui(model.is_some(), |ui| ui.checkbox(&mut self.only_here, "this model only"));
            Ok::<(), StoreError>(())
        })
        .inner?;
        if changed {
            self.presets = None;
        }
        Ok(())
    }
}

impl Conversation {
    /// The model that would answer, and its own sampling.
    pub(super) fn model(&self, shell: &Shell) -> (Option<ModelId>, Sampling) {
        let model = shell.engine_handle.state().model();
        let base = model.as_ref().map(SamplingOverrides::model_defaults).unwrap_or_default();
        (model, base)
    }

    /// Shows the chat's settings if they are open, and stores the changes.
    pub(super) fn settings(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if !self.settings.open {
            return;
        }
        let (model, base) = self.model(shell);
        let chat = self.chat.as_ref();
        let before = ChosenOptions {
            system_prompt: chat.map(|chat| chat.system_prompt.clone()).unwrap_or_default(),
            choices: SamplingOverrides::from_json(chat.and_then(|chat| chat.sampling.as_deref())),
        };
        let mut options = before.clone();
        let key = model.map(|model| model.key());
        shell.toasts.check(self.settings.show(ui, &mut shell.store, &mut options, key.as_deref(), &base));
        if options != before
            && let Some(id) = self.ensure_chat(shell)
        {
            let sampling = options.choices.to_json();
            let kept = shell.store.set_system_prompt(id, &options.system_prompt);
            shell.toasts.check(kept.and_then(|()| shell.store.set_chat_sampling(id, sampling.as_deref())));
            if let Some(chat) = &mut self.chat {
                (chat.system_prompt, chat.sampling) = (options.system_prompt, sampling);
            }
        }
    }
}

/// Shows the field of the system prompt, which the model reads before all messages.
fn system_prompt(ui: &mut Ui, edition: Edition, text: &mut String) {
    let label = ui.label("System prompt").on_hover_text("Instructions that the model reads before the first message.");
    let (id, font) = (Id::unique("system prompt"), TextStyle::Body.resolve(ui.style()));
    let field = TextField::lines(id, font).of(edition).show(ui, text, |field| {
        field.desired_rows(3).desired_width(f32::INFINITY).hint_text("You are a helpful assistant.")
    });
    field.labelled_by(label.id);
    ui.add_space(8.0);
}

/// Shows the seed. A fixed seed makes answers repeatable.
fn seed_row(ui: &mut Ui, seed: &mut Option<u64>) {
    let mut fixed = seed.is_some();
    let help = "The same seed gives the same answer to the same question.";
    if ui.checkbox(&mut fixed, "Fixed seed").on_hover_text(help).changed() {
        *seed = fixed.then_some(1);
    }
    if let Some(seed) = seed {
        let drag = ui.add(egui::DragValue::new(seed));
        drag.widget_info(|| egui::WidgetInfo::labeled(egui::Role::SpinButton, true, "Seed"));
    }
    ui.end_row();
}

/// Shows a row of the grid: a name and its slider. True if the value changed.
fn slider_row(ui: &mut Ui, name: &str, help: &str, slider: Slider<'_>) -> bool {
    let label = ui.label(name).on_hover_text(help);
    let changed = ui.add(slider).labelled_by(label.id).on_hover_text(help).changed();
    ui.end_row();
    changed
}

/// Creates a slider over integers that shows 0 as the text `zero`.
fn counts<'a>(now: &'a mut usize, most: usize, zero: &'static str) -> Slider<'a> {
    let show = move |count: f64, _| if count < 0.5 { zero.to_owned() } else { format!("{count:.0}") };
    let read = move |text: &str| if text.trim() == zero { Some(0.0) } else { text.trim().parse().ok() };
    Slider::new(now, 0..=most).logarithmic(most > 1000).custom_formatter(show).custom_parser(read)
}

/// Shows the sampling sliders. Rarely used ones are folded.
fn sampling(ui: &mut Ui, choices: &mut SamplingOverrides, base: &Sampling) {
    Grid::new("sampling").num_columns(2).spacing([16.0, 8.0]).show(ui, |ui| {
        let mut real = |name: &str, help: &str, value: &mut Option<f32>, usual: f32, most: f32| {
            let mut now = value.unwrap_or(usual);
            if slider_row(ui, name, help, Slider::new(&mut now, 0.0..=most).step_by(0.01)) {
                *value = Some(now).filter(|now| *now != usual);
            }
        };
        let it = &mut *choices;
        let help = "How random the choice of tokens is. 0 always takes the most likely token.";
        real("Temperature", help, &mut it.temperature, base.temperature, 2.0);
        let help = "Considers only the most likely tokens whose probabilities add up to this value. 1 considers all tokens.";
        real("Top-p", help, &mut it.top_p, base.top_p, 1.0);
        let help = "The maximum number of tokens in an answer. A token is about three quarters of a word. Without a limit, \
            an answer can fill the context.";
        let mut most = it.max_tokens.unwrap_or(0);
        if slider_row(ui, "Longest answer", help, counts(&mut most, 8192, "no limit")) {
            it.max_tokens = Some(most).filter(|most| *most > 0);
        }
        seed_row(ui, &mut it.seed);
    });
    CollapsingHeader::new("More sampling").show(ui, |ui| more_sampling(ui, choices, base));
    let help = "If off, the answer continues, and the model no longer sees the oldest messages. It always sees the system prompt.";
    ui.checkbox(&mut choices.stop_when_full, "Stop when the context is full").on_hover_text(help);
    let own = *choices == SamplingOverrides::default();
    if ui.add_enabled(!own, egui::Button::new("Use the model's defaults")).clicked() {
        *choices = SamplingOverrides::default();
    }
}

/// Shows the rarely used sampling sliders.
fn more_sampling(ui: &mut Ui, it: &mut SamplingOverrides, base: &Sampling) {
    Grid::new("more sampling").num_columns(2).spacing([16.0, 8.0]).show(ui, |ui| {
        let mut real = |name: &str, help: &str, value: &mut Option<f32>, usual: f32, range, step: f64| {
            let mut now = value.unwrap_or(usual);
            if slider_row(ui, name, help, Slider::new(&mut now, range).step_by(step)) {
                *value = Some(now).filter(|now| *now != usual);
            }
        };
        let help = "Ignores tokens less likely than this fraction of the most likely one. 0 turns it off.";
        real("Min-p", help, &mut it.min_p, base.min_p, 0.0..=1.0, 0.01);
        let help = "Makes recent tokens less likely. 1 turns it off. Values above 1.3 harm the text.";
        real("Repeat penalty", help, &mut it.repeat_penalty, base.repeat_penalty, 1.0..=2.0, 0.01);
        let help = "Penalty on repeating whole phrases (DRY). 0 turns it off, 0.8 is usual.";
        real("Phrase penalty", help, &mut it.dry_multiplier, base.dry_multiplier, 0.0..=2.0, 0.05);
        let mut k = it.top_k.unwrap_or(base.top_k);
        let help = "Considers only this many of the most likely tokens.";
        if slider_row(ui, "Top-k", help, counts(&mut k, 200, "all")) {
            it.top_k = Some(k).filter(|k| *k != base.top_k);
        }
    });
}
