//! The context length and the KV cache type of a model, chosen on its card. They take effect when
//! the model is next opened.

use egui::{CollapsingHeader, Role, Slider, Ui, WidgetInfo};
use thermocline_engine::{
    runtime::KvType,
    session::{Engine, EngineOptions},
};

use crate::{command::Command, shell::Shell};
use thermocline_host::library::{ModelCard, ModelId};
use thermocline_rich_text::{theme::Palette, widgets};

/// Minimum context on offer, in tokens, unless the model supports less.
const LEAST: usize = 64;

/// The types of the KV cache and their descriptions.
const TYPES: [(KvType, &str); 3] = [
    (KvType::F32, "Full precision, twice the memory of F16"),
    (KvType::F16, "16-bit floats: half the memory of F32, no visible loss"),
    (KvType::Q8_0, "About half the memory of F16, slightly less precise. A GPU stores it as F16."),
];

/// Context length and type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChatMemory {
    context: usize,
    kv_type: KvType,
}

impl ChatMemory {
    /// The context and the KV cache type of a model opened with `options`.
    fn of(options: &EngineOptions, card: &ModelCard) -> Self {
        ChatMemory { context: options.context.unwrap_or(card.usual_context), kv_type: options.kv_type }
    }

    /// Stores the choice for the model. Default values are not stored.
    fn keep(self, shell: &mut Shell, card: &ModelCard) {
        let id: &ModelId = &card.id;
        let kept = shell.model_settings(id);
        (kept.context, kept.kv_type) = (None, None);
        let usual = ChatMemory::of(&shell.engine_options(id), card);
        let kept = shell.model_settings(id);
        kept.context = Some(self.context).filter(|context| *context != usual.context);
        kept.kv_type = (self.kv_type != usual.kv_type).then(|| self.kv_type.name().to_owned());
    }
}

/// Shows the choice for the card's model and lets the user change it. `title` is the model's
/// display name. `open` is its engine if it is open.
pub fn show(ui: &mut Ui, shell: &mut Shell, card: &ModelCard, title: &str, open: Option<&Engine>) {
    let before = ChatMemory::of(&shell.engine_options(&card.id), card);
    let mut chosen = before;
    let words = format!("{} tokens, cache in {}", before.context, before.kv_type);
    let heading = widgets::small(format!("Context of {words}"), Palette::of(ui).muted);
    let header = CollapsingHeader::new(heading).id_salt("memory").show(ui, |ui| {
        ui.horizontal(|ui| {
            let label = ui.label("Context").id;
            let (least, most) = (card.context.min(before.context), card.context.max(before.context));
            ui.spacing_mut().slider_width = 200.0;
            let slider = Slider::new(&mut chosen.context, least.min(LEAST)..=most).logarithmic(true).suffix(" tokens");
            let help = "How many tokens of a chat the model sees. A longer context needs more memory.";
            ui.add(slider.update_while_editing(false)).labelled_by(label).on_hover_text(help);
        });
        ui.horizontal(|ui| {
            ui.label("Cache");
            for (kv_type, what) in TYPES {
                let button = ui.selectable_label(chosen.kv_type == kv_type, kv_type.name());
                if button.on_hover_text(what).clicked() {
                    chosen.kv_type = kv_type;
                }
            }
        });
        widgets::muted(ui, format!("It was trained with a context of {} tokens.", card.context));
    });
    let name = format!("Context of {title}: {words}");
    header.header_response.widget_info(|| WidgetInfo::labeled(Role::Button, true, &name));
    if chosen != before {
        chosen.keep(shell, card);
    }
    if let Some(engine) = open
        && chosen != (ChatMemory { context: engine.context(), kv_type: engine.kv_type() })
    {
        let button = ui.button("Reopen it with this context");
        if button.on_hover_text("The model reads the whole chat again with your next message").clicked() {
            shell.queue_command(Command::ReopenModel);
        }
    }
}
