//! Code blocks: the language, a copy button, and the coloured text.

use std::{ops::Range, sync::Arc};

use egui::{Align, Label, Layout, Margin, RichText, TextFormat, TextStyle, Ui, text::LayoutJob};
use egui_material_icons::icons::ICON_CONTENT_COPY;

use super::{code_colours::CodeColours, sideways::sideways};
use crate::{
    text::to_the_right,
    theme::Palette,
    widgets::{icon_button, outlined, wide},
};

/// Largest part of a long text that is laid out as one, in bytes.
pub(super) const PART: usize = 2048;

/// Shows a code block. `closed`: the text is complete, and is shown in `colours`.
pub fn show(ui: &mut Ui, language: &str, text: &str, closed: bool, colours: &mut CodeColours) {
    let palette = Palette::of(ui);
    wide(ui, outlined(palette.panel, palette.line, Margin::same(12)), |ui| {
        ui.spacing_mut().item_spacing.y = 8.0;
        ui.horizontal(|ui| {
            ui.label(RichText::new(language).size(12.0).color(palette.muted));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if icon_button(ui, ICON_CONTENT_COPY, "Copy code").clicked() {
                    ui.copy_text(text.to_owned());
                }
            });
        });
        sideways(ui, "code", |ui| {
            let text = text.trim_end();
            let coloured = if closed {
                colours.of(ui, language, text)
            } else {
                CodeColours::prepare();
                &[]
            };
            let mut coloured = coloured.iter();
            parts(ui, text, |ui, part| {
                let job = coloured.next().map_or_else(|| plain(ui, part), Arc::clone);
                ui.add(Label::new(job).extend());
            });
        });
    });
}

/// Lays out code without colours.
fn plain(ui: &Ui, text: &str) -> Arc<LayoutJob> {
    let format = TextFormat::simple(TextStyle::Monospace.resolve(ui.style()), ui.visuals().text_color());
    Arc::new(to_the_right(LayoutJob { break_on_newline: true, ..LayoutJob::single_section(text.to_owned(), format) }))
}

/// Shows a long text in parts that end at line ends. While the text grows, only the last part is
/// laid out again.
pub fn parts(ui: &mut Ui, text: &str, mut show: impl FnMut(&mut Ui, &str)) {
    ui.vertical(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        part_ranges(text).into_iter().for_each(|range| show(ui, &text[range]));
    });
}

/// Byte ranges of the parts of a text. The line end or space between two parts belongs to neither.
pub(super) fn part_ranges(text: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut start) = (Vec::new(), 0);
    while text.len() - start > PART {
        let most = text.floor_char_boundary(start + PART);
        let rest = &text[start..most];
        let Some(end) = rest.rfind('\n').or_else(|| rest.rfind(' ')) else { break };
        ranges.push(start..start + end);
        start += end + 1;
    }
    ranges.push(start..text.len());
    ranges
}
