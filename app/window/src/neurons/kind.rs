//! The kinds of neurons. The kind decides the first mode of the map and the meaning of its texts.

use thermocline_engine::telemetry::neurons::NeuronBoard;

use super::mode::Mode;
use thermocline_chats::settings::HeatmapSettings;

/// The kind of a model's neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NeuronKind {
    /// Zero for most tokens (ReLU). Neurons with non-zero values fire.
    #[default]
    Sparse,
    /// Never exactly zero (SwiGLU, GeGLU). The strongest neurons that together carry a fraction of
    /// the output mass fire.
    Smooth,
    /// Grouped into experts. A router chooses some of them.
    Experts,
}

impl NeuronKind {
    /// The kind of the neurons on a board.
    pub fn of(board: &NeuronBoard) -> Self {
        let shape = board.shape();
        match () {
            () if (0..shape.layers()).any(|layer| shape.experts(layer) > 0) => NeuronKind::Experts,
            () if board.mass().is_some() => NeuronKind::Smooth,
            () => NeuronKind::Sparse,
        }
    }

    /// The default mode of the map.
    pub fn usual(self) -> Mode {
        match self {
            NeuronKind::Sparse => Mode::Fired,
            NeuronKind::Smooth => Mode::Strength,
            NeuronKind::Experts => Mode::Experts,
        }
    }

    /// The modes that are useful for this kind, the default mode first. `placed` means that a
    /// device holds neurons, or may, or that some weights are only on disk.
    pub fn modes(self, placed: bool) -> Vec<Mode> {
        let others = Mode::ALL.into_iter().filter(|mode| match mode {
            Mode::Experts => self == NeuronKind::Experts,
            Mode::Predictor => self != NeuronKind::Smooth,
            Mode::Placement | Mode::Tiers => placed,
            _ => true,
        });
        let usual = self.usual();
        std::iter::once(usual).chain(others.filter(|mode| *mode != usual)).collect()
    }

    /// The mode that the user chose for models of this kind, or the default mode.
    pub fn chosen(self, settings: &HeatmapSettings, placed: bool) -> Mode {
        let key = match self {
            NeuronKind::Sparse => &settings.mode,
            NeuronKind::Smooth => &settings.smooth_mode,
            NeuronKind::Experts => &settings.experts_mode,
        };
        let chosen = Mode::ALL.into_iter().find(|mode| mode.key() == *key);
        chosen.filter(|mode| self.modes(placed).contains(mode)).unwrap_or(self.usual())
    }

    /// Sets the mode for models of this kind.
    pub fn choose(self, settings: &mut HeatmapSettings, mode: Mode) {
        let key = match self {
            NeuronKind::Sparse => &mut settings.mode,
            NeuronKind::Smooth => &mut settings.smooth_mode,
            NeuronKind::Experts => &mut settings.experts_mode,
        };
        *key = mode.key();
    }

    /// The meaning of a mode for a model of this kind. `percent` of the output mass defines which
    /// smooth neurons fire.
    pub fn explanation(self, mode: Mode, percent: u8) -> String {
        match (self, mode) {
            (NeuronKind::Smooth, Mode::Fired) => format!(
                "The fewest neurons that carry {percent} % of the layer's output mass. No neuron of this model is ever exactly zero"
            ),
            (NeuronKind::Smooth, Mode::Frequency | Mode::Recency) => {
                format!(
                    "{}. A neuron fires if it is among the fewest that carry {percent} % of the output mass",
                    mode.explanation()
                )
            }
            (NeuronKind::Experts, Mode::Fired) => {
                format!("{}. Neurons of experts that are not chosen never fire", mode.explanation())
            }
            _ => mode.explanation().to_owned(),
        }
    }

    /// A sentence below the map that explains its look. For smooth neurons, the meaning of firing
    /// stands beside the field of its threshold.
    pub fn sentence(self, mode: Mode) -> Option<&'static str> {
        match (self, mode) {
            (NeuronKind::Smooth, Mode::Strength) => {
                Some("No neuron of this model is ever exactly zero. Brightness shows how active each neuron is.")
            }
            (NeuronKind::Experts, Mode::Experts) => {
                Some("The router chose the bright experts for this token. The other experts were not read.")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerNeurons, NeuronShape};

    use super::*;

    #[test]
    fn usual_mode_depends_on_the_neurons() {
        let (board, _) = NeuronBoard::new(NeuronShape::new([32]));
        assert_eq!(NeuronKind::of(&board), NeuronKind::Sparse);
        board.set_mass(Some(0.9));
        assert_eq!(NeuronKind::of(&board), NeuronKind::Smooth);
        let moe = LayerNeurons::Experts { experts: 2, width: 4, shared: 0 };
        let (board, _) = NeuronBoard::new(NeuronShape::of([moe]));
        assert_eq!(NeuronKind::of(&board), NeuronKind::Experts);

        let mut settings = HeatmapSettings::default();
        let chosen = |settings: &HeatmapSettings| {
            [NeuronKind::Sparse, NeuronKind::Smooth, NeuronKind::Experts].map(|it| it.chosen(settings, true))
        };
        assert_eq!(chosen(&settings), [Mode::Fired, Mode::Strength, Mode::Experts]);
        NeuronKind::Smooth.choose(&mut settings, Mode::Recency);
        NeuronKind::Sparse.choose(&mut settings, Mode::Placement);
        assert_eq!(chosen(&settings), [Mode::Placement, Mode::Recency, Mode::Experts]);
        assert_eq!(NeuronKind::Sparse.chosen(&settings, false), Mode::Fired, "nothing is placed anywhere");
        assert_eq!(NeuronKind::Experts.modes(true)[..2], [Mode::Experts, Mode::Fired]);
        assert!(
            !NeuronKind::Smooth.modes(true).contains(&Mode::Experts)
                && NeuronKind::Smooth.modes(true)[0] == Mode::Strength
        );
    }

    #[test]
    fn threshold_of_smooth_models_is_explained_once() {
        assert!(NeuronKind::Smooth.explanation(Mode::Fired, 90).contains("90 % of the layer's output mass"));
        assert_eq!(NeuronKind::Smooth.sentence(Mode::Fired), None, "the field says it");
        assert!(NeuronKind::Smooth.sentence(Mode::Strength).unwrap().contains("ever exactly zero"));
        assert_eq!(NeuronKind::Sparse.sentence(Mode::Fired), None);
    }
}
