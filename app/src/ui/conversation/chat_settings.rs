//! Settings of one chat: system prompt, sampling, and presets of both.

use egui::{Context, Grid, Id, LayerId, Slider, TextStyle, Ui};
use egui_material_icons::icons::{ICON_CONTENT_COPY, ICON_DELETE};
use thermocline_engine::session::Sampling;

use super::Conversation;
use crate::{
    chat::SamplingOverrides,
    engine_handle::ModelState,
    library::ModelId,
    store::{Preset, PresetId, Store, StoreError},
    ui::{
        keyboard,
        shell::Shell,
        text::TextField,
        widgets::{icon_button, muted},
    },
};

/// The window with a chat's settings.
#[derive(Debug, Default)]
pub struct ChatSettings {
    /// True while it is shown.
    pub open: bool,
    /// The layer that it was drawn on with the last frame.
    layer: Option<LayerId>,
    presets: Option<Vec<(PresetId, Preset)>>,
    name: String,
    /// True if a new preset is for the open model only.
    only_here: bool,
}

/// Options of one chat.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// System prompt.
    pub system_prompt: String,
    /// How tokens are chosen.
    pub choices: SamplingOverrides,
}

impl ChatSettings {
    /// Reads presets again: another chat is shown.
    pub fn refresh(&mut self) {
        self.presets = None;
    }

    /// Closes the window.
    pub fn close(&mut self) {
        (self.open, self.presets, self.layer) = (false, None, None);
    }

    /// True if one writes in a field of the window.
    pub fn is_written_in(&self, ctx: &Context) -> bool {
        self.layer.is_some_and(|layer| keyboard::is_written_on(ctx, layer))
    }

    /// Shows them, if they are open. `model`: the key of the open model; `base`: its own sampling.
    ///
    /// # Errors
    /// The stored settings.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        store: &mut Store,
        options: &mut ChatOptions,
        model: Option<&str>,
        base: &Sampling,
    ) -> Result<(), StoreError> {
        let mut open = self.open;
        let mut result = Ok(());
        let anchor = ui.max_rect().right_bottom() - egui::vec2(16.0, 132.0);
        let shown = egui::Window::new("Chat settings")
            .open(&mut open)
            .collapsible(false)
            // Otherwise the title alone is what one drags, and the keyboard stops at it.
            .drag_area(egui::WindowDrag::Anywhere)
            .resizable(false)
            .pivot(egui::Align2::RIGHT_BOTTOM)
            .default_pos(anchor)
            .default_width(400.0)
            .vscroll(true)
            .show(ui, |ui| result = self.contents(ui, store, options, model, base));
        self.layer = shown.map(|shown| shown.response.layer_id);
        if !open {
            self.close();
        }
        result
    }

    fn contents(
        &mut self,
        ui: &mut Ui,
        store: &mut Store,
        options: &mut ChatOptions,
        model: Option<&str>,
        base: &Sampling,
    ) -> Result<(), StoreError> {
        let label = ui.label("System prompt").on_hover_text("What the model is told before anything else is said.");
        let (id, font) = (Id::unique("system prompt"), TextStyle::Body.resolve(ui.style()));
        let field = TextField::lines(id, font).show(ui, &mut options.system_prompt, |field| {
            field.desired_rows(3).desired_width(f32::INFINITY).hint_text("You are a helpful assistant.")
        });
        field.labelled_by(label.id);
        ui.add_space(8.0);
        sampling(ui, &mut options.choices, base);
        ui.separator();
        self.presets(ui, store, options, model)
    }

    fn presets(
        &mut self,
        ui: &mut Ui,
        store: &mut Store,
        options: &mut ChatOptions,
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
                if ui.button(&preset.name).on_hover_text(format!("Use this preset here ({of_model})")).clicked() {
                    options.system_prompt.clone_from(&preset.system_prompt);
                    options.choices = SamplingOverrides::from_json(preset.sampling.as_deref());
                }
                let duplicate = icon_button(ui, ICON_CONTENT_COPY, &format!("Duplicate {}", preset.name)).clicked();
                let replace = ui.button("Replace").on_hover_text("Put this chat's settings into the preset").clicked();
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
            muted(ui, "None yet. Give these settings a name to use them in other chats.");
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
        let model = match shell.engine_handle.state() {
            ModelState::Ready { model, .. } | ModelState::Failed { model, .. } => Some(model),
            ModelState::Remote { model, .. } => Some(ModelId::Remote(model)),
            ModelState::Opening(opening) => Some(opening.model),
            ModelState::Empty => None,
        };
        let base = model.as_ref().map(SamplingOverrides::model_defaults).unwrap_or_default();
        (model, base)
    }

    /// Shows the settings of the chat, if they are open, and keeps what was changed.
    pub(super) fn settings(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if !self.settings.open {
            return;
        }
        let (model, base) = self.model(shell);
        let chat = self.chat.as_ref();
        let before = ChatOptions {
            system_prompt: chat.map(|chat| chat.system_prompt.clone()).unwrap_or_default(),
            choices: SamplingOverrides::from_json(chat.and_then(|chat| chat.sampling.as_deref())),
        };
        let mut options = before.clone();
        let key = model.map(|model| model.key());
        let shown = self.settings.show(ui, &mut shell.store, &mut options, key.as_deref(), &base);
        shell.ok_or_show_error(shown);
        if options != before
            && let Some(id) = self.ensure_chat(shell)
        {
            let sampling = options.choices.to_json();
            let kept = shell.store.set_system_prompt(id, &options.system_prompt);
            let kept = kept.and_then(|()| shell.store.set_chat_sampling(id, sampling.as_deref()));
            shell.ok_or_show_error(kept);
            if let Some(chat) = &mut self.chat {
                (chat.system_prompt, chat.sampling) = (options.system_prompt, sampling);
            }
        }
    }
}

