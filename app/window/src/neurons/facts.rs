//! Facts about a neuron, as text.

use egui::Color32;
use thermocline_engine::{
    model::{NeuronIndex, mask},
    telemetry::neurons::{NeuronShape, TokenTrace},
};

use super::{
    atlas::{Atlas, PointedNeuron},
    mode::Mode,
};
use thermocline_host::units::counted;
use thermocline_rich_text::theme::Palette;

/// Sentences about a neuron at a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name of the neuron: layer, expert and index.
    pub title: String,
    /// The neuron's activation at the token.
    pub value: String,
    /// The neuron's firing frequency.
    pub frequency: Option<String>,
    /// The selection frequency of its expert, in an MoE layer.
    pub expert: Option<String>,
    /// Where the neuron's weights are. `None` if all weights are in RAM.
    pub place: Option<NeuronPlace>,
    /// The prediction and its outcome, if a predictor ran.
    pub predicted: Option<&'static str>,
    /// The other neurons in its dot.
    pub crowd: Option<String>,
}

/// Formats a fraction as a percentage: `12 %`, `0.4 %`.
pub fn percent(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    match percent {
        p if p > 0.0 && p < 0.1 => "under 0.1 %".to_owned(),
        p if p > 0.0 && p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// True for characters without a glyph: zero-width spaces, direction marks and private-use
/// characters. Joiners are not included, because they are parts of emoji.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..)
}

/// A token's text in quotation marks, with invisible characters replaced.
pub fn quoted(text: &str) -> String {
    let visible = |letter: char| match letter {
        // Part of a character that other tokens complete.
        '\u{fffd}' => "…".to_owned(),
        '\n' | '\r' | '\t' => letter.escape_debug().collect(),
        letter if letter.is_control() || is_invisible(letter) => "…".to_owned(),
        letter => letter.to_string(),
    };
    // If the text has only spaces, they stay.
    let words = Some(text.trim_matches(' ')).filter(|words| !words.is_empty()).unwrap_or(text);
    format!("\u{201c}{}\u{201d}", words.chars().map(visible).collect::<String>())
}

/// The name of a neuron: `layer 3, neuron 7` or `layer 3, expert 2, neuron 7`.
pub fn name(shape: &NeuronShape, NeuronIndex { layer, neuron }: NeuronIndex) -> String {
    match shape.member(layer, neuron) {
        Some((expert, at)) if expert < shape.experts(layer) => format!("layer {layer}, expert {expert}, neuron {at}"),
        Some((_, at)) => format!("layer {layer}, shared expert, neuron {at}"),
        None => format!("layer {layer}, neuron {neuron}"),
    }
}

/// The name of a neuron at the beginning of a sentence.
pub fn title(shape: &NeuronShape, place: NeuronIndex) -> String {
    let name = name(shape, place);
    name.strip_prefix('l').map_or(name.clone(), |rest| format!("L{rest}"))
}

/// Known frequencies, as fractions of the tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Frequencies {
    /// The neuron's firing frequency.
    pub fires: Option<f32>,
    /// The selection frequency of its expert, in an MoE layer.
    pub chosen: Option<f32>,
}

/// True if the map's `mode` has a value for a neuron. If a dot has several neurons, such a neuron
/// is described.
pub fn is_lit(shape: &NeuronShape, mode: Mode, token: &TokenTrace, layer: usize, neuron: usize) -> bool {
    let fired = token.fired(shape, layer).is_some_and(|mask| mask::contains(mask, neuron));
    let predicted = predicted(shape, token, layer).is_some_and(|mask| mask::contains(mask, neuron));
    match mode {
        Mode::Predictor => fired != predicted,
        Mode::Experts => shape
            .member(layer, neuron)
            .is_some_and(|(expert, _)| token.chosen(shape, layer).is_some_and(|chosen| mask::contains(chosen, expert))),
        _ => fired,
    }
}

