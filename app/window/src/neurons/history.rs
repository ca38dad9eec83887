//! Statistics of the latest tokens.

use std::collections::VecDeque;

use thermocline_engine::telemetry::neurons::{LayerTrace, MOST_TOKENS, NeuronBoard};

/// Statistics of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenSample {
    /// Index of the token on the board.
    pub index: u64,
    /// Tokens per second when the token was recorded. `None` for prompt tokens and for tokens
    /// before the window opened.
    pub rate: Option<f64>,
    /// Sum over all layers.
    pub total: LayerTrace,
}

impl TokenSample {
    /// Percentage of the firings in hot neurons. `None` if nothing fired.
    pub fn hits(&self) -> Option<f64> {
        (self.total.fired > 0).then(|| 100.0 * f64::from(self.total.hot) / f64::from(self.total.fired))
    }
}

/// The samples, oldest first.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<TokenSample>,
    next: u64,
}

impl History {
    /// Adds the new tokens of `board`. `rate` is the current speed in tokens per second.
    pub fn update(&mut self, board: &NeuronBoard, rate: f64) {
        if board.latest().is_none_or(|token| token.index < self.next) {
            return;
        }
        let first = self.samples.is_empty();
        for token in board.tokens(self.next..u64::MAX) {
            self.next = token.index + 1;
            let rate = (token.decoded && !first && rate > 0.0).then_some(rate);
            self.samples.push_back(TokenSample { index: token.index, rate, total: token.total() });
        }
        while self.samples.len() > MOST_TOKENS {
            self.samples.pop_front();
        }
    }

    /// The values of `of`, as points over the tokens' indices.
    pub fn points(&self, of: impl Fn(&TokenSample) -> Option<f64>) -> Vec<[f64; 2]> {
        self.samples.iter().filter_map(|sample| Some([sample.index as f64, of(sample)?])).collect()
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronShape};

    use super::*;

    #[test]
    fn history_has_one_sample_per_token() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let mut history = History::default();
        history.update(&board, 1.0);
        assert!(history.samples.is_empty());
        let mut fire = |position, fired| {
            recorder.begin(0, position, &[1], true);
            recorder.layer(&LayerFiring { tokens: 1, fired: &[fired], hot: Some(&[1]), ..LayerFiring::default() });
            recorder.end();
        };
        fire(0, 3);
        fire(1, 0);
        history.update(&board, 10.0);
        history.update(&board, 10.0);
        fire(2, 1);
        history.update(&board, 20.0);
        assert_eq!(history.points(TokenSample::hits), [[0.0, 50.0], [2.0, 100.0]]);
        assert_eq!(history.points(|sample| sample.rate), [[2.0, 20.0]]);
        (3..1100).for_each(|position| fire(position, 1));
        history.update(&board, 20.0);
        assert_eq!((history.samples.len(), history.samples[0].index), (1000, 100));
    }
}
