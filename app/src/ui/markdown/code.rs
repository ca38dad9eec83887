//! Code: its language, a button that copies it, and the text in colours.

use egui::{Align, Frame, Label, Layout, Margin, RichText, Stroke, Ui};
use egui_extras::syntax_highlighting::{CodeTheme, highlight};
use egui_material_icons::icons::ICON_CONTENT_COPY;

use crate::ui::{
    theme::{Palette, RADIUS},
    widgets::icon_button,
};

/// Bytes of code up to which it has colours: finding them takes time.
const COLOURED: usize = 24 * 1024;

/// Bytes of a part of long text that is laid out as one.
const PART: usize = 2048;

/// Shows code; `closed`: no more comes.
pub fn show(ui: &mut Ui, language: &str, text: &str, closed: bool) {
    let palette = Palette::of(ui);
    let frame = Frame::new()
        .fill(palette.panel)
        .stroke(Stroke::new(1.0, palette.line))
        .corner_radius(RADIUS)
        .inner_margin(Margin::same(12));
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.spacing_mut().item_spacing.y = 8.0;
        ui.horizontal(|ui| {
            ui.label(RichText::new(language).size(12.0).color(palette.muted));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if icon_button(ui, ICON_CONTENT_COPY, "Copy code").clicked() {
                    ui.copy_text(text.to_owned());
                }
            });
        });
        egui::ScrollArea::horizontal().id_salt("code").show(ui, |ui| {
            if closed && text.len() <= COLOURED {
                let job =
                    highlight(ui, ui.style(), &CodeTheme::from_style(ui.style()), text.trim_end(), extension(language));
                ui.add(Label::new(job).extend());
            } else {
                parts(ui, text, |ui, part| {
                    ui.add(Label::new(RichText::new(part).monospace()).extend());
                });
            }
        });
    });
}

/// Shows a long text in parts, which end at line ends: while it grows only the last one is laid out again.
pub fn parts(ui: &mut Ui, text: &str, mut show: impl FnMut(&mut Ui, &str)) {
    ui.vertical(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        let mut rest = text;
        while rest.len() > PART {
            let most = rest.floor_char_boundary(PART);
            let Some(end) = rest[..most].rfind('\n').or_else(|| rest[..most].rfind(' ')) else { break };
            show(ui, &rest[..end]);
            rest = &rest[end + 1..];
        }
        show(ui, rest);
    });
}

/// File extension of a language, by which the highlighter knows it.
fn extension(language: &str) -> &str {
    const NAMES: [(&str, &str); 16] = [
        ("rust", "rs"),
        ("python", "py"),
        ("javascript", "js"),
        ("jsx", "js"),
        ("typescript", "js"),
        ("ts", "js"),
        ("bash", "sh"),
        ("shell", "sh"),
        ("console", "sh"),
        ("c++", "cpp"),
        ("c#", "cs"),
        ("csharp", "cs"),
        ("golang", "go"),
        ("ruby", "rb"),
        ("perl", "pl"),
        ("haskell", "hs"),
    ];
    let known = NAMES.iter().find(|(name, _)| language.eq_ignore_ascii_case(name));
    known.map_or(language, |(_, extension)| extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_highlighted_by_common_language_names() {
        let ctx = egui::Context::default();
        let style = ctx.global_style();
        let colours = |language: &str, text: &str| {
            let job = highlight(&ctx, &style, &CodeTheme::from_style(&style), text, extension(language));
            job.sections.iter().map(|section| section.format.color).collect::<std::collections::HashSet<_>>().len()
        };
        for language in ["rust", "Rust", "rs"] {
            assert!(colours(language, "fn main() { let x = \"text\"; } // end") > 2, "{language}");
        }
        for language in ["python", "py"] {
            assert!(colours(language, "def f(x):\n    return 'text' # end") > 2, "{language}");
        }
        assert!(colours("c++", "int main() { return 0; } // end") > 2 && colours("no language", "fn main() {}") == 1);
    }
}
