//! Generated routes with the locality of published routes.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{RouteLayer, Routes};
use thermocline_base::error::{Error, Result};

/// How choices depend on earlier choices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Locality {
    /// Fraction of choices by recency. The other choices are by frequency.
    pub recency: f64,
    /// Scale of the distance `d` of a choice by recency, in the order of last use: `P(d > n) = (1 +
    /// n / scale)^-tail`.
    pub scale: f64,
    /// Exponent of the same distribution.
    pub tail: f64,
    /// Exponent of the frequencies: the expert of rank `r` is chosen in proportion to `r^-skew`
    /// (Zipf).
    pub skew: f64,
}

impl Default for Locality {
    /// For 512 experts with 10 per token, the latest 64 experts hold 67 % of the choices and the
    /// latest 128 hold 81 %. A static set of 32 holds about 10 %.
    fn default() -> Self {
        Locality { recency: 0.98, scale: 33.0, tail: 1.12, skew: 0.6 }
    }
}

/// Generates routes of `tokens` tokens through `layers` equal layers. Each layer has its own
/// frequencies and order.
///
/// # Errors
/// [`Error::Invalid`] for figures out of range, as [`Routes::new`].
pub fn synthetic(
    layer: RouteLayer,
    layers: usize,
    other_bytes: u64,
    tokens: usize,
    locality: Locality,
    seed: u64,
) -> Result<Routes> {
    let Locality { recency, scale, tail, skew } = locality;
    if !((0.0..=1.0).contains(&recency) && scale > 0.0 && tail > 0.0 && (0.0..10.0).contains(&skew)) {
        return Err(Error::invalid(
            "locality of routes",
            "fractions from 0 to 1 and factors above 0",
            format!("{locality:?}"),
        ));
    }
    let source = format!("synthetic: {} of {} experts", layer.used, layer.experts);
    let alike = (0..layers).map(|at| RouteLayer { layer: at, ..layer }).collect();
    let mut routes = Routes::new(source, alike, other_bytes)?;
    for at in 0..layers {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(at as u64);
        let shuffled = |rng: &mut ChaCha8Rng| {
            let mut all: Vec<usize> = (0..layer.experts).collect();
            (1..all.len()).rev().for_each(|at| all.swap(at, rng.random_range(0..=at)));
            all
        };
        let (by_rank, mut by_use) = (shuffled(&mut rng), shuffled(&mut rng));
        let mut sums: Vec<f64> = (0..layer.experts).map(|rank| (rank as f64 + 1.0).powf(-skew)).collect();
        (1..sums.len()).for_each(|rank| sums[rank] += sums[rank - 1]);
        let all = sums.last().copied().unwrap_or(1.0);
        for _ in 0..tokens {
            let mut chosen = Vec::with_capacity(layer.used);
            while chosen.len() < layer.used {
                let expert = if rng.random::<f64>() < recency {
                    let far = scale * ((1.0 - rng.random::<f64>()).powf(-1.0 / tail) - 1.0);
                    // Distances beyond the last expert select any expert.
                    let place =
                        if far < layer.experts as f64 { far as usize } else { rng.random_range(0..layer.experts) };
                    by_use[place]
                } else {
                    let place = rng.random::<f64>() * all;
                    by_rank[sums.partition_point(|sum| *sum < place).min(layer.experts - 1)]
                };
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            by_use.retain(|expert| !chosen.contains(expert));
            drop(by_use.splice(0..0, chosen.iter().copied()));
            routes.push(at, &chosen);
        }
    }
    Ok(routes)
}
