//! Switched-off neurons: repeats the last answer without them, beside the whole model's answer.

use egui::Ui;
use thermocline_engine::model::NeuronIndex;

use super::watched::WatchedNeurons;
use crate::{command::Command, shell::Shell};
use thermocline_chats::chat::{Side, SideModel};

/// The tooltip of the buttons.
pub const HINT: &str = "Repeats the last answer on the CPU, with and without these neurons, side by side";

/// The command that compares the whole model with one without `neurons`. `title` names the second
/// side.
pub fn without(title: String, neurons: Vec<NeuronIndex>) -> Command {
    let whole = Side { title: "Whole model".to_owned(), model: SideModel::Without(Vec::new()) };
    Command::Compare([whole, Side { title, model: SideModel::Without(neurons) }])
}

impl WatchedNeurons {
    /// Offers to repeat the last answer without all pinned neurons.
    pub fn offer_without_pins(&self, ui: &mut Ui, shell: &mut Shell) {
        let pins = self.pins.places();
        let name = "Answer again without all of them";
        if pins.len() > 1 && ui.button(name).on_hover_text(HINT).clicked() {
            let title = format!("Without the {} pinned neurons", pins.len());
            shell.queue_command(without(title, pins));
        }
    }

    /// Offers to repeat the last answer without the cold neurons of a layer. If no device computes,
    /// without the half that fires least.
    pub fn offer_without_cold(&self, ui: &mut Ui, shell: &mut Shell, layer: usize, placed: bool) {
        let what = if placed { "its cold neurons" } else { "the half that fires least" };
        if ui.button(format!("Answer again without {what}")).on_hover_text(HINT).clicked() {
            let title = format!("Without {what} (layer {layer})");
            shell.queue_command(without(title, self.cold(layer, placed)));
        }
    }

    fn cold(&self, layer: usize, placed: bool) -> Vec<NeuronIndex> {
        let all = 0..self.board.shape().neurons(layer);
        let mut cold: Vec<usize> = match placed {
            true => all.filter(|neuron| !self.map.atlas.is_hot(layer, *neuron)).collect(),
            false => all.collect(),
        };
        if !placed {
            let often = |neuron: &usize| self.map.atlas.frequency(layer, *neuron).unwrap_or(0.0);
            cold.sort_by(|a, b| often(a).total_cmp(&often(b)));
            cold.truncate(cold.len() / 2);
        }
        cold.into_iter().map(|neuron| NeuronIndex { layer, neuron }).collect()
    }
}
