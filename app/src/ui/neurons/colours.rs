//! Colours of the dots' levels, and their legend. The map is a dark screen in both themes.

use egui::{Align, Color32, ColorImage, Label, Layout, Pos2, Rect, RichText, Sense, Ui, UiBuilder, Vec2, epaint::Mesh};

use super::{
    layer_values::code,
    mode::{Colours, Mode},
};
use crate::ui::theme::{Palette, RADIUS};

/// A colour for every level.
pub type Table = [Color32; 256];

/// The map's palette.
const SCREEN: Palette = Palette::DARK;

/// Meanings of colours that are no scale.
fn meanings(mode: Mode, comparing: bool) -> &'static [(u8, Color32, &'static str)] {
    const CHANGES: &[(u8, Color32, &str)] = &[
        (code::BEGAN, SCREEN.amber, "fires only now"),
        (code::ENDED, SCREEN.cold, "fired only then"),
        (code::BOTH, SCREEN.text, "some of each"),
    ];
    const PLACES: &[(u8, Color32, &str)] = &[(255, SCREEN.hot, "hot, in VRAM"), (1, SCREEN.cold, "cold, in RAM")];
    const PREDICTIONS: &[(u8, Color32, &str)] = &[
        (code::HIT, SCREEN.good, "hit"),
        (code::MISS, SCREEN.bad, "miss"),
        (code::FALSE_ALARM, SCREEN.amber, "false alarm"),
    ];
    match mode {
        _ if comparing => CHANGES,
        Mode::Placement => PLACES,
        Mode::Predictor => PREDICTIONS,
        _ => &[],
    }
}

/// The colours of `mode`; `comparing` two tokens has its own.
pub fn table(mode: Mode, colours: Colours, comparing: bool) -> Table {
    let meanings = meanings(mode, comparing);
    if meanings.is_empty() {
        return colours.table().map(|[r, g, b]| Color32::from_rgb(r, g, b));
    }
    let mut table = [SCREEN.background; 256];
    if mode == Mode::Placement && !comparing {
        for (level, colour) in table.iter_mut().enumerate().skip(1) {
            *colour = SCREEN.cold.lerp_to_gamma(SCREEN.hot, (level - 1) as f32 / 254.0);
        }
    }
    for (code, colour, _) in meanings {
        table[usize::from(*code)] = *colour;
    }
    table
}

/// A picture of `codes`, `columns` wide.
pub fn image(codes: &[u8], columns: usize, table: &Table) -> ColorImage {
    let columns = columns.max(1);
    let rows = codes.len() / columns;
    let pixels = codes[..rows * columns].iter().map(|code| table[usize::from(*code)]).collect();
    ColorImage::new([columns, rows], pixels)
}

/// Says what the colours mean.
pub fn legend(ui: &mut Ui, mode: Mode, colours: Colours, comparing: bool) {
    let palette = Palette::of(ui);
    let small = |text: &str| RichText::new(text).size(11.0).color(palette.muted);
    let meanings = meanings(mode, comparing);
    if !meanings.is_empty() {
        ui.horizontal_wrapped(|ui| {
            for (_, colour, meaning) in meanings {
                let (rect, _) = ui.allocate_exact_size(Vec2::splat(10.0), Sense::hover());
                ui.painter().rect_filled(rect, 2.0, *colour);
                ui.label(small(meaning));
                ui.add_space(8.0);
            }
        });
        return;
    }
    let (rect, _) = ui.allocate_exact_size(Vec2::new(ui.available_width(), 8.0), Sense::hover());
    let mut mesh = Mesh::default();
    let table = table(mode, colours, comparing);
    for step in 0..64usize {
        let x = |step: usize| rect.left() + rect.width() * step as f32 / 64.0;
        let part = Rect::from_min_max(Pos2::new(x(step), rect.top()), Pos2::new(x(step + 1), rect.bottom()));
        mesh.add_colored_rect(part, table[step * 255 / 63]);
    }
    ui.painter().add(mesh);
    let frame = egui::Stroke::new(1.0, palette.line);
    ui.painter().rect_stroke(rect, f32::from(RADIUS) / 4.0, frame, egui::StrokeKind::Outside);
    if let Some(ticks) = mode.ticks() {
        let (row, _) = ui.allocate_exact_size(Vec2::new(ui.available_width(), 14.0), Sense::hover());
        for (text, align) in ticks.into_iter().zip([Align::Min, Align::Center, Align::Max]) {
            let builder = UiBuilder::new().max_rect(row).layout(Layout::top_down(align));
            ui.scope_builder(builder, |ui| ui.add(Label::new(small(text)).extend()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legend_colours_are_distinct() {
        for (mode, comparing) in [(Mode::Placement, false), (Mode::Predictor, false), (Mode::Fired, true)] {
            let table = table(mode, Colours::Inferno, comparing);
            let mut seen = vec![table[0]];
            for (code, colour, _) in meanings(mode, comparing) {
                assert_eq!(table[usize::from(*code)], *colour);
                assert!(!seen.contains(colour), "{mode:?}");
                seen.push(*colour);
            }
        }
        assert_ne!(table(Mode::Fired, Colours::Inferno, false), table(Mode::Fired, Colours::Cividis, false));
    }

    #[test]
    fn image_has_a_pixel_per_level() {
        let table = table(Mode::Fired, Colours::Viridis, false);
        let image = image(&[0, 255, 7, 9, 1], 2, &table);
        assert_eq!((image.size, image.pixels[1], image.pixels[3]), ([2, 2], table[255], table[9]));
        assert_eq!(super::image(&[], 0, &table).size, [1, 0]);
    }
}
