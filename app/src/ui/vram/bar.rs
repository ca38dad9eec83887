//! Memory as a bar of parts.

use egui::{Color32, CornerRadius, Rect, RichText, Role, Sense, Stroke, Ui, WidgetInfo, pos2, vec2};

use crate::{ui::theme::Palette, units::bytes};

/// Height of a bar, in points.
const HEIGHT: f32 = 20.0;

/// A part of a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// How much.
    pub bytes: u64,
    /// Its colour.
    pub colour: Color32,
}

/// `parts` one behind the other on a bar of `total` bytes, a line at `mark`, and what the colours mean.
pub fn show(ui: &mut Ui, name: &str, parts: &[Part], total: u64, mark: Option<u64>, breached: bool) {
    let palette = Palette::of(ui);
    let (area, response) = ui.allocate_exact_size(vec2(ui.available_width(), HEIGHT + 8.0), Sense::hover());
    let words = || {
        let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", part.name, bytes(part.bytes))).collect();
        format!("{name}: {} of {}", parts.join(", "), bytes(total))
    };
    response.widget_info(|| WidgetInfo::labeled(Role::Meter, true, words()));
    let bar = area.shrink2(vec2(0.0, 4.0));
    let painter = ui.painter();
    painter.rect_filled(bar, CornerRadius::same(4), palette.raised);
    let at = |bytes: u64| bar.left() + bar.width() * (bytes as f64 / total.max(1) as f64).min(1.0) as f32;
    let mut before = 0;
    for part in parts {
        let end = before + part.bytes;
        let rect = Rect::from_min_max(pos2(at(before), bar.top()), pos2(at(end), bar.bottom()));
        let corners =
            if before == 0 { CornerRadius { nw: 4, sw: 4, ..CornerRadius::ZERO } } else { CornerRadius::ZERO };
        painter.rect_filled(rect, corners, part.colour);
        before = end;
    }
    if let Some(mark) = mark {
        let colour = if breached { palette.bad } else { palette.boundary };
        painter.vline(at(mark), area.y_range(), Stroke::new(2.0, colour));
    }
    response.on_hover_text(words());
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        for part in parts {
            let (square, _) = ui.allocate_exact_size(vec2(8.0, 8.0), Sense::hover());
            ui.painter().rect_filled(square, CornerRadius::same(2), part.colour);
            ui.label(RichText::new(&part.name).size(12.0).color(palette.muted));
            ui.label(RichText::new(bytes(part.bytes)).size(12.0));
            ui.add_space(8.0);
        }
    });
}
