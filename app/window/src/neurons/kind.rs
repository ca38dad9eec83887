//! Kinds of neurons. A model's decides with which mode the map begins and what its words mean.

use thermocline_engine::telemetry::neurons::NeuronBoard;

use super::mode::Mode;
use thermocline_chats::settings::HeatmapSettings;

/// Kind of a model's neurons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NeuronKind {
    /// Zero for most tokens (ReLU): those that fire are those that are not.
    #[default]
    Sparse,
    /// Never exactly zero (SwiGLU, GeGLU): those fire that hold a fraction of the output mass together.
    Smooth,
    /// Grouped into experts, of which a router chooses some.
    Experts,
}

impl NeuronKind {
    /// That of the neurons on a board.
    pub fn of(board: &NeuronBoard) -> Self {
        let shape = board.shape();
        match () {
            () if (0..shape.layers()).any(|layer| shape.experts(layer) > 0) => NeuronKind::Experts,
            () if board.mass().is_some() => NeuronKind::Smooth,
            () => NeuronKind::Sparse,
        }
    }

    /// The mode a map begins with.
    pub fn usual(self) -> Mode {
        match self {
            NeuronKind::Sparse => Mode::Fired,
            NeuronKind::Smooth => Mode::Strength,
            NeuronKind::Experts => Mode::Experts,
        }
    }

    /// The modes that say something, the usual one first; `placed`: a device holds neurons, or may.
    pub fn modes(self, placed: bool) -> Vec<Mode> {
        let others = Mode::ALL.into_iter().filter(|mode| match mode {
            Mode::Experts => self == NeuronKind::Experts,
            Mode::Predictor => self != NeuronKind::Smooth,
            Mode::Placement => placed,
            _ => true,
        });
        let usual = self.usual();
        std::iter::once(usual).chain(others.filter(|mode| *mode != usual)).collect()
    }

    /// The mode that was chosen for models of this kind, or the usual one.
    pub fn chosen(self, settings: &HeatmapSettings, placed: bool) -> Mode {
        let key = match self {
            NeuronKind::Sparse => &settings.mode,
            NeuronKind::Smooth => &settings.smooth_mode,
            NeuronKind::Experts => &settings.experts_mode,
        };
        let chosen = Mode::ALL.into_iter().find(|mode| mode.key() == *key);
        chosen.filter(|mode| self.modes(placed).contains(mode)).unwrap_or(self.usual())
    }

    /// Chooses a mode for models of this kind.
    pub fn choose(self, settings: &mut HeatmapSettings, mode: Mode) {
        let key = match self {
            NeuronKind::Sparse => &mut settings.mode,
            NeuronKind::Smooth => &mut settings.smooth_mode,
            NeuronKind::Experts => &mut settings.experts_mode,
        };
        *key = mode.key();
    }

    /// Meaning of a mode for a model of this kind; `percent` of the output mass decides which neurons of a smooth one fire.
    pub fn explanation(self, mode: Mode, percent: u8) -> String {
        match (self, mode) {
            (NeuronKind::Smooth, Mode::Fired) => format!(
                "The neurons above the threshold that carries {percent} % of the layer's output mass: none of this model's is ever \
                 exactly zero"
            ),
            (NeuronKind::Smooth, Mode::Frequency | Mode::Recency) => {
                format!("{}, fired meaning: among those that carry {percent} % of the output mass", mode.explanation())
            }
            (NeuronKind::Experts, Mode::Fired) => {
                format!("{}: those of experts that are not chosen never do", mode.explanation())
            }
            _ => mode.explanation().to_owned(),
        }
    }

    /// Why the map of a model of this kind looks as it does, in a sentence below it. What fires in a smooth one stands beside the field
    /// that decides it.
    pub fn sentence(self, mode: Mode) -> Option<&'static str> {
        match (self, mode) {
            (NeuronKind::Smooth, Mode::Strength) => {
                Some("No neuron of this model is ever exactly zero. Brightness says how strongly each one is active.")
            }
            (NeuronKind::Experts, Mode::Experts) => {
                Some("Bright experts were chosen by the router for this token; the others were not read.")
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