/// The seed, if answers are to be had again.
fn seed_row(ui: &mut Ui, seed: &mut Option<u64>) {
    let mut fixed = seed.is_some();
    let help = "With the same seed, the same question is answered in the same words.";
    if ui.checkbox(&mut fixed, "Fixed seed").on_hover_text(help).changed() {
        *seed = fixed.then_some(1);
    }
    if let Some(seed) = seed {
        let drag = ui.add(egui::DragValue::new(seed));
        drag.widget_info(|| egui::WidgetInfo::labeled(egui::Role::SpinButton, true, "Seed"));
    }
    ui.end_row();
}

/// Sliders for what can be chosen.
fn sampling(ui: &mut Ui, choices: &mut SamplingOverrides, base: &Sampling) {
    Grid::new("sampling").num_columns(2).spacing([16.0, 8.0]).show(ui, |ui| {
        let mut real = |name: &str, help: &str, value: &mut Option<f32>, usual: f32, most: f32| {
            let label = ui.label(name).on_hover_text(help);
            let mut now = value.unwrap_or(usual);
            let slider = ui.add(Slider::new(&mut now, 0.0..=most).step_by(0.01)).labelled_by(label.id);
            if slider.on_hover_text(help).changed() {
                *value = Some(now).filter(|now| *now != usual);
            }
            ui.end_row();
        };
        let it = &mut *choices;
        real(
            "Temperature",
            "How adventurous the choice of words is. 0 always takes the likeliest one.",
            &mut it.temperature,
            base.temperature,
            2.0,
        );
        real(
            "Top-p",
            "Only the likeliest words that together have this probability are considered. 1 considers all.",
            &mut it.top_p,
            base.top_p,
            1.0,
        );
        real(
            "Min-p",
            "Words less likely than this part of the likeliest one are left out. 0 leaves out none.",
            &mut it.min_p,
            base.min_p,
            1.0,
        );
        let mut penalty = it.repeat_penalty.unwrap_or(base.repeat_penalty);
        let help = "Makes words said lately less likely. 1 is off; above 1.3 texts become odd.";
        let label = ui.label("Repeat penalty").on_hover_text(help);
        if ui
            .add(Slider::new(&mut penalty, 1.0..=2.0).step_by(0.01))
            .labelled_by(label.id)
            .on_hover_text(help)
            .changed()
        {
            it.repeat_penalty = Some(penalty).filter(|now| *now != base.repeat_penalty);
        }
        ui.end_row();
        let mut whole = |name: &str, help: &str, value: usize, most: usize| {
            let label = ui.label(name).on_hover_text(help);
            let mut now = value;
            let slider = Slider::new(&mut now, 0..=most).logarithmic(most > 1000);
            let changed = ui.add(slider).labelled_by(label.id).on_hover_text(help).changed();
            ui.end_row();
            changed.then_some(now)
        };
        let help = "Only so many of the likeliest words are considered. 0 considers all.";
        if let Some(k) = whole("Top-k", help, it.top_k.unwrap_or(base.top_k), 200) {
            it.top_k = Some(k).filter(|k| *k != base.top_k);
        }
        let help = "An answer ends after so many tokens (a token is about three quarters of a word). 0: as many as the \
                    context has.";
        if let Some(most) = whole("Longest answer", help, it.max_tokens.unwrap_or(0), 8192) {
            it.max_tokens = Some(most).filter(|most| *most > 0);
        }
        let help = "Penalty on repeating whole phrases (DRY). 0 is off, 0.8 is usual.";
        let label = ui.label("Phrase penalty").on_hover_text(help);
        let mut dry = it.dry_multiplier.unwrap_or(base.dry_multiplier);
        if ui.add(Slider::new(&mut dry, 0.0..=2.0).step_by(0.05)).labelled_by(label.id).on_hover_text(help).changed() {
            it.dry_multiplier = Some(dry).filter(|now| *now != base.dry_multiplier);
        }
        ui.end_row();
        seed_row(ui, &mut it.seed);
    });
    let help =
        "Otherwise the oldest questions and answers are forgotten, never the system prompt, and the answer goes on.";
    ui.checkbox(&mut choices.stop_when_full, "Stop when the context is full").on_hover_text(help);
    let own = *choices == SamplingOverrides::default();
    if ui.add_enabled(!own, egui::Button::new("As the model suggests")).clicked() {
        *choices = SamplingOverrides::default();
    }
}
