//! The product name over its picture: a warm wave above a cold wave.

use egui::{Pos2, RichText, Sense, Shape, Stroke, Ui, vec2};

use thermocline_rich_text::theme::{Palette, strong};

/// Height of both waves, in points.
const HEIGHT: f32 = 14.0;

/// Wavelength, in points.
const LENGTH: f32 = 104.0;

/// Amplitude, in points.
const CREST: f32 = 2.5;

/// Shows the wordmark, as wide as the available room.
pub fn show(ui: &mut Ui) {
    ui.vertical(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        ui.label(RichText::new("Thermocline").font(strong(18.0)));
        let (rect, _) = ui.allocate_exact_size(vec2(ui.available_width(), HEIGHT), Sense::empty());
        let palette = Palette::of(ui);
        for (colour, middle, phase) in [(palette.hot, -2.0, 0.0), (palette.cold, 3.0, std::f32::consts::FRAC_PI_2)] {
            let crest = |x: f32| CREST * (std::f32::consts::TAU * x / LENGTH + phase).sin();
            let points = (0..=(rect.width() / 3.0) as usize).map(|n| {
                let x = 3.0 * n as f32;
                Pos2::new(rect.left() + x, rect.center().y + middle - crest(x))
            });
            ui.painter().add(Shape::line(points.collect(), Stroke::new(1.75, colour)));
        }
    });
}
