//! The colours of the dots' levels, and their legend. Active neurons are bright on a dark
//! background and dark on a light one.

use egui::{Align, Color32, ColorImage, Label, Layout, Pos2, Rect, RichText, Sense, Ui, UiBuilder, Vec2, epaint::Mesh};

use super::{
    layer_values::code,
    mode::{Colours, Mode},
};
use thermocline_rich_text::theme::{Palette, RADIUS};

/// A colour for every level.
pub type ColourTable = [Color32; 256];

/// The level, colour and meaning of colours that are not a scale.
pub fn meanings(mode: Mode, comparing: bool, palette: &Palette) -> Vec<(u8, Color32, &'static str)> {
    match mode {
        _ if comparing => vec![
            (code::BEGAN, palette.amber, "fires only now"),
            (code::ENDED, palette.cold, "fired only before"),
            (code::BOTH, palette.text, "some of each"),
        ],
        Mode::Placement => vec![(255, palette.hot, "in VRAM"), (1, palette.cold, "in RAM")],
        Mode::Tiers => vec![
            (code::VRAM, palette.hot, "in VRAM"),
            (code::RAM, palette.cold, "in RAM"),
            (code::DISK, on_disk(palette), "only on disk"),
        ],
        Mode::Predictor => vec![
            (code::HIT, palette.good, "hit"),
            (code::MISS, palette.bad, "miss"),
            (code::FALSE_ALARM, palette.amber, "false alarm"),
        ],
        Mode::Experts => {
            vec![(255, palette.amber, "chosen for this token"), (0, palette.background, "not chosen, not read")]
        }
        _ => Vec::new(),
    }
}

/// The colour of neurons whose weights are only on disk.
fn on_disk(palette: &Palette) -> Color32 {
    palette.background.lerp_to_gamma(palette.muted, 0.5)
}

/// The colours of `mode` on the background of `palette`. `comparing` two tokens has its own
/// colours.
pub fn table(mode: Mode, colours: Colours, comparing: bool, palette: &Palette) -> ColourTable {
    let meanings = meanings(mode, comparing, palette);
    if meanings.is_empty() {
        let light = *palette == Palette::LIGHT;
        let mut table = colours.table(light).map(|[r, g, b]| Color32::from_rgb(r, g, b));
        if light {
            // Silent neurons have the background's colour.
            table[0] = palette.background;
        }
        return table;
    }
    let mut table = [palette.background; 256];
    let chosen = palette.background.lerp_to_gamma(palette.amber, 0.2);
    let blends = match mode {
        _ if comparing => vec![],
        Mode::Placement => vec![(1..=255, palette.cold, palette.hot)],
        Mode::Tiers => vec![
            (1..=code::DISK, on_disk(palette), on_disk(palette)),
            (code::DISK..=code::RAM, on_disk(palette), palette.cold),
            (code::RAM..=code::VRAM, palette.cold, palette.hot),
        ],
        Mode::Experts => vec![(1..=255, chosen, palette.amber)],
        _ => vec![],
    };
    for (levels, from, to) in blends {
        let (first, steps) = (*levels.start(), f32::from(levels.end() - levels.start()));
        levels.for_each(|level| {
            table[usize::from(level)] = from.lerp_to_gamma(to, f32::from(level - first) / steps);
        });
    }
    for (code, colour, _) in meanings {
        table[usize::from(code)] = colour;
    }
    table
}

/// The colour of the lines between layers and between experts. Silent neurons have it, so that
/// every other level stands out.
pub fn separator(table: &ColourTable) -> Color32 {
    table[0]
}

/// Creates a picture of `codes`, `columns` wide.
pub fn image(codes: &[u8], columns: usize, table: &ColourTable) -> ColorImage {
    let columns = columns.max(1);
    let rows = codes.len() / columns;
    let pixels = codes[..rows * columns].iter().map(|code| table[usize::from(*code)]).collect();
    ColorImage::new([columns, rows], pixels)
}

