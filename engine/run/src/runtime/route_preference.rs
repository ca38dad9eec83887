//! Routers that prefer resident experts. Fewer chosen experts are then missing, and answers change.
//!
//! Let `z` be the values by which a router chooses, and `D` the mean of `max z - min z` over the
//! tokens decoded so far. The router first takes the experts with the largest `z`
//! ([`always_taken`]). It takes the others by `z + near * D` if they are resident, and by `z` if
//! they are not. The router weights are computed from the scores, which do not change (Cache-Prior,
//! arXiv 2412.00099).

use std::{fmt, str::FromStr};

use super::Pass;
use thermocline_base::error::{Error, Result};
use thermocline_model::{Model, mask};

/// How far routers prefer resident experts while tokens are decoded. Prompts are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RoutePreference {
    /// Fraction of the mean range of a router's values that is added to the value of a resident
    /// expert.
    pub near: f32,
    /// A chosen expert that is not resident is left out if its weight is below this fraction of an
    /// equal share (`1 / k` of `k` experts). The other experts keep their weights. Experts that are
    /// always taken are never left out.
    pub drop: f32,
    /// True if the range of each token takes the place of the mean range. An answer then depends
    /// only on its seed and on the resident experts, and not on earlier answers.
    pub frozen: bool,
}

impl RoutePreference {
    /// The preference with which routers choose as without one.
    pub const OFF: RoutePreference = RoutePreference { near: 0.0, drop: 0.0, frozen: false };
    /// Largest value of `near` and of `drop`.
    pub const MOST: f32 = 10.0;

    /// True if routes are exact.
    pub fn is_off(&self) -> bool {
        self.near == 0.0 && self.drop == 0.0
    }

    /// Checks that `model` has experts to prefer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it has none and routes are not exact.
    pub fn check(&self, model: &Model) -> Result<()> {
        if self.is_off() || model.config.experts.is_some() {
            return Ok(());
        }
        let got = format!("{}, which has no experts", model.checkpoint.path.display());
        Err(Error::unsupported("--routes near or drop", got, "a mixture of experts"))
    }
}

impl fmt::Display for RoutePreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "near={},drop={}", self.near, self.drop)
    }
}

impl FromStr for RoutePreference {
    type Err = Error;

    /// Reads `near=L,drop=F`, of which one may be missing, or `exact`.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            let expected =
                format!("exact, or near=L,drop=F with numbers from 0 to {}, like near=0.1,drop=0.5", Self::MOST);
            Error::invalid("routes", expected, text)
        };
        let mut preference = RoutePreference::OFF;
        if text == "exact" {
            return Ok(preference);
        }
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(refuse)?;
            let value: f32 = value.parse().map_err(|_| refuse())?;
            if !(0.0..=Self::MOST).contains(&value) {
                return Err(refuse());
            }
            match name.trim() {
                "near" => preference.near = value,
                "drop" => preference.drop = value,
                _ => return Err(refuse()),
            }
        }
        Ok(preference)
    }
}

/// Returns how many of a token's `used` experts the router takes without regard to residency.
pub fn always_taken(used: usize) -> usize {
    if used <= 4 { 1 } else { 2 }
}

/// The experts that are resident for a processor on the CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HeldExperts {
    /// All experts are in RAM, and there is no device.
    #[default]
    All,
    /// No expert, because resident experts are on a device.
    None,
    /// The masks of the experts in the faster memory, per layer, `[words(experts)]`.
    Masks(Vec<Vec<u32>>),
}

/// Mean range of the values of one layer's router.
#[derive(Debug, Clone, Copy, Default)]
struct RangeMean {
    mean: f32,
    tokens: u32,
}

/// Tokens after which a mean range forgets earlier tokens.
const MOST_TOKENS: u32 = 1024;

impl RangeMean {
    fn add(&mut self, range: f32) {
        if range.is_finite() {
            self.tokens = (self.tokens + 1).min(MOST_TOKENS);
            self.mean += (range - self.mean) / self.tokens as f32;
        }
    }
}

/// What the router of one layer adds and leaves out in one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPreference<'a> {
    /// The router adds this number to the values of resident experts.
    pub lift: f32,
    /// The router also adds this fraction of the range of the token's own values.
    pub own: f32,
    /// Router weight below which a chosen expert that is not resident is left out.
    pub weakest: f32,
    /// Number of experts that the router takes without regard to residency.
    pub always: usize,
    /// Mask of the resident experts.
    pub resident: &'a [u32],
}

