//! Correct order in egui's labels, buttons and hints. egui lays out their text from left to right,
//! and reverses numbers of right-to-left scripts.

use std::{ops::Range, sync::Arc};

use egui::{
    FontFamily, Galley, LayerId, Plugin, Shape, Ui,
    layers::ShapeIdx,
    text::{LayoutJob, LayoutSection, TextWrapping},
};

use super::{
    bidi,
    shaping::{may_turn, to_the_right},
    visual_job::VisualJob,
};

/// Ends a text that is too long for its space.
const MORE: &str = "…";

/// A drawn text.
struct DrawnLabel {
    layer: LayerId,
    shape: ShapeIdx,
    galley: Arc<Galley>,
}

/// Redraws labels in the correct order at the end of each frame.
#[derive(Debug, Default)]
pub struct LabelOrder;

impl Plugin for LabelOrder {
    fn debug_name(&self) -> &'static str {
        "order of labels"
    }

    fn on_end_pass(&mut self, ui: &mut Ui) {
        for DrawnLabel { layer, shape, galley } in drawn(ui) {
            if !is_painters(ui, &galley) {
                continue;
            }
            let Some(read) = line_as_read(ui, &galley).or_else(|| numbers_as_read(ui, &galley)) else { continue };
            ui.ctx().graphics_mut(|layers| {
                layers.entry(layer).mutate_shape(shape, |clipped| {
                    if let Shape::Text(text) = &mut clipped.shape {
                        text.galley = read;
                    }
                });
            });
        }
    }
}

/// False for selected text and for text that we have already ordered. egui's layout does not apply
/// to it, and its sections need not match its text.
fn is_painters(ui: &Ui, galley: &Arc<Galley>) -> bool {
    let job = &galley.job;
    let sound = |section: &LayoutSection| job.text.get(section.byte_range.start.0..section.byte_range.end.0).is_some();
    job.sections.iter().all(sound) && Arc::ptr_eq(galley, &layout(ui, (**job).clone()))
}

fn layout(ui: &Ui, job: LayoutJob) -> Arc<Galley> {
    ui.fonts_mut(|fonts| fonts.layout_job(job))
}

/// Texts of this frame with characters that egui may reverse.
fn drawn(ui: &Ui) -> Vec<DrawnLabel> {
    let areas: Vec<LayerId> = ui.memory(|memory| memory.layer_ids().collect());
    let background = LayerId::background();
    let layers = areas.into_iter().filter(|layer| *layer != background).chain([background]);
    ui.ctx().graphics(|lists| {
        let mut drawn = Vec::new();
        for (layer, list) in layers.filter_map(|layer| Some((layer, lists.get(layer)?))) {
            for (at, entry) in list.all_entries().enumerate() {
                if let Shape::Text(text) = &entry.shape
                    && text.galley.job.text.chars().any(may_turn)
                {
                    drawn.push(DrawnLabel { layer, shape: ShapeIdx(at), galley: Arc::clone(&text.galley) });
                }
            }
        }
        drawn
    })
}

/// A text of any number of lines with its numbers in the right order; `None` if egui reverses none
/// of them.
fn numbers_as_read(ui: &Ui, galley: &Galley) -> Option<Arc<Galley>> {
    let job = to_the_right((*galley.job).clone());
    (job.sections.len() > galley.job.sections.len()).then(|| layout(ui, job))
}

/// A one-line text in the order of its words; `None` if egui orders it correctly, and for code.
fn line_as_read(ui: &Ui, galley: &Galley) -> Option<Arc<Galley>> {
    let (job, code) = (&galley.job, FontFamily::Monospace);
    if galley.rows.len() != 1 || job.sections.iter().any(|section| section.format.font_id.family == code) {
        return None;
    }
    let whole = layout(ui, ordered(job, job.text.len(), "")?);
    if !galley.elided {
        return Some(whole);
    }
    // The longest beginning that fits.
    let ends: Vec<usize> = job.text.char_indices().map(|(at, _)| at).collect();
    let beginning = |end: usize| Some(layout(ui, ordered(job, end, MORE)?));
    let fits = |end: &usize| beginning(*end).is_none_or(|galley| galley.size().x <= job.wrap.max_width);
    let count = ends.partition_point(fits);
    beginning(*ends.get(count.checked_sub(1)?)?)
}

/// The first `end` bytes of a one-line text, followed by `more`, in visual order.
fn ordered(job: &LayoutJob, end: usize, more: &str) -> Option<LayoutJob> {
    let text = format!("{}{more}", &job.text[..end]);
    let lines = bidi::lines(&text, |_| 0.0, f32::INFINITY)?;
    let [line] = &lines[..] else { return None };
    let mut visual = VisualJob::default();
    for piece in &line.pieces {
        let mut add = |section: &LayoutSection| {
            let own = within(section, end, text.len());
            let range = own.start.max(piece.range.start)..own.end.min(piece.range.end);
            if range.start < range.end {
                visual.push(&text[range.clone()], range.start, piece, &section.format);
            }
        };
        // The first part of a right-to-left word is on its right.
        if piece.to_the_left {
            job.sections.iter().rev().for_each(&mut add);
        } else {
            job.sections.iter().for_each(&mut add);
        }
    }
    let mut sections = visual.job.sections;
    if let (Some(first), Some(before)) = (sections.first_mut(), job.sections.first()) {
        first.leading_space = before.leading_space;
    }
    Some(LayoutJob { text: visual.job.text, sections, wrap: TextWrapping::no_max_width(), ..job.clone() })
}

/// Byte range of a section in a text shortened to `end` bytes. The last section includes the added
/// text.
fn within(section: &LayoutSection, end: usize, length: usize) -> Range<usize> {
    let (first, last) = (section.byte_range.start.0, section.byte_range.end.0);
    first.min(end)..if first < end && last >= end { length } else { last.min(end) }
}
