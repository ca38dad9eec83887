//! The card of the last pinned neuron, beside its dot on the map.

use egui::{Area, Context, Id, LayerId, Margin, Order, Pos2, Rect, Ui, Vec2, pos2};
use egui_material_icons::icons::ICON_CLOSE;

use super::{
    facts::Facts,
    map::{RING, facts_ui},
    pins::Pin,
    switching_off::HINT,
};
use thermocline_rich_text::{
    theme::Palette,
    widgets::{icon_button, muted, outlined},
};

/// Maximum width of a card's text, in points.
const WIDTH: f32 = 240.0;

/// Distance between a dot and its card in x and y, in points.
const GAP: f32 = 12.0;

/// The dot of a card's neuron, and the rings on the map. The card avoids covering rings.
#[derive(Debug, Clone, Copy)]
pub struct CardPlace<'a> {
    /// The dot.
    pub dot: Pos2,
    /// Centres of the rings.
    pub rings: &'a [Pos2],
}

impl CardPlace<'_> {
    /// The top left corner of a card of this size. Of the four places around the dot, prefers one
    /// on the `screen`, then the one that covers the fewest rings.
    fn corner(&self, size: Vec2, screen: Rect) -> Pos2 {
        let (after, before) = (self.dot + Vec2::splat(GAP), self.dot - Vec2::splat(GAP) - size);
        let corners =
            [after, pos2(before.x, after.y), pos2(after.x, before.y), before].map(|at| Rect::from_min_size(at, size));
        let covers = |card: &Rect| {
            let rings = self.rings.iter().filter(|ring| card.expand(RING).contains(**ring)).count();
            (!screen.contains_rect(*card), rings)
        };
        corners.into_iter().min_by_key(covers).map_or(after, |card| card.min)
    }
}

/// An action on a pinned neuron.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinAct {
    /// Close its card. The neuron stays pinned.
    Close,
    /// Unpin the neuron.
    Unpin,
    /// Start or stop tinting the chat's words by its firings.
    Tint,
    /// Repeat the last answer without the neuron.
    Without,
}

fn area_id() -> Id {
    Id::unique("pinned neuron")
}

/// True if a card was drawn in the previous frame.
pub fn is_shown(ctx: &Context) -> bool {
    let layer = LayerId::new(Order::Foreground, area_id());
    ctx.memory(|memory| memory.areas().visible_last_frame(&layer))
}

/// Shows the card of the neuron `pin` at `place`. `words` are the words at which it fires most.
/// `tints` means that it tints the chat's words.
pub fn show(ui: &Ui, place: CardPlace<'_>, facts: &Facts, words: &str, pin: &Pin, tints: bool) -> Option<PinAct> {
    let palette = Palette::of(ui);
    let mut act = None;
    let area = Area::new(area_id()).order(Order::Foreground).constrain(true);
    let size = ui.memory(|memory| memory.area_rect(area_id())).map_or(Vec2::splat(WIDTH), |last| last.size());
    area.fixed_pos(place.corner(size, ui.content_rect())).show(ui, |ui| {
        outlined(palette.raised, palette.line, Margin::symmetric(12, 8)).show(ui, |ui| {
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
                let hint = "Colour the chat's words for which this neuron fires";
                if ui.button(name).accessible_name(format!("{name}: {}", facts.title)).on_hover_text(hint).clicked() {
                    act = Some(PinAct::Tint);
                }
                let without = format!("Answer again without it: {}", facts.title);
                if ui.button("Run without it").accessible_name(without).on_hover_text(HINT).clicked() {
                    act = Some(PinAct::Without);
                }
                let unpin = format!("Unpin: {}", facts.title);
                if ui.button("Unpin").accessible_name(unpin).clicked() {
                    act = Some(PinAct::Unpin);
                }
                if icon_button(ui, ICON_CLOSE, "Close this card; the neuron stays pinned").clicked() {
                    act = Some(PinAct::Close);
                }
            });
        });
    });
    act
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_covers_no_ring_where_there_is_room_beside_them() {
        let (size, screen) = (Vec2::new(200.0, 100.0), Rect::from_min_size(Pos2::ZERO, Vec2::new(1000.0, 800.0)));
        let corner = |dot: Pos2, rings: &[Pos2]| CardPlace { dot, rings }.corner(size, screen);
        let dot = pos2(500.0, 400.0);
        let (right, left, below, above) = (512.0, 288.0, 412.0, 288.0);
        assert_eq!(corner(dot, &[]), pos2(right, below));
        assert_eq!(corner(dot, &[pos2(600.0, 450.0)]), pos2(left, below));
        // The edge of a ring counts, too.
        assert_eq!(corner(dot, &[pos2(600.0, 405.0), pos2(400.0, 516.0)]), pos2(right, above));
        let around = [pos2(600.0, 450.0), pos2(400.0, 450.0), pos2(600.0, 350.0)];
        assert_eq!(corner(dot, &around), pos2(left, above));
        // The card never leaves the window.
        assert_eq!(corner(pos2(990.0, 400.0), &[pos2(900.0, 450.0)]), pos2(778.0, above));
        assert_eq!(corner(pos2(990.0, 790.0), &[pos2(900.0, 700.0)]), pos2(778.0, 678.0));
    }
}
