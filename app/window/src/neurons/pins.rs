//! Pinned neurons, followed from token to token.

use std::collections::{HashMap, VecDeque};

use thermocline_engine::{
    model::{NeuronIndex, mask},
    telemetry::neurons::{MOST_TOKENS, NeuronBoard, NeuronShape, PicturePatch, TokenTrace},
};

use super::{facts, lens::Lens};

/// Maximum number of pinned neurons.
pub const MOST_PINS: usize = 8;

/// A pinned neuron and its latest activations.
#[derive(Debug)]
pub struct Pin {
    /// The neuron's place in the model.
    pub place: NeuronIndex,
    /// The neuron's name, as inside a sentence.
    pub name: String,
    /// Activation per token: 0 for silent, 1 for firing, or its strength as a fraction of the
    /// layer's strongest.
    pub series: VecDeque<f32>,
    /// Ids of the tokens of the series.
    pub words: VecDeque<u32>,
    /// Places of the tokens of the series in pictures. `None` for a token of the text.
    pub patches: VecDeque<Option<PicturePatch>>,
    /// Number of patches of pictures at which it fired.
    pub fired_patches: u32,
    /// The words that the neuron raises and lowers.
    pub lens: Lens,
    /// A sentence about its words across chats. Empty if no words are stored.
    pub across: String,
    fired_at: HashMap<u32, u32>,
    /// Index of the token after the end of the series.
    pub next: u64,
}

impl Pin {
    fn new(shape: &NeuronShape, place: NeuronIndex) -> Self {
        Pin {
            place,
            name: facts::name(shape, place),
            series: VecDeque::new(),
            words: VecDeque::new(),
            patches: VecDeque::new(),
            fired_patches: 0,
            lens: Lens::Unknown,
            across: String::new(),
            fired_at: HashMap::new(),
            next: 0,
        }
    }

    fn see(&mut self, shape: &NeuronShape, token: &TokenTrace) {
        self.next = token.index + 1;
        let Some(mask) = token.fired(shape, self.place.layer) else { return };
        let fired = mask::contains(mask, self.place.neuron);
        let strength = || {
            let masks = token.masks.as_ref()?;
            Some(f32::from(*masks.strength.get(shape.range(self.place.layer))?.get(self.place.neuron)?) / 255.0)
        };
        match token.patch {
            _ if !fired => {}
            Some(_) => self.fired_patches += 1,
            None => *self.fired_at.entry(token.token).or_default() += 1,
        }
        self.series.push_back(if fired { strength().unwrap_or(1.0) } else { 0.0 });
        self.words.push_back(token.token);
        self.patches.push_back(token.patch);
        if self.series.len() > MOST_TOKENS {
            self.series.pop_front();
            self.words.pop_front();
            self.patches.pop_front();
        }
    }

    /// The ids of the `count` tokens of the text at which the neuron fired most often, with their
    /// counts, in descending order.
    pub fn top(&self, count: usize) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = self.fired_at.iter().map(|(token, times)| (*token, *times)).collect();
        all.sort_unstable_by_key(|(token, times)| (std::cmp::Reverse(*times), *token));
        all.truncate(count);
        all
    }
}

/// The pinned neurons.
#[derive(Debug, Default)]
pub struct Pins {
    /// All pins in the order of pinning.
    pub all: Vec<Pin>,
    /// The neuron whose firings tint the chat's words.
    tinting: Option<NeuronIndex>,
}

impl Pins {
    /// Pins a neuron and lets it tint the chat's words, or unpins it. A new pin starts with the
    /// tokens that the board still has. `false` if there are too many pins.
    pub fn toggle(&mut self, board: &NeuronBoard, place: NeuronIndex) -> bool {
        let before = self.all.len();
        self.all.retain(|pin| pin.place != place);
        if self.all.len() < before {
            return true;
        }
        if before >= MOST_PINS {
            return false;
        }
        self.all.push(Pin::new(board.shape(), place));
        self.tinting = Some(place);
        self.update(board);
        true
    }

