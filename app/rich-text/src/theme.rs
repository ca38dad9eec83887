//! Colours, fonts and spacing. Warm colours mean hot, blue means cold, and the boundary between
//! them stands out on every surface.

use std::collections::BTreeMap;

use egui::{
    Color32, Context, CornerRadius, FontId, Margin, Stroke, Style, TextStyle, Visuals,
    style::{ScrollStyle, WidgetVisuals},
};

use crate::{fonts, text::LabelOrder};

/// Radius of the corners of buttons, cards and fields, in points.
pub const RADIUS: u8 = 8;

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    /// Background of text and of the main input.
    pub background: Color32,
    /// Background of side columns, the composer and cards.
    pub panel: Color32,
    /// Background of chips, buttons and the selected row.
    pub raised: Color32,
    /// Hairlines.
    pub line: Color32,
    /// Text.
    pub text: Color32,
    /// Secondary text; contrast of at least 4.5:1.
    pub muted: Color32,
    /// Hot neurons and the primary action. Like amber, cold, good and bad also used for text;
    /// contrast of at least 4.5:1.
    pub hot: Color32,
    /// Speed and caches.
    pub amber: Color32,
    /// Cold neurons.
    pub cold: Color32,
    /// Attention weights.
    pub deep: Color32,
    /// A hit, or a running state.
    pub good: Color32,
    /// A violated limit, or an error.
    pub bad: Color32,
    /// The boundary between hot and cold.
    pub boundary: Color32,
    /// Text on [`Palette::hot`].
    pub on_hot: Color32,
}

