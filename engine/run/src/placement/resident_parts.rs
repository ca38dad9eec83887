//! The parts of a model that are to be in a device's memory.

use std::{fmt, str::FromStr};

use super::{CostProfile, usable};
use thermocline_base::error::{Error, Result};
use thermocline_model::{Resident, mask};

/// The pieces in which a model is placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Neuron by neuron: the hot neurons of many layers.
    #[default]
    Neurons,
    /// Layer by layer, the last layers whole, like programs that do not split layers; for
    /// comparison.
    Layers,
    /// All attention, and the neurons of any layer that fire most often, whatever time they save.
    /// This is PowerInfer's rule, for comparison.
    Frequency,
}

impl Granularity {
    /// All granularities.
    pub const ALL: [Granularity; 3] = [Granularity::Neurons, Granularity::Layers, Granularity::Frequency];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Granularity::Neurons => "neurons",
            Granularity::Layers => "layers",
            Granularity::Frequency => "frequency",
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Granularity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Granularity::ALL.into_iter().find(|pieces| pieces.name() == text);
        known.ok_or_else(|| Error::invalid("placement", Granularity::ALL.map(Granularity::name).join(", "), text))
    }
}

/// The parts of a model that are to be resident in VRAM. The CPU computes the others, and has all
/// weights in RAM anyway.
///
/// The resident layers are the last ones. The residual stream then crosses the bus once, where the
/// computation changes sides, instead of the embedding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// First layer whose attention, norms, keys, values and predictor are in VRAM. All later
    /// layers' are in VRAM too, and the CPU computes all earlier layers.
    pub first_resident: usize,
    /// For each layer, its units in VRAM (neurons, or experts in an MoE layer), hottest first;
    /// empty below `first_resident`. A layer with all its units in VRAM needs no hand-over.
    pub hot: Vec<Vec<u32>>,
    /// True if the final norm and the head are in VRAM, which requires that the last layer is.
    pub head: bool,
}

impl Placement {
    /// Nothing resident, for a model of `n_layer` layers.
    pub fn cpu(n_layer: usize) -> Self {
        Placement { first_resident: n_layer, hot: vec![Vec::new(); n_layer], head: false }
    }

    /// Everything resident.
    pub fn all(profile: &CostProfile) -> Self {
        let hot = profile.layers.iter().map(|layer| layer.order.clone()).collect();
        Placement { first_resident: 0, hot, head: !profile.layers.is_empty() }
    }

    /// The placement that the parts `resident` now correspond to.
    pub fn from_resident(resident: &Resident, profile: &CostProfile) -> Self {
        let layers = profile.layers.iter().enumerate();
        let hot = layers.map(|(at, layer)| {
            layer.order.iter().copied().filter(|unit| resident.is_hot(at, *unit as usize)).collect()
        });
        let hot = hot.collect();
        Placement { first_resident: resident.first_layer, hot, head: resident.head }.valid_for(profile)
    }

    /// As many whole layers as fit into `budget` bytes, from the last one down, and then the head.
    pub fn whole_layers(profile: &CostProfile, budget: u64) -> Self {
        let mut placement = Placement::cpu(profile.layers.len());
        let mut left = usable(budget).saturating_sub(profile.scratch + profile.staging);
        for (at, layer) in profile.layers.iter().enumerate().rev() {
            let bytes = layer.whole();
            let Some(rest) = left.checked_sub(bytes) else { return placement };
            left = rest;
            placement.first_resident = at;
            placement.hot[at].clone_from(&layer.order);
        }
        placement.head = left >= profile.head.bytes() && !profile.layers.is_empty();
        placement
    }

    /// True if any layer is resident.
    pub fn any_resident(&self) -> bool {
        self.first_resident < self.hot.len()
    }

    /// Device bytes.
    pub(super) fn bytes(&self, profile: &CostProfile) -> u64 {
        if !self.any_resident() {
            return 0;
        }
        let layers = profile.layers.iter().zip(&self.hot).skip(self.first_resident);
        let layers: u64 = layers.map(|(layer, hot)| layer.base() + layer.hot_bytes(hot.len())).sum();
        profile.scratch + profile.staging + layers + if self.head { profile.head.bytes() } else { 0 }
    }

    /// Removes parts until the rest fits in `budget`: first units, least often firing first; then
    /// the head; then layers, from the first resident one.
    #[must_use]
    pub fn fitting(mut self, profile: &CostProfile, budget: u64) -> Self {
        let mut over = self.bytes(profile).saturating_sub(usable(budget));
        let mut coldest = Vec::new();
        for (at, (layer, hot)) in profile.layers.iter().zip(&self.hot).enumerate() {
            let mut frequency = vec![0.0; layer.units()];
            layer.order.iter().zip(&layer.frequency).for_each(|(unit, fires)| frequency[*unit as usize] = *fires);
            coldest.extend(hot.iter().map(|unit| (frequency[*unit as usize], at, *unit)));
        }
        coldest.sort_by(|a, b| a.0.total_cmp(&b.0).then((b.1, b.2).cmp(&(a.1, a.2))));
        let mut left: Vec<usize> = self.hot.iter().map(Vec::len).collect();
        let mut gone: Vec<Vec<bool>> = profile.layers.iter().map(|layer| vec![false; layer.units()]).collect();
        for (_, at, unit) in coldest {
            if over == 0 {
                break;
            }
            gone[at][unit as usize] = true;
            let (layer, before) = (&profile.layers[at], left[at]);
            left[at] -= 1;
            over = over.saturating_sub(layer.hot_bytes(before) - layer.hot_bytes(left[at]));
        }
        self.hot.iter_mut().zip(gone).for_each(|(hot, gone)| hot.retain(|unit| !gone[*unit as usize]));
        if over > 0 && self.head {
            self.head = false;
            over = over.saturating_sub(profile.head.bytes());
        }
        while over > 0 && self.first_resident < profile.layers.len() {
            over = over.saturating_sub(profile.layers[self.first_resident].base());
            self.first_resident += 1;
        }
        self
    }