fn predicted<'a>(shape: &NeuronShape, token: &'a TokenTrace, layer: usize) -> Option<&'a [u32]> {
    token.masks.as_ref()?.predicted.get(shape.words(layer)).filter(|mask| !mask.is_empty())
}

impl Facts {
    /// Facts about the `pointed` neuron. `place` is `None` if the CPU computes everything and all
    /// weights are in RAM.
    pub fn of(
        shape: &NeuronShape,
        token: Option<&TokenTrace>,
        pointed: PointedNeuron,
        frequencies: Frequencies,
        place: Option<NeuronPlace>,
    ) -> Self {
        let PointedNeuron { place: index, crowd } = pointed;
        let NeuronIndex { layer, neuron } = index;
        let fired = token.and_then(|token| token.fired(shape, layer)).map(|mask| mask::contains(mask, neuron));
        let strength = token.and_then(|token| {
            let masks = token.masks.as_ref()?;
            let strength = *masks.strength.get(shape.range(layer))?.get(neuron)?;
            Some(f32::from(strength) / 255.0 * masks.greatest.get(layer)?)
        });
        // In an MoE layer: the expert, whether the router can choose it, and whether the router did
        // not choose it for this token.
        let expert = shape.member(layer, neuron).map(|(expert, _)| expert);
        let routed = expert.filter(|expert| *expert < shape.experts(layer));
        let passed_over = token
            .and_then(|token| token.chosen(shape, layer))
            .zip(routed)
            .is_some_and(|(chosen, expert)| !mask::contains(chosen, expert));
        let value = match (fired, strength) {
            (None, _) => "Not recorded for this token".to_owned(),
            (Some(true), Some(strength)) => format!("Fires with strength {strength:.2}"),
            (Some(true), None) => "Fires for this token".to_owned(),
            (Some(false), Some(strength)) if strength > 0.0 => {
                format!("Below the threshold, with strength {strength:.2}")
            }
            (Some(false), _) if passed_over => "Silent: this token did not choose its expert".to_owned(),
            (Some(false), _) => "Silent for this token".to_owned(),
        };
        let at = |frequency: Option<f32>| {
            frequency.map(|frequency| format!("for {} of the tokens", percent(frequency.into())))
        };
        let expected = token.and_then(|token| predicted(shape, token, layer)).map(|mask| mask::contains(mask, neuron));
        let predicted = match (fired, expected) {
            (Some(true), Some(true)) => Some("Predicted to fire: a hit"),
            (Some(true), Some(false)) => Some("Not predicted to fire: a miss"),
            (Some(false), Some(true)) => Some("Predicted to fire: a false alarm"),
            (Some(false), Some(false)) => Some("Correctly predicted not to fire"),
            _ => None,
        };
        Facts {
            title: title(shape, index),
            value,
            frequency: at(frequencies.fires).map(|often| format!("Fires {often}")),
            expert: match (expert, routed) {
                (Some(_), None) => Some("Shared expert, used for every token".to_owned()),
                _ => routed.and(at(frequencies.chosen)).map(|often| format!("Its expert is chosen {often}")),
            },
            place,
            predicted,
            crowd: (crowd > 1).then(|| format!("{} more neurons in this dot. Double-click to see them", crowd - 1)),
        }
    }
}

/// Where the weights of a neuron are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeuronPlace {
    /// In VRAM.
    Vram,
    /// In RAM.
    Ram,
    /// Only on disk.
    Disk,
}

impl NeuronPlace {
    /// The place as a label.
    pub fn title(self) -> &'static str {
        match self {
            NeuronPlace::Vram => "In VRAM",
            NeuronPlace::Ram => "In RAM",
            NeuronPlace::Disk => "Only on disk",
        }
    }

    /// The place as the end of a sentence.
    pub fn words(self) -> &'static str {
        match self {
            NeuronPlace::Vram => "in VRAM",
            NeuronPlace::Ram => "in RAM",
            NeuronPlace::Disk => "only on disk",
        }
    }

    /// The colour of the label and of the words.
    pub fn colour(self, palette: &Palette) -> Color32 {
        match self {
            NeuronPlace::Vram => palette.hot,
            NeuronPlace::Ram => palette.cold,
            NeuronPlace::Disk => palette.muted,
        }
    }
}