impl LayerPreference<'_> {
    /// True if the chosen expert of rank `rank` is left out.
    pub fn drops(&self, rank: usize, expert: usize, router_weight: f32) -> bool {
        rank >= self.always && router_weight < self.weakest && !mask::contains(self.resident, expert)
    }
}

/// The state of a processor's preference: resident experts, and mean ranges of all layers.
#[derive(Debug, Default)]
pub(crate) struct LayerPreferences {
    pub held: HeldExperts,
    means: Vec<RangeMean>,
}

impl LayerPreferences {
    /// The preference of `layer` in this pass, with the experts that the CPU holds. `None` if
    /// routes are exact.
    pub fn of<'a>(&'a self, pass: &Pass<'_>, layer: usize) -> Option<LayerPreference<'a>> {
        let resident = match &self.held {
            HeldExperts::All => return None,
            HeldExperts::None => &[],
            HeldExperts::Masks(masks) => masks.get(layer)?.as_slice(),
        };
        self.with_resident(pass, layer, resident)
    }

    /// The preference of `layer` in this pass for the experts `resident`. `None` if routes are
    /// exact.
    pub fn with_resident<'a>(&self, pass: &Pass<'_>, layer: usize, resident: &'a [u32]) -> Option<LayerPreference<'a>> {
        let experts = pass.model.config.experts.as_ref().filter(|_| !pass.routes.is_off())?;
        if (0..experts.count).all(|expert| mask::contains(resident, expert)) {
            return None;
        }
        let mean = self.means.get(layer).copied().unwrap_or_default().mean;
        Some(LayerPreference {
            lift: if pass.routes.frozen { 0.0 } else { pass.routes.near * mean },
            own: if pass.routes.frozen { pass.routes.near } else { 0.0 },
            weakest: pass.routes.drop / experts.used.max(1) as f32 * experts.router.scale,
            always: always_taken(experts.used).min(experts.used),
            resident,
        })
    }

    /// Adds the ranges of the values of `layer`'s router for the tokens of this pass.
    pub fn add_ranges(&mut self, pass: &Pass<'_>, layer: usize, ranges: &[f32]) {
        if pass.routes.is_off() || pass.routes.frozen {
            return;
        }
        if self.means.len() <= layer {
            self.means.resize(layer + 1, RangeMean::default());
        }
        ranges.iter().for_each(|range| self.means[layer].add(*range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_are_read_as_they_are_shown() {
        let of = |near, drop| RoutePreference { near, drop, frozen: false };
        for (text, wanted) in [
            ("exact", of(0.0, 0.0)),
            ("near=0.1,drop=0.5", of(0.1, 0.5)),
            ("drop=1", of(0.0, 1.0)),
            ("near=2", of(2.0, 0.0)),
        ] {
            let read: RoutePreference = text.parse().unwrap();
            assert_eq!((read, read.is_off()), (wanted, text == "exact"));
            assert_eq!(read.to_string().parse::<RoutePreference>().unwrap(), wanted);
        }
        for bad in ["", "near", "near=x", "near=-1", "near=NaN", "drop=11", "far=1", "near=0.1;drop=1"] {
            let told = bad.parse::<RoutePreference>().unwrap_err().to_string();
            assert!(told.contains("near=0.1,drop=0.5"), "{bad}: {told}");
        }
    }

    #[test]
    fn mean_ranges_forget_slowly_and_skip_what_is_not_a_number() {
        let mut mean = RangeMean::default();
        [2.0, 4.0, f32::NAN, f32::INFINITY].into_iter().for_each(|range| mean.add(range));
        assert_eq!((mean.mean, mean.tokens), (3.0, 2));
        (0..20_000).for_each(|_| mean.add(9.0));
        assert!((mean.mean - 9.0).abs() < 1e-3, "{}", mean.mean);
    }

    #[test]
    fn weak_experts_are_dropped_unless_they_are_resident_or_always_taken() {
        let of = |resident| LayerPreference { lift: 0.0, own: 0.0, weakest: 0.25, always: 1, resident };
        let drops = |rank, expert, weight| of(&[0b100]).drops(rank, expert, weight);
        assert_eq!(
            [drops(0, 1, 0.1), drops(1, 1, 0.1), drops(1, 1, 0.25), drops(1, 2, 0.1)],
            [false, true, false, false]
        );
        assert_eq!([1, 4, 5, 8].map(always_taken), [1, 1, 2, 2]);
    }
}
