//! Numbers in labels, buttons and hints: the painter's widgets lay their text out themselves, and
//! the painter turns numbers of scripts that run to the left.

use std::sync::Arc;

use egui::{Galley, LayerId, Plugin, Shape, Ui, layers::ShapeIdx};

use super::shaping::{may_turn, to_the_right};

/// A text that is drawn.
struct Drawn {
    layer: LayerId,
    shape: ShapeIdx,
    galley: Arc<Galley>,
}

/// Draws such numbers as they are read, at the end of each frame.
#[derive(Debug, Default)]
pub struct NumbersOfLabels;

impl Plugin for NumbersOfLabels {
    fn debug_name(&self) -> &'static str {
        "numbers of labels"
    }

    fn on_end_pass(&mut self, ui: &mut Ui) {
        for Drawn { layer, shape, galley } in drawn(ui) {
            let job = to_the_right((*galley.job).clone());
            // Words with a selection, or in an order of their own, are not as the painter lays them
            // out.
            if job.sections.len() == galley.job.sections.len() || !is_painters(ui, &galley) {
                continue;
            }
            let read = ui.fonts_mut(|fonts| fonts.layout_job(job));
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

fn is_painters(ui: &Ui, galley: &Arc<Galley>) -> bool {
    Arc::ptr_eq(galley, &ui.fonts_mut(|fonts| fonts.layout_job((*galley.job).clone())))
}

/// Texts of this frame with characters that the painter may turn.
fn drawn(ui: &Ui) -> Vec<Drawn> {
    let areas: Vec<LayerId> = ui.memory(|memory| memory.layer_ids().collect());
    let layers = areas.into_iter().filter(|layer| *layer != LayerId::background()).chain([LayerId::background()]);
    ui.ctx().graphics(|lists| {
        let mut drawn = Vec::new();
        for (layer, list) in layers.filter_map(|layer| Some((layer, lists.get(layer)?))) {
            for (at, entry) in list.all_entries().enumerate() {
                if let Shape::Text(text) = &entry.shape
                    && text.galley.job.text.chars().any(may_turn)
                {
                    drawn.push(Drawn { layer, shape: ShapeIdx(at), galley: Arc::clone(&text.galley) });
                }
            }
        }
        drawn
    })
}
