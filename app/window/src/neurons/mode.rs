//! The modes of the map and their colours.

/// A mode: the meaning of the map's colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Neurons that fire for the token.
    #[default]
    Fired,
    /// How strongly they fire.
    Strength,
    /// How often neurons fired recently.
    Frequency,
    /// Placement: hot or cold.
    Placement,
    /// Placement in a model that is larger than its RAM: hot, cold, or only on disk. It has the
    /// button of [`Mode::Placement`].
    Tiers,
    /// Firings that the predictor found or missed, and its false alarms.
    Predictor,
    /// How long ago neurons last fired.
    Recency,
    /// Experts that the router chose for the token.
    Experts,
}

impl Mode {
    /// The modes in the order of the buttons.
    pub const ALL: [Mode; 7] =
        [Mode::Fired, Mode::Strength, Mode::Frequency, Mode::Placement, Mode::Predictor, Mode::Recency, Mode::Experts];

    /// The name in the settings.
    pub fn key(self) -> String {
        self.title().to_lowercase()
    }

    /// The label of the button.
    pub fn title(self) -> &'static str {
        match self {
            Mode::Fired => "Fired",
            Mode::Strength => "Strength",
            Mode::Frequency => "Frequency",
            Mode::Placement | Mode::Tiers => "Placement",
            Mode::Predictor => "Predictor",
            Mode::Recency => "Recency",
            Mode::Experts => "Experts",
        }
    }

    /// The explanation of the mode.
    pub fn explanation(self) -> &'static str {
        match self {
            Mode::Fired => "Which neurons fire for this token",
            Mode::Strength => "How strongly they fire, as a fraction of the layer's strongest",
            Mode::Frequency => "How often they fire, mostly in the last few hundred tokens",
            Mode::Placement => "Which neurons are in VRAM and which are in RAM",
            Mode::Tiers => "Which neurons are in VRAM, which are in RAM and which are only on disk",
            Mode::Predictor => {
                "Which firing neurons the predictor found, which it missed, and which it predicted wrongly"
            }
            Mode::Recency => "How many tokens ago they last fired",
            Mode::Experts => "Which experts the router chose for this token",
        }
    }

    /// The labels at the ends and in the middle of the scale, for modes with a scale.
    pub fn ticks(self) -> Option<[&'static str; 3]> {
        match self {
            Mode::Fired => Some(["0", "25 % of the neurons in a dot fire", "100 %"]),
            Mode::Strength => Some(["0", "50 % of the layer's strongest", "100 %"]),
            Mode::Frequency => Some(["0", "at 25 % of the tokens", "100 %"]),
            Mode::Recency => Some(["1,000 tokens ago", "30 ago", "now"]),
            Mode::Placement | Mode::Tiers | Mode::Predictor | Mode::Experts => None,
        }
    }

    /// The mode to show instead if a pager decides which weights are in RAM.
    pub fn paged(self, paged: bool) -> Self {
        if paged && self == Mode::Placement { Mode::Tiers } else { self }
    }

    /// True if a picture shows one token, not all tokens so far.
    pub fn is_of_token(self) -> bool {
        matches!(self, Mode::Fired | Mode::Strength | Mode::Predictor | Mode::Experts)
    }
}

/// Steps of the blue gradient that are too pale to be seen on a light background.
const PALE_BLUES: usize = 16;

/// Colour tables that people with any colour vision can read. Dark to bright on a dark background,
/// pale to dark on a light one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Colours {
    /// Violet to yellow.
    Viridis,
    /// Black over red to pale yellow.
    #[default]
    Inferno,
    /// Blue to yellow.
    Cividis,
}

impl Colours {
    /// All tables in the order of the menu.
    pub const ALL: [Colours; 3] = [Colours::Inferno, Colours::Viridis, Colours::Cividis];

    /// The label in the menu.
    pub fn title(self) -> &'static str {
        match self {
            Colours::Viridis => "Viridis",
            Colours::Inferno => "Inferno",
            Colours::Cividis => "Cividis",
        }
    }

    /// The name in the settings.
    pub fn key(self) -> String {
        self.title().to_lowercase()
    }

    /// The table with this name, or the default table.
    pub fn of(key: &str) -> Self {
        Colours::ALL.into_iter().find(|colours| colours.key() == key).unwrap_or_default()
    }

    /// Red, green and blue of every level from 0 to 255, for a light or a dark background.
    pub fn table(self, light: bool) -> [[u8; 3]; 256] {
        let (gradient, first) = match self {
            Colours::Viridis if light => (colorous::YELLOW_GREEN_BLUE, 0),
            Colours::Inferno if light => (colorous::YELLOW_ORANGE_RED, 0),
            Colours::Cividis if light => (colorous::BLUES, PALE_BLUES),
            Colours::Viridis => (colorous::VIRIDIS, 0),
            Colours::Inferno => (colorous::INFERNO, 0),
            Colours::Cividis => (colorous::CIVIDIS, 0),
        };
        std::array::from_fn(|level| gradient.eval_rational(first + level, first + 256).as_array())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_colour_keys_round_trip() {
        for mode in Mode::ALL {
            let key = mode.key();
            assert_eq!(Mode::ALL.into_iter().filter(|other| other.key() == key).count(), 1, "{key}");
            assert_eq!(mode.ticks().is_none(), matches!(mode, Mode::Placement | Mode::Predictor | Mode::Experts));
        }
        assert_eq!(Mode::Tiers.key(), Mode::Placement.key(), "one button");
        assert_eq!(Mode::ALL.map(|mode| mode.paged(false)), Mode::ALL);
        let paged = Mode::ALL.map(|mode| mode.paged(true));
        assert!(paged.contains(&Mode::Tiers) && !paged.contains(&Mode::Placement) && paged.contains(&Mode::Fired));
        for colours in Colours::ALL {
            assert_eq!(Colours::of(&colours.key()), colours);
        }
        assert_eq!((Colours::of("no such"), Colours::of("")), (Colours::Inferno, Colours::Inferno));
    }

    #[test]
    fn colour_tables_grow_in_contrast_to_their_ground() {
        for (colours, is_light) in Colours::ALL.into_iter().flat_map(|colours| [(colours, false), (colours, true)]) {
            let mut table = colours.table(is_light);
            if is_light {
                table.reverse();
            }
            let light = |at: usize| {
                let [r, g, b] = table[at].map(f32::from);
                0.2126 * r + 0.7152 * g + 0.0722 * b
            };
            assert!((1..32).all(|step| light(step * 8) > light((step - 1) * 8)), "{colours:?} {is_light}");
            assert!(light(255) - light(0) > 120.0, "{colours:?} {is_light}");
        }
    }
}