/// A colour and its meaning.
pub type ColourMeaning = (Color32, &'static str);

/// The colours that the legend names one by one. Empty if the legend shows a scale. `by_neuron`
/// means that every dot is one neuron, which either fires or does not.
pub fn named(
    mode: Mode,
    comparing: bool,
    by_neuron: bool,
    table: &ColourTable,
    palette: &Palette,
) -> Vec<ColourMeaning> {
    match mode {
        Mode::Fired if by_neuron && !comparing => vec![(table[255], "fires"), (table[0], "does not fire")],
        _ => meanings(mode, comparing, palette).into_iter().map(|(_, colour, meaning)| (colour, meaning)).collect(),
    }
}

/// Shows the legend of the colours.
pub fn legend(ui: &mut Ui, mode: Mode, colours: Colours, comparing: bool, by_neuron: bool) {
    let palette = Palette::of(ui);
    let small = |text: &str| RichText::new(text).size(11.0).color(palette.muted);
    let table = table(mode, colours, comparing, &palette);
    let named = named(mode, comparing, by_neuron, &table, &palette);
    if !named.is_empty() {
        ui.horizontal_wrapped(|ui| {
            for (colour, meaning) in named {
                let (rect, _) = ui.allocate_exact_size(Vec2::splat(10.0), Sense::hover());
                ui.painter().rect_filled(rect, 2.0, colour);
                ui.painter().rect_stroke(rect, 2.0, egui::Stroke::new(1.0, palette.line), egui::StrokeKind::Inside);
                ui.label(small(meaning));
                ui.add_space(8.0);
            }
        });
        return;
    }
    let (rect, _) = ui.allocate_exact_size(Vec2::new(ui.available_width(), 8.0), Sense::hover());
    let mut mesh = Mesh::default();
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
        for palette in [Palette::DARK, Palette::LIGHT] {
            let modes = [Mode::Placement, Mode::Tiers, Mode::Predictor].map(|mode| (mode, false));
            for (mode, comparing) in modes.into_iter().chain([(Mode::Fired, true)]) {
                let table = table(mode, Colours::Inferno, comparing, &palette);
                let mut seen = vec![table[0]];
                for (code, colour, _) in meanings(mode, comparing, &palette) {
                    assert_eq!(table[usize::from(code)], colour);
                    assert!(!seen.contains(&colour), "{mode:?}");
                    seen.push(colour);
                }
            }
            let fired = |colours| table(Mode::Fired, colours, false, &palette);
            assert_ne!(fired(Colours::Inferno), fired(Colours::Cividis));
            let experts = table(Mode::Experts, Colours::Inferno, false, &palette);
            assert_eq!((experts[0], experts[255]), (palette.background, palette.amber));
        }
    }

    #[test]
    fn legend_of_fired_neurons_has_two_colours_where_a_dot_is_one() {
        for palette in [Palette::DARK, Palette::LIGHT] {
            let table = table(Mode::Fired, Colours::Inferno, false, &palette);
            let named = |comparing, by_neuron| named(Mode::Fired, comparing, by_neuron, &table, &palette);
            assert_eq!(named(false, true), [(table[255], "fires"), (table[0], "does not fire")]);
            assert!(named(false, false).is_empty(), "several neurons share a dot: a scale");
            assert_eq!(named(true, true).len(), 3, "two tokens are compared");
        }
    }

    #[test]
    fn map_of_the_light_theme_is_light() {
        let light = |colour: Color32| colour.r() as u32 + colour.g() as u32 + colour.b() as u32 > 3 * 0xE0;
        for mode in Mode::ALL {
            for (palette, is_light) in [(Palette::LIGHT, true), (Palette::DARK, false)] {
                let ground = table(mode, Colours::Inferno, false, &palette)[0];
                assert_eq!(light(ground), is_light, "{mode:?} {ground:?}");
            }
        }
    }

    #[test]
    fn separators_never_stand_out_more_than_the_data() {
        let light = |colour: Color32| colour.r() as i32 + colour.g() as i32 + colour.b() as i32;
        let modes = Mode::ALL.into_iter().chain([Mode::Tiers]);
        for (mode, colours) in modes.flat_map(|mode| Colours::ALL.map(|colours| (mode, colours))) {
            for (palette, comparing) in [(Palette::DARK, false), (Palette::DARK, true), (Palette::LIGHT, false)] {
                let table = table(mode, colours, comparing, &palette);
                let line = light(separator(&table));
                let is_dark = palette == Palette::DARK;
                // The lowest levels may be up to 2 units beyond silence, because of rounding.
                let beyond = |level: &Color32| if is_dark { line - light(*level) } else { light(*level) - line };
                assert!(table.iter().all(|level| beyond(level) <= 2), "{mode:?} {colours:?} {comparing}");
            }
        }
    }

    #[test]
    fn image_has_a_pixel_per_level() {
        let table = table(Mode::Fired, Colours::Viridis, false, &Palette::DARK);
        let image = image(&[0, 255, 7, 9, 1], 2, &table);
        assert_eq!((image.size, image.pixels[1], image.pixels[3]), ([2, 2], table[255], table[9]));
        assert_eq!(super::image(&[], 0, &table).size, [1, 0]);
    }
}
