//! The card of the neuron that was pinned last, beside its dot on the map.

use egui::{Area, Context, Frame, Id, LayerId, Margin, Order, Pos2, Stroke, Ui, Vec2};
use egui_material_icons::icons::ICON_CLOSE;

use super::{facts::Facts, map::facts_ui, pins::Pin, switching_off::HINT};
use crate::ui::{
    theme::{Palette, RADIUS},
    widgets::{icon_button, muted},
};

/// Widest a card's words become, in points.
const WIDTH: f32 = 240.0;

/// An action on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardAct {
    /// Take the card away; the neuron stays pinned.
    Close,
    /// Let the neuron go.
    Unpin,
    /// Show where it fires in the words of the chat, or no longer.
    Tint,
    /// Have the last answer written once more without it.
    Without,
}

fn area_id() -> Id {
    Id::unique("pinned neuron")
}

/// True if a card was drawn with the last frame.
pub fn is_shown(ctx: &Context) -> bool {
    let layer = LayerId::new(Order::Foreground, area_id());
    ctx.memory(|memory| memory.areas().visible_last_frame(&layer))
}

/// Shows the card of the neuron `pin` whose dot is at `dot`; `words`: those it fires most at, `tints`: it is shown in the words of
/// the chat.
pub fn show(ui: &Ui, dot: Pos2, facts: &Facts, words: &str, pin: &Pin, tints: bool) -> Option<CardAct> {
    let palette = Palette::of(ui);
    let mut act = None;
    let area = Area::new(area_id()).order(Order::Foreground).constrain(true);
    area.fixed_pos(dot + Vec2::new(12.0, 12.0)).show(ui, |ui| {
        let frame = Frame::new()
            .fill(palette.raised)
            .stroke(Stroke::new(1.0, palette.line))
            .corner_radius(RADIUS)
            .inner_margin(Margin::symmetric(12, 8));
        frame.show(ui, |ui| {
            ui.set_max_width(WIDTH);
            ui.spacing_mut().item_spacing = Vec2::new(8.0, 4.0);
            facts_ui(ui, facts);
            muted(ui, words);
            if !pin.across.is_empty() {
                muted(ui, &pin.across);
            }
            pin.lens.show(ui);
            ui.horizontal_wrapped(|ui| {
                let name = if tints { "Hide in text" } else { "Show in text" };
                let hint = "Colour the chat's words where it fires";
                if ui.button(name).accessible_name(format!("{name}: {}", facts.title)).on_hover_text(hint).clicked() {
                    act = Some(CardAct::Tint);
                }
                let without = format!("Answer again without it: {}", facts.title);
                if ui.button("Run without it").accessible_name(without).on_hover_text(HINT).clicked() {
                    act = Some(CardAct::Without);
                }
                let unpin = format!("Unpin: {}", facts.title);
                if ui.button("Unpin").accessible_name(unpin).clicked() {
                    act = Some(CardAct::Unpin);
                }
                if icon_button(ui, ICON_CLOSE, "Close this card; the neuron stays pinned").clicked() {
                    act = Some(CardAct::Close);
                }
            });
        });
    });
    act
}
