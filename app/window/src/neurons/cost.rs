//! The measured cost of recording, as text. Only this model on this machine counts.

use thermocline_engine::telemetry::neurons::{NeuronBoard, Pace, Watch};

use super::facts::percent;

/// Minimum number of tokens for a measurement.
const ENOUGH: u64 = 8;

/// A sentence about the cost of recording at the level `watch`.
pub fn sentence(board: &NeuronBoard, watch: Watch) -> String {
    let pace = |watch| board.pace(watch).filter(|pace| pace.tokens >= ENOUGH);
    words(pace(watch), pace(Watch::Off))
}

fn words(with: Option<Pace>, without: Option<Pace>) -> String {
    match (with, without) {
        (Some(with), Some(without)) => {
            let [with, without] = [with.rate, without.rate].map(rate);
            format!("Measured with the last answers: {with} tokens/s with recording, {without} without.")
        }
        (Some(with), None) => {
            let (spent, token) = (time(with.recording), time(1.0 / with.rate));
            let fraction = percent(with.recording * with.rate);
            format!(
                "Recording takes {spent} of a token's {token} ({fraction}). Speed without recording: not measured yet."
            )
        }
        (None, Some(without)) => {
            format!("{} tokens/s without recording. With recording: not measured yet.", rate(without.rate))
        }
        (None, None) => "The cost of recording is not measured yet.".to_owned(),
    }
}

/// Formats a rate with three digits.
fn rate(rate: f64) -> String {
    match rate {
        r if r < 9.995 => format!("{r:.2}"),
        r if r < 99.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thermocline_engine::telemetry::neurons::NeuronShape;

    use super::*;

    #[test]
    fn cost_sentence_names_measured_rates_only() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let mut decode = |watch, count, micros| {
            board.set_watch(watch);
            for position in 0..count {
                recorder.begin(0, position, &[1], true);
                recorder.end();
                recorder.decoded(Duration::from_micros(micros));
            }
        };
        let say = |watch| sentence(&board, watch);
        decode(Watch::Firing, 7, 8_000);
        assert_eq!(say(Watch::Firing), "The cost of recording is not measured yet.");
        decode(Watch::Firing, 1, 8_000);
        let one = say(Watch::Firing);
        assert!(one.contains("of a token's 8.0 ms") && one.ends_with("without recording: not measured yet."), "{one}");
        decode(Watch::Off, 8, 7_813);
        let both = "Measured with the last answers: 125 tokens/s with recording, 128 without.";
        assert_eq!(say(Watch::Firing), both);
        assert_eq!(say(Watch::Strength), "128 tokens/s without recording. With recording: not measured yet.");
    }

    #[test]
    fn rates_and_times_have_three_significant_digits() {
        let pace = Pace { tokens: 9, rate: 2.0, recording: 0.000_25 };
        let slow = words(Some(pace), None);
        assert!(slow.starts_with("Recording takes 250 µs of a token's 500.0 ms (under 0.1 %)."), "{slow}");
        assert_eq!([0.123, 9.99, 12.34, 123.4].map(rate), ["0.12", "9.99", "12.3", "123"]);
        assert_eq!([0.000_031, 0.0123, 2.0].map(time), ["31 µs", "12.3 ms", "2.0 s"]);
    }
}
