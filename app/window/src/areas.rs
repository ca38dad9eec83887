//! The areas of the window. Keys move the focus between them.

use egui::{Context, Id, Rect, Role, Sense, Stroke, StrokeKind, Ui, WidgetInfo};

use crate::conversation::composer_id;
use thermocline_rich_text::theme::{Palette, RADIUS};

/// An area of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowArea {
    /// The list of chats.
    Chats,
    /// The messages, or another page.
    Middle,
    /// The composer.
    Composer,
    /// The neurons and the VRAM panel.
    Neurons,
}

impl WindowArea {
    /// The area that has the keyboard focus. `middle` is the rectangle of the page.
    pub fn focused(ctx: &Context, middle: Rect) -> Option<Self> {
        let focused = ctx.memory(|memory| memory.focused())?;
        let x = ctx.read_response(focused)?.rect.center().x;
        Some(match () {
            () if focused == composer_id() => WindowArea::Composer,
            () if x < middle.left() => WindowArea::Chats,
            () if x > middle.right() => WindowArea::Neurons,
            () => WindowArea::Middle,
        })
    }

    /// The area of `all` after this one (or before it). The areas form a ring.
    pub fn neighbour(self, all: &[WindowArea], after: bool) -> WindowArea {
        let at = all.iter().position(|area| *area == self).unwrap_or(0);
        let step = if after { 1 } else { all.len().saturating_sub(1) };
        all.get((at + step) % all.len().max(1)).copied().unwrap_or(self)
    }

    /// The focus stop of the area. Tab moves from it into the area.
    pub fn id(self) -> Id {
        Id::unique(("stop of an area", self as u8))
    }

    /// Adds the focus stop of the area to its `ui`. Screen readers call it `name`.
    pub fn stop(self, ui: &Ui, name: &str) {
        let rect = ui.max_rect();
        let response = ui.interact(rect, self.id(), Sense::focusable_noninteractive());
        response.widget_info(|| WidgetInfo::labeled(Role::Region, true, name));
        if response.has_focus() {
            let stroke = Stroke::new(1.0, Palette::of(ui).cold);
            ui.painter().rect_stroke(rect.expand(4.0), f32::from(RADIUS), stroke, StrokeKind::Inside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_in_a_ring() {
        use WindowArea::{Chats, Composer, Middle, Neurons};
        let all = [Chats, Middle, Composer, Neurons];
        let ring = |after| all.map(|area| area.neighbour(&all, after));
        assert_eq!(ring(true), [Middle, Composer, Neurons, Chats]);
        assert_eq!(ring(false), [Neurons, Chats, Middle, Composer]);
        assert_eq!(Composer.neighbour(&[Middle], true), Middle, "on a page without a composer");
        assert_eq!(Chats.neighbour(&[], true), Chats);
    }
}
