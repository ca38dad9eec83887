//! A picture of a message, shown large. A click on a patch (or the arrow keys) asks which neurons
//! fire there. A table below the picture lists the neurons that add most to the outputs of their
//! layers.

use egui::{Image, Key, Label, Modifiers, Role, Sense, Stroke, StrokeKind, Ui, Vec2, WidgetInfo};
use egui_material_icons::icons::{ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_CLOSE};
use thermocline_engine::{eval::TokenFiring, session::Engine};

use super::{
    Conversation,
    message::MessageContext,
    neuron_table::{NeuronTableRow, neuron_table},
    patches::{PatchCells, TintedPatches},
    thumbnails::DecodedPicture,
};
use crate::{command::Command, keyboard, neurons::RingedNeurons, shell::Shell};
use thermocline_chats::{
    chat::{AskedPicture, FiringProgress, PictureFiring, prompt_through},
    store::{Attachment, AttachmentId, MessageId},
};
use thermocline_host::engine_handle::error_message;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{icon_button, muted, sentence, small},
};

/// Greatest height of the picture, in points.
const HIGHEST: f32 = 360.0;

/// An action of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureAct {
    /// Compute the neurons at all patches.
    Compute,
    /// Compute the words of the neurons at this patch.
    Words(usize),
    /// Show the map with the patch's neurons ringed.
    Map,
    /// Close the view.
    Close,
}

/// The view of one picture.
#[derive(Debug)]
pub struct OpenedPicture {
    /// The message with the picture.
    pub message: MessageId,
    /// The picture.
    pub id: AttachmentId,
    name: String,
    chosen: Option<usize>,
    /// The neurons at the patches, in a model.
    pub firing: Option<PictureFiring>,
    /// The patch whose words were asked for.
    asked: Option<usize>,
}

/// The values that the view is drawn with.
#[derive(Clone, Copy)]
pub struct PictureContext<'a> {
    /// The pixels, once they are decoded.
    pub decoded: Option<&'a DecodedPicture>,
    /// True if the pixels can never be decoded.
    pub damaged: bool,
    /// The patches of the picture in the open model, or why there are none.
    pub patches: Result<&'a PatchCells, &'a str>,
    /// The colours of the patches.
    pub tint: Option<TintedPatches<'a>>,
    /// True if the arrow keys move from patch to patch, because nothing else uses them.
    pub arrows: bool,
}

impl OpenedPicture {
    /// Opens a picture of `message`.
    pub fn new(message: MessageId, file: &Attachment) -> Self {
        OpenedPicture { message, id: file.id, name: file.name.clone(), chosen: None, firing: None, asked: None }
    }

    /// The neurons of the chosen patch, if they are known and belong to `engine`.
    pub fn highlight(&self, engine: &Engine) -> Option<RingedNeurons> {
        let (patch, firing) = (self.chosen?, self.firing.as_ref().filter(|firing| firing.is_of(engine))?);
        let FiringProgress::Known(known) = firing.progress() else { return None };
        let places = known.get(patch)?.neurons.iter().map(|neuron| neuron.place).collect();
        Some(RingedNeurons { places, work: "work most at the chosen patch".to_owned() })
    }

    /// True once the words of all neurons of the chosen patch are known.
    #[cfg(test)]
    pub fn has_all_words(&self) -> bool {
        let known = self.firing.as_ref().zip(self.chosen).and_then(|(firing, chosen)| match firing.progress() {
            FiringProgress::Known(known) => known.get(chosen).map(|of| (firing, of.neurons.clone())),
            _ => None,
        });
        known.is_some_and(|(firing, neurons)| neurons.iter().all(|it| firing.words(it.place).is_some()))
    }

    /// Forgets the neurons of another model.
    pub fn end_firing_of_another_model(&mut self, engine: Option<&Engine>) {
        if self.firing.as_ref().is_some_and(|firing| engine.is_none_or(|engine| !firing.is_of(engine))) {
            (self.firing, self.chosen, self.asked) = (None, None, None);
        }
    }

