//! Pieces that pages are made of.

use egui::{Button, Frame, Margin, Response, RichText, Stroke, Ui};

use super::theme::{self, Palette};

/// A surface above the page's.
pub fn card<R>(ui: &mut Ui, contents: impl FnOnce(&mut Ui) -> R) -> R {
    let palette = Palette::of(ui);
    let frame = Frame::new()
        .fill(palette.panel)
        .stroke(Stroke::new(1.0, palette.line))
        .corner_radius(theme::RADIUS)
        .inner_margin(Margin::same(16));
    let shown = frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        contents(ui)
    });
    shown.inner
}

/// The button of a surface that matters.
pub fn primary(ui: &mut Ui, text: &str) -> Response {
    let palette = Palette::of(ui);
    ui.add(Button::new(RichText::new(text).font(theme::strong(14.0)).color(palette.on_hot)).fill(palette.hot))
}

/// Text of less weight.
pub fn muted(ui: &mut Ui, text: impl Into<String>) -> Response {
    let palette = Palette::of(ui);
    ui.label(RichText::new(text).size(12.0).color(palette.muted))
}

/// What is wrong, as a sentence.
pub fn trouble(ui: &mut Ui, text: impl std::fmt::Display) -> Response {
    let palette = Palette::of(ui);
    ui.label(RichText::new(sentence(text)).size(12.0).color(palette.bad))
}

/// `text` with a capital at its beginning and a full stop at its end.
pub fn sentence(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    let mut letters = text.trim().chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let mut sentence = first + letters.as_str();
    if !sentence.is_empty() && !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

/// Seconds as people say them.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_durations() {
        assert_eq!(sentence("no GPU"), "No GPU.");
        assert_eq!(sentence("is it? "), "Is it?");
        assert_eq!(sentence(""), "");
        assert_eq!([0.4, 59.0, 61.0, 3600.0, 7260.0].map(duration), ["0 s", "59 s", "2 min", "1 h 0 min", "2 h 1 min"]);
    }
}
