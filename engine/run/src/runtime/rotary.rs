//! Frequencies of the rotary embedding: from a model's base and scaling to radians per position.

use thermocline_cpu::ops::RopeTable;
use thermocline_model::{ModelConfig, Position, Rope, RopeOrder, RopeScaling};

/// The rotations of a model's layers for a context length: one table per entry of
/// [`ModelConfig::ropes`].
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    tables: Vec<RopeTable>,
}

impl Rotary {
    /// Makes the tables for contexts of `context` tokens. Returns `None` if the model's positions
    /// are learned.
    pub fn new(config: &ModelConfig, context: usize) -> Option<Self> {
        if config.position != Position::Rotary {
            return None;
        }
        Some(Rotary { tables: config.ropes.iter().map(|rope| table(rope, context)).collect() })
    }

    /// The tables.
    pub fn tables(&self) -> &[RopeTable] {
        &self.tables
    }
}

fn table(rope: &Rope, context: usize) -> RopeTable {
    let dims = rope.dims as f64;
    let base = f64::from(rope.base) * base_growth(rope, context);
    let plain = (0..rope.dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims));
    let (frequencies, magnitude) = match &rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => (plain.map(|f| f / f64::from(*factor)).collect(), 1.0),
        RopeScaling::Factors { short, long, original_context, attention_factor } => {
            let factors = long.as_ref().filter(|_| context > *original_context).unwrap_or(short);
            (plain.zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect(), *attention_factor)
        }
        RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow, truncate } => {
            // Dimension that makes `rotations` full rotations over the original context.
            let dimension = |rotations: f32| {
                let period = *original_context as f64 / (f64::from(rotations) * std::f64::consts::TAU);
                dims * period.ln() / (2.0 * base.ln())
            };
            let (low, high) = (dimension(*beta_fast), dimension(*beta_slow));
            let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(dims - 1.0));
            // Below 0 if even the slowest dimension makes too few rotations. The reference then
            // interpolates no dimension.
            let span = if high == low { 0.001 } else { high - low };
            let blend = |(i, f): (usize, f64)| {
                let interpolated = ((i as f64 - low) / span).clamp(0.0, 1.0);
                f / f64::from(*factor) * interpolated + f * (1.0 - interpolated)
            };
            (plain.enumerate().map(blend).collect(), *attention_factor)
        }
    };
    let axis = |pair| rope.sections.map(|sections| sections.axis(pair));
    let axes = (0..rope.dims / 2).map_while(axis).collect();
    RopeTable { frequencies, axes, magnitude, interleaved: rope.order == RopeOrder::Normal }
}

/// Factor on the base of the frequencies in a context of `context` tokens.
fn base_growth(rope: &Rope, context: usize) -> f64 {
    let RopeScaling::Dynamic { factor, original_context } = rope.scaling else { return 1.0 };
    if context <= original_context || rope.dims <= 2 {
        return 1.0;
    }
    let (factor, dims) = (f64::from(factor), rope.dims as f64);
    let grown = factor * context as f64 / original_context.max(1) as f64 - (factor - 1.0);
    grown.max(1.0).powf(dims / (dims - 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { dims: 8, base: 10_000.0, order: RopeOrder::NeoX, scaling, sections: None }
    }

    fn frequencies(scaling: RopeScaling, context: usize) -> Vec<f64> {
        table(&rope(scaling), context).frequencies
    }

    fn close(got: &[f64], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-9 * wanted.abs().max(1e-3), "{got} {wanted}");
        }
    }

    #[test]
    fn frequencies_without_scaling_and_with_linear_scaling() {
        close(&frequencies(RopeScaling::None, 1), &[1.0, 0.1, 0.01, 0.001]);
        close(&frequencies(RopeScaling::Linear { factor: 4.0 }, 1), &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn dynamic_scaling_raises_the_base_beyond_the_trained_length() {
        let scaling = RopeScaling::Dynamic { factor: 4.0, original_context: 100 };
        close(&frequencies(scaling.clone(), 100), &[1.0, 0.1, 0.01, 0.001]);
        // (4 * 150 / 100 - 3)^(8 / 6) times the base.
        let base = 10_000.0 * 3f64.powf(8.0 / 6.0);
        close(&frequencies(scaling, 150), &[1.0, base.powf(-0.25), base.powf(-0.5), base.powf(-0.75)]);
    }

    #[test]
    fn long_factors_are_for_long_contexts() {
        let scaling = RopeScaling::Factors {
            short: vec![1.0, 1.0, 1.0, 2.0],
            long: Some(vec![1.0, 2.0, 4.0, 8.0]),
            original_context: 100,
            attention_factor: 1.5,
        };
        close(&frequencies(scaling.clone(), 100), &[1.0, 0.1, 0.01, 0.0005]);
        close(&frequencies(scaling, 101), &[1.0, 0.05, 0.0025, 0.000125]);
    }

    #[test]
    fn yarn_keeps_fast_dimensions_and_interpolates_slow_ones() {
        let scaling = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            attention_factor: 1.1386,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
        };
        // 8 ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 1.31, 8 ln(4096 / (2 pi)) / (2 ln 10000) =
        // 2.81: low 1, high 3.
        close(&frequencies(scaling(true), 1), &[1.0, 0.1, 0.01 * (0.5 + 0.5 / 4.0), 0.001 / 4.0]);
        let (low, high) = (1.309_030, 2.814_180);
        let kept = |at: f64| 1.0 - (at - low) / (high - low);
        let got = frequencies(scaling(false), 1);
        assert!((got[2] - 0.01 * (kept(2.0) + (1.0 - kept(2.0)) / 4.0)).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn yarn_of_a_context_shorter_than_a_turn_interpolates_nothing() {
        let scaling = |truncate| RopeScaling::Yarn {
            factor: 40.0,
            original_context: 8,
            attention_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 2.0,
            truncate,
        };
        // 8 ln(8 / (2 * 2 pi)) / (2 ln 10000) = -0.196, rounded up to 0. Every dimension except the
        // first is interpolated.
        close(&frequencies(scaling(false), 1), &[1.0, 0.1, 0.01, 0.001]);
        close(&frequencies(scaling(true), 1), &[1.0, 0.1 / 40.0, 0.01 / 40.0, 0.001 / 40.0]);
    }
}
