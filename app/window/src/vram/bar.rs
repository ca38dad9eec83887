//! A bar of segments: of memory, or of time.

use egui::{
    Color32, CornerRadius, FontId, Label, Rect, Role, Sense, Stroke, TextFormat, Ui, WidgetInfo, pos2, text::LayoutJob,
    vec2,
};

use thermocline_rich_text::theme::Palette;

/// Height of a bar, in points.
const HEIGHT: f32 = 20.0;

/// A segment of a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSegment {
    /// Name of the segment.
    pub name: String,
    /// Its length, in bytes or nanoseconds.
    pub amount: u64,
    /// Its colour.
    pub colour: Color32,
}

/// The scale of a bar.
#[derive(Debug, Clone, Copy)]
pub struct BarScale {
    /// Length of the whole bar, in bytes or nanoseconds.
    pub total: u64,
    /// End of a sentence about the total. `None` shows no text below the ends.
    pub end: Option<&'static str>,
    /// Formats an amount.
    pub format: fn(u64) -> String,
}

/// The line of a budget on a bar.
#[derive(Debug, Clone, Copy)]
pub struct BudgetMark {
    /// The budget.
    pub at: u64,
    /// True if the budget is exceeded.
    pub breached: bool,
}

/// Shows the segments `parts` on a bar, a line at the budget, and the legend of the colours.
pub fn show(ui: &mut Ui, name: &str, parts: &[BarSegment], scale: BarScale, mark: Option<BudgetMark>) {
    let BarScale { total, end, format } = scale;
    let palette = Palette::of(ui);
    let (area, response) = ui.allocate_exact_size(vec2(ui.available_width(), HEIGHT + 8.0), Sense::hover());
    let words = || {
        let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", part.name, format(part.amount))).collect();
        let budget = mark.map_or_else(String::new, |mark| format!(", budget {}", format(mark.at)));
        format!("{name}: {} of {}{budget}", parts.join(", "), format(total))
    };
    response.widget_info(|| WidgetInfo::labeled(Role::Meter, true, words()));
    let bar = area.shrink2(vec2(0.0, 4.0));
    let painter = ui.painter();
    painter.rect_filled(bar, CornerRadius::same(4), palette.raised);
    let at = |amount: u64| bar.left() + bar.width() * (amount as f64 / total.max(1) as f64).min(1.0) as f32;
    let mut before = 0;
    for part in parts {
        let end = before + part.amount;
        let rect = Rect::from_min_max(pos2(at(before), bar.top()), pos2(at(end), bar.bottom()));
        let corners =
            if before == 0 { CornerRadius { nw: 4, sw: 4, ..CornerRadius::ZERO } } else { CornerRadius::ZERO };
        painter.rect_filled(rect, corners, part.colour);
        before = end;
    }
    if let Some(mark) = mark {
        let colour = if mark.breached { palette.bad } else { palette.boundary };
        painter.vline(at(mark.at), area.y_range(), Stroke::new(2.0, colour));
    }
    response.on_hover_text(words());
    if let Some(end) = end {
        ends(ui, "0", &format!("{} {end}", format(total)));
    }
    ui.scope(|ui| {
        // Rows have the height of text, not of buttons.
        ui.spacing_mut().interact_size.y = 16.0;
        ui.horizontal_wrapped(|ui| {
            ui.spacing_mut().item_spacing = vec2(12.0, 4.0);
            for part in parts {
                let mut words = LayoutJob::default();
                let font = FontId::proportional(12.0);
                words.append(&part.name, 12.0, TextFormat::simple(font.clone(), palette.muted));
                words.append(&format(part.amount), 4.0, TextFormat::simple(font, palette.text));
                // One label per segment, so that no line breaks inside it.
                let label = ui.add(Label::new(words).extend());
                let square = Rect::from_center_size(label.rect.left_center() + vec2(4.0, 0.0), vec2(8.0, 8.0));
                ui.painter().rect_filled(square, CornerRadius::same(2), part.colour);
            }
        });
    });
}

/// Shows texts below the two ends of a bar or a slider.
pub fn ends(ui: &mut Ui, left: &str, right: &str) {
    let colour = Palette::of(ui).muted;
    let small = |text: &str| egui::RichText::new(text).size(11.0).color(colour);
    ui.scope(|ui| {
        ui.spacing_mut().interact_size.y = 14.0;
        ui.horizontal(|ui| {
            ui.label(small(left));
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| ui.label(small(right)));
        });
    });
}