const fn rgb(hex: u32) -> Color32 {
    Color32::from_rgb((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

impl Palette {
    /// The dark theme: light text on a dark background.
    pub const DARK: Palette = Palette {
        background: rgb(0x0B1420),
        panel: rgb(0x101C2B),
        raised: rgb(0x172739),
        line: rgb(0x22364D),
        text: rgb(0xE6EDF5),
        muted: rgb(0x8CA0B5),
        hot: rgb(0xFF8A5B),
        amber: rgb(0xFFC15E),
        cold: rgb(0x4FB3D9),
        deep: rgb(0x2B6CB0),
        good: rgb(0x5DD39E),
        bad: rgb(0xFF5D6C),
        boundary: rgb(0xFFFFFF),
        on_hot: rgb(0x1A0F08),
    };

    /// The light theme: dark text on a light background.
    pub const LIGHT: Palette = Palette {
        background: rgb(0xF4F7FA),
        panel: rgb(0xFFFFFF),
        raised: rgb(0xEEF3F7),
        line: rgb(0xD5DEE7),
        text: rgb(0x122233),
        muted: rgb(0x5C7083),
        hot: rgb(0xC2410C),
        amber: rgb(0x8F5D00),
        cold: rgb(0x1A72A3),
        deep: rgb(0x235A94),
        good: rgb(0x1A7A4D),
        bad: rgb(0xC92A3B),
        boundary: rgb(0x122233),
        on_hot: rgb(0xFFFFFF),
    };

    /// The palette of the current theme.
    pub fn of(ctx: &Context) -> Self {
        Self::with(&ctx.global_style().visuals)
    }

    /// The outline of controls, between hairlines and text in contrast.
    fn outline(&self) -> Color32 {
        self.line.lerp_to_gamma(self.muted, 0.25)
    }

    /// The palette of dark or light visuals.
    pub fn with(visuals: &egui::Visuals) -> Self {
        if visuals.dark_mode { Self::DARK } else { Self::LIGHT }
    }
}

/// The font of headings, `size` points high.
pub fn strong(size: f32) -> FontId {
    FontId::new(size, fonts::strong())
}

/// Loads the fonts and sets the style of both themes.
pub fn install(ctx: &Context) {
    ctx.set_fonts(fonts::definitions());
    egui_material_icons::initialize(ctx);
    ctx.add_plugin(LabelOrder);
    ctx.set_style_of(egui::Theme::Dark, style(&Palette::DARK, Visuals::dark()));
    ctx.set_style_of(egui::Theme::Light, style(&Palette::LIGHT, Visuals::light()));
}

/// Turns the animation of panels off if `less` is true, otherwise on.
pub fn move_less(ctx: &Context, less: bool) {
    let usual = Style::default().animation_time;
    ctx.all_styles_mut(|style| style.animation_time = if less { 0.0 } else { usual });
}

fn style(palette: &Palette, base: Visuals) -> Style {
    let mut style = Style { visuals: visuals(palette, base), ..Style::default() };
    style.text_styles = BTreeMap::from([
        (TextStyle::Small, FontId::proportional(12.0)),
        (TextStyle::Body, FontId::proportional(15.0)),
        (TextStyle::Button, FontId::proportional(14.0)),
        (TextStyle::Monospace, FontId::monospace(13.5)),
        (TextStyle::Heading, strong(18.0)),
    ]);
    let spacing = &mut style.spacing;
    spacing.item_spacing = egui::vec2(8.0, 8.0);
    spacing.button_padding = egui::vec2(12.0, 6.0);
    spacing.interact_size = egui::vec2(40.0, 28.0);
    spacing.window_margin = Margin::same(16);
    spacing.menu_margin = Margin::same(8);
    spacing.tooltip_width = 360.0;
    spacing.scroll = ScrollStyle { bar_width: 8.0, floating_allocated_width: 8.0, ..ScrollStyle::floating() };
    style.interaction.tooltip_delay = 0.4;
    style.url_in_tooltip = true;
    style
}

fn visuals(palette: &Palette, mut visuals: Visuals) -> Visuals {
    let line = Stroke::new(1.0, palette.line);
    visuals.panel_fill = palette.background;
    visuals.window_fill = palette.panel;
    visuals.window_stroke = line;
    visuals.window_corner_radius = CornerRadius::same(RADIUS + 4);
    visuals.menu_corner_radius = CornerRadius::same(RADIUS);
    visuals.extreme_bg_color = palette.background;
    visuals.text_edit_bg_color = Some(palette.background);
    visuals.faint_bg_color = palette.raised;
    visuals.code_bg_color = palette.raised;
    visuals.weak_text_color = Some(palette.muted);
    visuals.hyperlink_color = palette.cold;
    visuals.warn_fg_color = palette.amber;
    visuals.error_fg_color = palette.bad;
    // Dark text must stand out from the selection, too.
    visuals.selection.bg_fill = palette.deep.gamma_multiply(if visuals.dark_mode { 0.6 } else { 0.4 });
    visuals.selection.stroke = Stroke::new(1.0, palette.text);
    visuals.slider_trailing_fill = true;
    let state = |fill: Color32, text: Color32, stroke: Stroke| WidgetVisuals {
        bg_fill: fill,
        weak_bg_fill: fill,
        bg_stroke: stroke,
        corner_radius: CornerRadius::same(RADIUS),
        fg_stroke: Stroke::new(1.0, text),
        expansion: 0.0,
    };
    let focus = Stroke::new(1.0, palette.cold);
    visuals.widgets.noninteractive = state(palette.panel, palette.text, line);
    // Without an outline, fields and boxes hardly differ from their background.
    let outline = Stroke::new(1.0, palette.outline());
    visuals.widgets.inactive = state(palette.raised, palette.text, outline);
    visuals.widgets.hovered = state(palette.line, palette.text, outline);
    visuals.widgets.active = state(palette.line, palette.text, focus);
    visuals.widgets.open = state(palette.raised, palette.text, line);
    visuals
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2).
    fn luminance(colour: Color32) -> f64 {
        let linear = |channel: u8| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(colour.r()) + 0.7152 * linear(colour.g()) + 0.0722 * linear(colour.b())
    }

    fn contrast(a: Color32, b: Color32) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn palette_contrast_meets_minimums() {
        for palette in [Palette::DARK, Palette::LIGHT] {
            for ground in [palette.background, palette.panel, palette.raised] {
                // All but the first two are colours of marks, but are also used for text, such as a
                // speed, a mode or an error.
                let Palette { text, muted, hot, cold, amber, good, bad, .. } = palette;
                for words in [text, muted, hot, cold, amber, good, bad] {
                    assert!(contrast(words, ground) >= 4.5, "{words:?} on {ground:?}: {}", contrast(words, ground));
                }
            }
            for ground in [palette.background, palette.panel] {
                let outline = palette.outline();
                assert!(contrast(outline, ground) >= 1.6, "{outline:?} on {ground:?}: {}", contrast(outline, ground));
            }
            assert!(contrast(palette.on_hot, palette.hot) >= 4.5, "{}", contrast(palette.on_hot, palette.hot));
        }
    }
}