    /// Shows the view.
    pub fn show(&mut self, ui: &mut Ui, context: PictureContext<'_>) -> Option<PictureAct> {
        let mut act = None;
        let before = self.chosen;
        ui.horizontal(|ui| {
            if let Ok(patches) = context.patches {
                self.steps(ui, patches, context.arrows);
            }
            let click = |_| "Click a patch to see which neurons fire there.".to_owned();
            muted(ui, context.patches.map_or_else(str::to_owned, click));
            if icon_button(ui, ICON_CLOSE, "Close the picture").clicked() {
                act = Some(PictureAct::Close);
            }
        });
        self.picture(ui, context);
        if let Some(tint) = context.tint {
            muted(ui, tint.sentence());
        }
        let (Ok(patches), Some(patch)) = (context.patches, self.chosen) else { return act };
        let Some(firing) = &self.firing else {
            return act.or((self.chosen != before).then_some(PictureAct::Compute));
        };
        match firing.progress() {
            FiringProgress::Reading => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    muted(ui, "Reading the chat up to the picture …");
                });
            }
            FiringProgress::Failed(why) => {
                ui.add(Label::new(small(why, Palette::of(ui).bad)).wrap());
                if self.chosen != before {
                    act = act.or(Some(PictureAct::Compute));
                }
            }
            FiringProgress::Known(known) => {
                if let Some(of_patch) = known.get(patch) {
                    neurons(ui, patches.name(patch), of_patch, firing);
                    if ui.button("Show the neurons on the map").clicked() {
                        act = Some(PictureAct::Map);
                    }
                }
                if self.asked != self.chosen {
                    self.asked = self.chosen;
                    act = act.or(Some(PictureAct::Words(patch)));
                }
            }
        }
        act
    }

    /// Moves from patch to patch by buttons and arrow keys.
    fn steps(&mut self, ui: &mut Ui, patches: &PatchCells, arrows: bool) {
        let pressed = |ui: &Ui, key: Key| arrows && keyboard::pressed(ui, Modifiers::NONE, key);
        let back = icon_button(ui, ICON_CHEVRON_LEFT, "Patch before").clicked() || pressed(ui, Key::ArrowLeft);
        let on = icon_button(ui, ICON_CHEVRON_RIGHT, "Patch after").clicked() || pressed(ui, Key::ArrowRight);
        for (_, step) in [(back, -1), (on, 1)].into_iter().filter(|(wanted, _)| *wanted) {
            let moved = self.chosen.map_or(Some(0), |at| at.checked_add_signed(step));
            self.chosen = moved.filter(|at| *at < patches.0.len()).or(self.chosen);
        }
        let rows = [(pressed(ui, Key::ArrowUp), -1), (pressed(ui, Key::ArrowDown), 1)];
        for (_, rows) in rows.into_iter().filter(|(wanted, _)| *wanted) {
            let moved = self.chosen.map_or(Some(0), |at| patches.below(at, rows));
            self.chosen = moved.filter(|at| *at < patches.0.len()).or(self.chosen);
        }
    }

    /// Shows the picture with its tint and the chosen patch.
    fn picture(&mut self, ui: &mut Ui, context: PictureContext<'_>) {
        let palette = Palette::of(ui);
        let Some(decoded) = context.decoded else {
            if context.damaged {
                muted(ui, "This picture cannot be shown, because its file is damaged.");
            } else {
                ui.spinner();
            }
            return;
        };
        let whole = decoded.texture.size_vec2();
        let most = Vec2::new(ui.available_width(), HIGHEST);
        let (rect, response) = ui.allocate_exact_size(whole * (most / whole).min_elem(), Sense::click());
        Image::new(&decoded.texture).paint_at(ui, rect);
        if let Some(tint) = context.tint {
            tint.paint(ui.painter(), rect, &palette);
        }
        let patches = context.patches.ok();
        let name = [
            Some(format!("{}, large", self.name)),
            patches.zip(self.chosen).map(|(patches, chosen)| patches.name(chosen)),
            context.tint.map(TintedPatches::count),
        ];
        let name = name.into_iter().flatten().collect::<Vec<_>>().join(", ");
        response.widget_info(|| WidgetInfo::labeled(Role::Image, true, &name));
        let Some(patches) = patches else { return };
        let outline = |patch: usize, colour| {
            if let Some(place) = patches.rect(patch, rect) {
                ui.painter().rect_stroke(place, 0.0, Stroke::new(2.0, colour), StrokeKind::Inside);
            }
        };
        let pointed = response.hover_pos().and_then(|at| patches.at(at, rect, None));
        if let Some(patch) = pointed {
            outline(patch, palette.text);
        }
        if let Some(patch) = self.chosen {
            outline(patch, palette.amber);
        }
        if let Some(at) = response.interact_pointer_pos().filter(|_| response.clicked()) {
            self.chosen = patches.at(at, rect, self.chosen).or(self.chosen);
        }
        if let Some(patch) = pointed {
            let known = self.firing.as_ref().map(PictureFiring::progress);
            let fired = match &known {
                Some(FiringProgress::Known(known)) => known.get(patch).map(|of| format!(": {} neurons fire", of.fired)),
                _ => None,
            };
            response.on_hover_text(format!("{}{}", patches.name(patch), fired.unwrap_or_default()));
        }
    }
}

