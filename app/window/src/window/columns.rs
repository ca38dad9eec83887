//! The columns beside the page: their widths, and a column that lies over the page.

use egui::{Area, Frame, Margin, Order, Rect, Stroke, Ui};

use thermocline_rich_text::theme::Palette;

/// Around what a column shows.
pub(super) const INSET: Margin = Margin { left: 16, right: 16, top: 12, bottom: 12 };

/// Widths of the side columns, in points, and those on a wide window.
pub(super) const CHATS: f32 = 232.0;
pub(super) const NEURONS: f32 = 448.0;
pub(super) const WIDE: f32 = 1800.0;
pub(super) const WIDE_CHATS: f32 = 288.0;
pub(super) const WIDE_NEURONS: f32 = 0.29;

/// Widths below which a side column lies over the middle one, in points.
const ROOM_FOR_NEURONS: f32 = 1100.0;
const ROOM_FOR_CHATS: f32 = 760.0;
/// Width of the page beside the neurons that is worth hiding the chats for, in points.
pub(super) const LEAST_PAGE: f32 = 400.0;

/// A side column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SideColumn {
    /// The list of chats.
    Chats,
    /// Neurons and memory.
    Neurons,
}

/// Side columns that have a place of their own in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rooms {
    /// The list of chats has.
    pub chats: bool,
    /// Neurons and memory have, beside the chats.
    pub neurons: bool,
    /// Neurons and memory have that of the chats: both would leave nothing of the page, and over it they would hide the words that a
    /// neuron colours.
    pub neurons_instead: bool,
}

impl Rooms {
    /// Rooms in a window of this width in which the column `asked` was asked for.
    pub fn of(width: f32, asked: Option<SideColumn>) -> Self {
        let (chats, neurons) = (width >= ROOM_FOR_CHATS, width >= ROOM_FOR_NEURONS);
        let instead = !neurons && width >= NEURONS + LEAST_PAGE;
        Rooms { chats, neurons, neurons_instead: instead && asked == Some(SideColumn::Neurons) }
    }
}

/// Place of a column that lies over the page: `width` points at the left or the right of the window. It begins below the `top` at
/// which the page does, because the line above the page has the switch of the column.
pub(super) fn place_over(window: Rect, top: f32, column: SideColumn, width: f32) -> Rect {
    let below = window.with_min_y(top);
    match column {
        SideColumn::Chats => below.with_max_x(window.right().min(window.left() + width)),
        SideColumn::Neurons => below.with_min_x(window.left().max(window.right() - width)),
    }
}

/// A column over the page, in the place that [`place_over`] gives it.
pub(super) fn over(ui: &Ui, id: &str, place: Rect, palette: Palette, contents: impl FnOnce(&mut Ui)) {
    Area::new(egui::Id::unique(id)).order(Order::Middle).fixed_pos(place.min).constrain(false).show(ui, |ui| {
        let frame = Frame::new().fill(palette.panel).stroke(Stroke::new(1.0, palette.line)).inner_margin(INSET);
        frame.show(ui, |ui| {
            ui.set_width(place.width() - INSET.sum().x);
            ui.set_height(place.height() - INSET.sum().y);
            contents(ui);
        });
    });
}