/// The places of the visible layers' neurons, in words. `None` before they were drawn.
pub fn tiers(atlas: &Atlas) -> Option<String> {
    let [vram, ram, disk] = atlas.tiers()?.map(percent);
    Some(format!("{vram} of the neurons in VRAM, {ram} in RAM, {disk} only on disk"))
}

/// A token's firings in one sentence, for people who do not see the map. `placed` means that a
/// device computes, so that neurons may be hot.
pub fn summary(shape: &NeuronShape, token: Option<&TokenTrace>, placed: bool) -> String {
    let (layers, neurons) = (counted(shape.layers(), "layer"), shape.total());
    let Some(token) = token else {
        return format!("{layers}, {}, no neuron has fired yet", counted(neurons, "neuron"));
    };
    let total = token.total();
    let fraction = |part: u32, of: f64| percent(f64::from(part) / of.max(1.0));
    let (active, hot) = (fraction(total.fired, neurons as f64), fraction(total.hot, total.fired.into()));
    let chosen = total.experts.map(|chosen| {
        let all: usize = (0..shape.layers()).map(|layer| shape.experts(layer)).sum();
        format!("{chosen} of {} chosen, ", counted(all, "expert"))
    });
    let chosen = chosen.unwrap_or_default();
    let hot = if placed { format!(", {hot} of them in VRAM") } else { String::new() };
    format!("{layers}, token {}: {chosen}{active} of the neurons fire{hot}", token.index)
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, LayerNeurons, NeuronBoard, Strength, Watch};

    use super::*;

    /// A neuron of the first layer.
    fn pointed(neuron: usize, crowd: usize) -> PointedNeuron {
        PointedNeuron { place: NeuronIndex { layer: 0, neuron }, crowd }
    }

    #[test]
    fn facts_describe_dense_neurons_by_recorded_values() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([4]));
        board.set_watch(Watch::Strength);
        recorder.begin(0, 0, &[9], true);
        let (fired, predicted, hot, strength) = ([0b0011], [0b0101], [0b0001], [0.5, 1.5, 0.0, 0.0]);
        recorder.layer(&LayerFiring {
            tokens: 1,
            fired: &fired,
            predicted: Some(&predicted),
            hot: Some(&hot),
            strength: Some(Strength::All(&strength)),
            complete: true,
            ..LayerFiring::default()
        });
        recorder.end();
        let (shape, token) = (board.shape(), board.latest().unwrap());
        let frequencies = Frequencies { fires: Some(0.123), chosen: None };
        let place = |neuron| [NeuronPlace::Vram, NeuronPlace::Ram, NeuronPlace::Disk, NeuronPlace::Disk][neuron];
        let of =
            |neuron, crowd| Facts::of(shape, Some(&token), pointed(neuron, crowd), frequencies, Some(place(neuron)));
        let first = of(1, 3);
        assert_eq!((first.title.as_str(), first.value.as_str()), ("Layer 0, neuron 1", "Fires with strength 1.50"));
        assert_eq!(first.frequency.as_deref(), Some("Fires for 12 % of the tokens"));
        assert_eq!(first.expert, None);
        let place_of = |facts: &Facts| facts.place.map(NeuronPlace::title);
        assert_eq!((place_of(&first), first.predicted), (Some("In RAM"), Some("Not predicted to fire: a miss")));
        assert_eq!(place_of(&of(2, 1)), Some("Only on disk"));
        assert!(first.crowd.is_some_and(|crowd| crowd.starts_with("2 more")));
        assert_eq!(
            (of(0, 1).predicted, of(2, 1).predicted),
            (Some("Predicted to fire: a hit"), Some("Predicted to fire: a false alarm"))
        );
        assert_eq!((place_of(&of(0, 1)), of(3, 1).value.as_str()), (Some("In VRAM"), "Silent for this token"));
        assert!(is_lit(shape, Mode::Predictor, &token, 0, 2) && !is_lit(shape, Mode::Predictor, &token, 0, 0));
        assert!(is_lit(shape, Mode::Fired, &token, 0, 0) && !is_lit(shape, Mode::Fired, &token, 0, 2));
        assert_eq!(
            summary(shape, Some(&token), true),
            "1 layer, token 0: 50 % of the neurons fire, 50 % of them in VRAM"
        );
        let unknown = Facts::of(shape, None, pointed(0, 1), Frequencies::default(), None);
        assert_eq!((unknown.value.as_str(), unknown.predicted), ("Not recorded for this token", None));
        assert_eq!(place_of(&unknown), None);
    }

    #[test]
    fn facts_describe_moe_neurons_with_their_expert() {
        let moe = LayerNeurons::Experts { experts: 3, width: 4, shared: 2 };
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::of([moe]));
        recorder.begin(0, 0, &[9], true);
        let (fired, chosen) = ([0b01_0000_0110_0000], [0b010]);
        recorder.layer(&LayerFiring { tokens: 1, fired: &fired, chosen: Some(&chosen), ..LayerFiring::default() });
        recorder.end();
        let (shape, token) = (board.shape(), board.latest().unwrap());
        let frequencies = Frequencies { fires: Some(0.1), chosen: Some(0.25) };
        let of = |neuron| Facts::of(shape, Some(&token), pointed(neuron, 1), frequencies, Some(NeuronPlace::Ram));
        let fires = of(5);
        assert_eq!((&*fires.title, &*fires.value), ("Layer 0, expert 1, neuron 1", "Fires for this token"));
        assert_eq!(fires.expert.as_deref(), Some("Its expert is chosen for 25 % of the tokens"));
        assert_eq!(fires.frequency.as_deref(), Some("Fires for 10 % of the tokens"));
        assert_eq!(of(4).value, "Silent for this token");
        let other = of(3);
        assert_eq!(
            (&*other.title, &*other.value),
            ("Layer 0, expert 0, neuron 3", "Silent: this token did not choose its expert")
        );
        let shared = of(13);
        assert_eq!((&*shared.title, &*shared.value), ("Layer 0, shared expert, neuron 1", "Silent for this token"));
        assert_eq!(shared.expert.as_deref(), Some("Shared expert, used for every token"));
        assert_eq!(
            summary(shape, Some(&token), false),
            "1 layer, token 0: 1 of 3 experts chosen, 21 % of the neurons fire"
        );
    }

    #[test]
    fn quoted_text_is_never_empty_and_has_no_codes_of_characters() {
        assert_eq!(
            [" .\"", "it's", "a\u{7}", "\u{fffd}", "\n", " ", "\u{e000}b\u{200b}", "é"].map(quoted),
            [
                "\u{201c}.\"\u{201d}",
                "\u{201c}it's\u{201d}",
                "\u{201c}a…\u{201d}",
                "\u{201c}…\u{201d}",
                "\u{201c}\\n\u{201d}",
                "\u{201c} \u{201d}",
                "\u{201c}…b…\u{201d}",
                "\u{201c}é\u{201d}"
            ]
        );
    }

    #[test]
    fn percent_is_rounded_and_names_a_lower_bound() {
        let all: Vec<_> = [0.0, 0.0004, 0.004, 0.0999, 0.5, 1.0].map(percent).into_iter().collect();
        assert_eq!(all, ["0 %", "under 0.1 %", "0.4 %", "10 %", "50 %", "100 %"]);
    }
}
