//! The columns beside the page: their widths, and a column that overlays the page.

use egui::{Area, Frame, Margin, Order, Rect, Stroke, Ui};

use thermocline_rich_text::theme::Palette;

/// Margin around the content of a column, in points.
pub(super) const INSET: Margin = Margin { left: 16, right: 16, top: 12, bottom: 12 };

/// Widths of the side columns: in points, and in a wide window in points or as a fraction of the
/// window.
pub(super) const CHATS: f32 = 232.0;
pub(super) const NEURONS: f32 = 448.0;
pub(super) const WIDE: f32 = 1800.0;
pub(super) const WIDE_CHATS: f32 = 288.0;
pub(super) const WIDE_NEURONS: f32 = 0.29;

/// Minimum widths of a window in which a side column has its own place, in points. In a narrower
/// window it overlays the page.
const ROOM_FOR_NEURONS: f32 = 1100.0;
const ROOM_FOR_CHATS: f32 = 760.0;
/// Minimum width of the page for which the neurons replace the chats, in points.
pub(super) const LEAST_PAGE: f32 = 400.0;

/// A side column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SideColumn {
    /// The list of chats.
    Chats,
    /// The neurons and the VRAM panel.
    Neurons,
}

/// The side columns that have their own place in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rooms {
    /// True if the list of chats has a place.
    pub chats: bool,
    /// True if the neurons have a place beside the chats.
    pub neurons: bool,
    /// True if the neurons replace the chats. Both columns would leave no room for the page. A
    /// column over the page would hide the words that a neuron tints.
    pub neurons_instead: bool,
}

impl Rooms {
    /// The places in a window of this width. `asked` is the column that the user requested.
    pub fn of(width: f32, asked: Option<SideColumn>) -> Self {
        let (chats, neurons) = (width >= ROOM_FOR_CHATS, width >= ROOM_FOR_NEURONS);
        let instead = !neurons && width >= NEURONS + LEAST_PAGE;
        Rooms { chats, neurons, neurons_instead: instead && asked == Some(SideColumn::Neurons) }
    }
}

/// The rectangle of a column that overlays the page: `width` points at the left or right side of
/// the window. It begins at the `top` of the page, because the bar above the page has the column's
/// switch.
pub(super) fn place_over(window: Rect, top: f32, column: SideColumn, width: f32) -> Rect {
    let below = window.with_min_y(top);
    match column {
        SideColumn::Chats => below.with_max_x(window.right().min(window.left() + width)),
        SideColumn::Neurons => below.with_min_x(window.left().max(window.right() - width)),
    }
}

/// Shows a column over the page, in the rectangle from [`place_over`].
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