    /// Makes the placement valid for this model. Removes unknown and repeated units, hot units
    /// below the first resident layer, and a head without a resident layer.
    pub fn valid_for(mut self, profile: &CostProfile) -> Self {
        self.first_resident = self.first_resident.min(profile.layers.len());
        self.head &= self.first_resident < profile.layers.len();
        self.hot.resize(profile.layers.len(), Vec::new());
        for (at, (hot, layer)) in self.hot.iter_mut().zip(&profile.layers).enumerate() {
            if at < self.first_resident {
                hot.clear();
            }
            if layer.order.starts_with(hot) {
                continue;
            }
            let mut seen = vec![false; layer.units()];
            hot.retain(|unit| seen.get_mut(*unit as usize).is_some_and(|seen| !std::mem::replace(seen, true)));
        }
        self
    }

    /// Bytes of weights, keys and values to upload, and to free, from `now` (`None`: nothing
    /// resident) to this placement. The placement must be valid for the model
    /// ([`Placement::valid_for`]).
    pub fn moves(&self, profile: &CostProfile, now: Option<&Resident>) -> (u64, u64) {
        let nothing = Resident { first_layer: usize::MAX, ..Resident::default() };
        let now = now.unwrap_or(&nothing);
        let (mut arriving, mut leaving) = (0, 0);
        let mut moves = |bytes: u64, before: bool, after: bool| match (before, after) {
            (false, true) => arriving += bytes,
            (true, false) => leaving += bytes,
            _ => {}
        };
        moves(profile.head.matrix + profile.head.vectors, now.head, self.head);
        for (at, (layer, hot)) in profile.layers.iter().zip(&self.hot).enumerate() {
            moves(layer.base(), at >= now.first_layer, at >= self.first_resident);
            let mut after = vec![0; mask::words(layer.units())];
            hot.iter().for_each(|unit| mask::insert(&mut after, *unit as usize));
            let mut before = now.hot.get(at).cloned().unwrap_or_default();
            before.resize(after.len(), 0);
            let only = |here: &[u32], there: &[u32]| -> u64 {
                here.iter().zip(there).map(|(here, there)| u64::from((here & !there).count_ones())).sum()
            };
            moves(layer.unit * only(&after, &before), false, true);
            moves(layer.unit * only(&before, &after), true, false);
        }
        (arriving, leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{
        BLOCK, SkippedRows,
        tests::{layer, profile},
    };

    #[test]
    fn placements_of_whole_layers_and_fitting_ones_grow_with_the_budget() {
        const MIB: u64 = 1 << 20;
        let layers = (0..5).map(|_| layer(3 * BLOCK, 4608, 30 * MIB, SkippedRows::Silent, |at| 1.0 / (at + 1) as f32));
        let profile = profile(layers.collect(), 40 * MIB, 20 * MIB);
        let one = profile.layers[0].whole();
        let head = profile.head.bytes();
        let mut counts = [0; 7];
        for budget in (0..400).map(|mib| mib * MIB) {
            let placement = Placement::whole_layers(&profile, budget);
            let n = 5 - placement.first_resident;
            assert_eq!(placement, placement.clone().valid_for(&profile));
            assert!((0..5).all(|at| placement.hot[at].len() == if at < 5 - n { 0 } else { 3 * BLOCK }));
            let takes = 20 * MIB + n as u64 * one + if placement.head { head } else { 0 };
            assert!(n == 0 || takes <= usable(budget), "{n} layers in {budget}");
            let next = if n < 5 { one } else { head };
            assert!(placement.head || takes + next > usable(budget), "no more than {n} layers in {budget}");
            assert!(!placement.head || n == 5);
            counts[n + usize::from(placement.head)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        let mut last = (0, false, 0);
        for budget in (0..400).map(|mib| mib * MIB) {
            // Every second unit, the last one first.
            let mut every = Placement::all(&profile);
            every.hot.iter_mut().for_each(|hot| *hot = hot.iter().copied().filter(|it| it % 2 == 1).rev().collect());
            let kept = every.clone().fitting(&profile, budget);
            assert!(kept.first_resident == 5 || kept.bytes(&profile) <= usable(budget), "{budget}");
            // The order of units is preserved.
            for (kept, all) in kept.hot.iter().zip(&every.hot) {
                assert!(all.ends_with(kept), "{budget}: {kept:?}");
            }
            let now = (5 - kept.first_resident, kept.head, kept.hot.iter().map(Vec::len).sum::<usize>());
            assert!(now >= last, "a larger budget keeps no less: {last:?}, {now:?}");
            assert!(now.2 == 0 || kept.head, "the head goes after the units");
            last = now;
        }
        assert_eq!(last, (5, true, 5 * 3 * BLOCK / 2));
        assert_eq!("layers".parse::<Granularity>().unwrap(), Granularity::Layers);
        assert!("rows".parse::<Granularity>().is_err());
    }
}