    /// Adds the new tokens of the board.
    pub fn update(&mut self, board: &NeuronBoard) {
        let Some(next) = self.all.iter().map(|pin| pin.next).min() else { return };
        if board.latest().is_none_or(|token| token.index < next) {
            return;
        }
        for token in board.tokens(next..u64::MAX) {
            for pin in self.all.iter_mut().filter(|pin| pin.next <= token.index) {
                pin.see(board.shape(), &token);
            }
        }
    }

    /// Starts or stops tinting the chat's words by a pinned neuron's firings.
    pub fn toggle_tint(&mut self, place: NeuronIndex) {
        self.tinting = Some(place).filter(|_| self.tinting != Some(place));
    }

    /// The pinned neuron that tints the chat's words.
    pub fn tinting(&self) -> Option<&Pin> {
        self.all.iter().find(|pin| self.tinting == Some(pin.place))
    }

    /// A pinned neuron whose words are not known yet.
    pub fn unread(&self) -> Option<NeuronIndex> {
        self.all.iter().find(|pin| pin.lens == Lens::Unknown).map(|pin| pin.place)
    }

    /// The pin of the neuron at `place`.
    pub fn at(&mut self, place: NeuronIndex) -> Option<&mut Pin> {
        self.all.iter_mut().find(|pin| pin.place == place)
    }

    /// The places of all pinned neurons.
    pub fn places(&self) -> Vec<NeuronIndex> {
        self.all.iter().map(|pin| pin.place).collect()
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::LayerFiring;

    use super::*;

    #[test]
    fn pinned_neuron_has_the_tokens_it_fired_at() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32, 32]));
        let mut fire = |position: usize, token, fired| {
            recorder.begin(0, position, &[token], true);
            for layer in 0..2 {
                recorder.layer(&LayerFiring { layer, tokens: 1, fired: &[fired], ..LayerFiring::default() });
            }
            recorder.end();
        };
        fire(0, 7, 0b10);
        fire(1, 8, 0b01);
        let mut pins = Pins::default();
        let of = |layer, neuron| NeuronIndex { layer, neuron };
        assert!(pins.toggle(&board, of(1, 1)));
        assert_eq!(pins.tinting().map(|pin| pin.place), Some(of(1, 1)), "at once");
        fire(2, 9, 0b10);
        fire(3, 7, 0b11);
        pins.update(&board);
        assert!(pins.toggle(&board, of(0, 0)));
        pins.update(&board);
        assert_eq!(pins.all[0].series, [1.0, 0.0, 1.0, 1.0]);
        assert_eq!(pins.all[1].series, [0.0, 1.0, 0.0, 1.0]);
        assert_eq!((pins.all[0].top(1), pins.all[0].top(9)), (vec![(7, 2)], vec![(7, 2), (9, 1)]));
        assert_eq!(pins.places(), [of(1, 1), of(0, 0)]);
        assert_eq!(pins.all[0].words, [7, 8, 9, 7]);
        assert_eq!(pins.tinting().map(|pin| pin.place), Some(of(0, 0)), "the last one that was pinned");
        pins.toggle_tint(of(1, 1));
        assert_eq!(pins.tinting().map(|pin| pin.place), Some(of(1, 1)));
        assert!(pins.toggle(&board, of(1, 1)) && pins.places() == [of(0, 0)]);
        assert!(pins.tinting().is_none() && pins.at(of(1, 1)).is_none(), "it was let go");
        assert_eq!(pins.unread(), Some(of(0, 0)));
        pins.at(of(0, 0)).unwrap().lens = Lens::Failed("no model".to_owned());
        assert_eq!((pins.unread(), &pins.all[0].lens), (None, &Lens::Failed("no model".to_owned())));
        assert!((1..MOST_PINS).all(|at| pins.toggle(&board, of(0, at))) && !pins.toggle(&board, of(0, 30)));
    }
}