/// Shows the opened picture below its message. `arrows` lets the arrow keys move from patch to
/// patch.
pub fn below(
    ui: &mut Ui,
    opened: &mut Option<OpenedPicture>,
    context: &MessageContext<'_>,
    engine: Option<&Engine>,
    arrows: bool,
) -> Option<PictureAct> {
    let MessageContext { message, files, thumbnails, tint, mark, .. } = context;
    let view = opened.as_mut().filter(|view| view.message == message.id)?;
    let file = files.iter().find(|file| file.id == view.id)?;
    let (decoded, damaged) = (thumbnails.decoded(file), thumbnails.is_damaged(file));
    let patches = patches(engine, decoded);
    let patches = patches.as_ref().map_err(String::as_str);
    let tint = thumbnails.tinted(file, tint.iter().chain(mark).copied());
    view.show(ui, PictureContext { decoded, damaged, patches, tint, arrows })
}

/// The patches of a picture in the open model, or a sentence why there are none.
fn patches(engine: Option<&Engine>, picture: Option<&DecodedPicture>) -> Result<PatchCells, String> {
    let Some(tower) = engine.and_then(Engine::tower) else {
        return Err("Open a model that sees pictures to see which neurons fire at its patches.".to_owned());
    };
    let Some(DecodedPicture { size: [width, height], .. }) = picture else { return Err(String::new()) };
    tower.cells(*width, *height).map(PatchCells).map_err(|error| sentence(error_message(&error)))
}

impl Conversation {
    /// Carries out an action of the opened picture.
    pub(super) fn act_on_picture(&mut self, act: PictureAct, shell: &mut Shell) {
        let (Some(chat), Some(view)) = (&self.chat, &mut self.picture) else { return };
        let engine = shell.engine_handle.engine();
        match (act, engine) {
            (PictureAct::Close, _) => self.picture = None,
            (PictureAct::Map, _) => shell.queue_command(Command::ShowMap),
            (_, None) => {}
            (PictureAct::Words(patch), Some(engine)) => {
                if let Some(firing) = &mut view.firing {
                    firing.ask_words(&shell.engine_handle, engine, patch);
                }
            }
            (PictureAct::Compute, Some(engine)) => {
                let file = self.attaching.shown().find(|file| file.id == view.id);
                let Some(picture) = file.and_then(|file| self.thumbnails.decoded(file)) else { return };
                let options = shell.chat_controller.chat_options(&shell.store, chat.id, view.message);
                let prompt = prompt_through(&shell.store, chat.id, view.message, true);
                match prompt.and_then(|prompt| Ok(AskedPicture { prompt, chat: options?, picture: picture.hash })) {
                    Ok(asked) => view.firing = Some(PictureFiring::start(&shell.engine_handle, engine, asked)),
                    Err(error) => shell.show_error(error),
                }
            }
        }
    }
}

/// Shows the neurons of a patch.
fn neurons(ui: &mut Ui, patch: String, of: &TokenFiring, firing: &PictureFiring) {
    let line =
        format!("The patch in {patch}: {} neurons fire. These add most to the outputs of their layers.", of.fired);
    ui.add(Label::new(line).wrap());
    let rows = of.neurons.iter().map(|neuron| NeuronTableRow {
        place: neuron.place,
        part: format!("{:.1} %", 100.0 * neuron.share),
        words: firing.words(neuron.place).map(|words| match neuron.activation < 0.0 {
            true => words.as_ref().clone().reversed(),
            false => words.as_ref().clone(),
        }),
    });
    neuron_table(ui, "Of its layer", rows);
    if let Some(why) = firing.failure() {
        ui.add(Label::new(small(why, Palette::of(ui).bad)).wrap());
    }
}
