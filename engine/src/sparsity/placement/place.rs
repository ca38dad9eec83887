//! The answer: where everything is.

use std::{fmt, str::FromStr};

use super::{demand::Demand, solve::usable};
use crate::{
    error::{Error, Result},
    model::{Resident, mask},
};

/// In what pieces a model is placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Neuron by neuron: the hot ones of many layers.
    #[default]
    Neurons,
    /// Layer by layer, the last ones with all they have, as programs do that know no neurons: to compare with.
    Layers,
}

impl Granularity {
    /// Both.
    pub const ALL: [Granularity; 2] = [Granularity::Neurons, Granularity::Layers];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Granularity::Neurons => "neurons",
            Granularity::Layers => "layers",
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

/// What is resident in VRAM. Whatever is not is computed by the CPU, which keeps all weights in RAM anyway.
///
/// Resident layers are the last ones: the residual stream then crosses the bus once, where it changes sides, in place of the
/// embedding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Layers from this one on have their attention, norms, keys and values, and predictor in VRAM; those before are the
    /// CPU's altogether.
    pub first_resident: usize,
    /// Per layer: its neurons in VRAM, hottest first (experts, where the FFN is a mixture); empty below `first_resident`. All
    /// of them: no hand-over.
    pub hot: Vec<Vec<u32>>,
    /// Whether the final norm and the head are in VRAM; they are only where the last layer is.
    pub head: bool,
}

impl Placement {
    /// Nothing resident.
    pub fn cpu(n_layer: usize) -> Self {
        Placement { first_resident: n_layer, hot: vec![Vec::new(); n_layer], head: false }
    }

    /// Everything resident.
    pub fn all(demand: &Demand) -> Self {
        let hot = demand.layers.iter().map(|layer| layer.order.clone()).collect();
        Placement { first_resident: 0, hot, head: !demand.layers.is_empty() }
    }

    /// What is on a device now.
    pub fn of(resident: &Resident, demand: &Demand) -> Self {
        let layers = demand.layers.iter().enumerate();
        let hot = layers.map(|(at, layer)| {
            layer.order.iter().copied().filter(|neuron| resident.is_hot(at, *neuron as usize)).collect()
        });
        let hot = hot.collect();
        Placement { first_resident: resident.first_layer, hot, head: resident.head }.within(demand)
    }

    /// As many of the last layers as `budget` has room for with all they have, then the head.
    pub fn of_layers(demand: &Demand, budget: u64) -> Self {
        let mut placement = Placement::cpu(demand.layers.len());
        let mut left = usable(budget).saturating_sub(demand.scratch + demand.staging);
        for (at, layer) in demand.layers.iter().enumerate().rev() {
            let bytes = layer.base() + layer.neurons() as u64 * layer.neuron;
            let Some(rest) = left.checked_sub(bytes) else { return placement };
            left = rest;
            placement.first_resident = at;
            placement.hot[at].clone_from(&layer.order);
        }
        placement.head = left >= demand.head.bytes() && !demand.layers.is_empty();
        placement
    }

    /// Bytes it takes on a device.
    pub(super) fn bytes(&self, demand: &Demand) -> u64 {
        if self.first_resident >= demand.layers.len() {
            return 0;
        }
        let layers = demand.layers.iter().zip(&self.hot).skip(self.first_resident);
        let layers: u64 = layers.map(|(layer, hot)| layer.base() + hot.len() as u64 * layer.neuron).sum();
        demand.scratch + demand.staging + layers + if self.head { demand.head.bytes() } else { 0 }
    }

    /// The same without what `budget` has no room for: neurons, those that fire least first; then the head; then layers, from the
    /// first on.
    #[must_use]
    pub fn fitting(mut self, demand: &Demand, budget: u64) -> Self {
        let mut over = self.bytes(demand).saturating_sub(usable(budget));
        let mut coldest = Vec::new();
        for (at, (layer, hot)) in demand.layers.iter().zip(&self.hot).enumerate() {
            let mut frequency = vec![0.0; layer.neurons()];
            layer.order.iter().zip(&layer.frequency).for_each(|(neuron, fires)| frequency[*neuron as usize] = *fires);
            coldest.extend(hot.iter().map(|neuron| (frequency[*neuron as usize], at, *neuron)));
        }
        coldest.sort_by(|a, b| a.0.total_cmp(&b.0).then((b.1, b.2).cmp(&(a.1, a.2))));
        let mut gone: Vec<Vec<bool>> = demand.layers.iter().map(|layer| vec![false; layer.neurons()]).collect();
        for (_, at, neuron) in coldest {
            if over == 0 {
                break;
            }
            gone[at][neuron as usize] = true;
            over = over.saturating_sub(demand.layers[at].neuron);
        }
        self.hot.iter_mut().zip(gone).for_each(|(hot, gone)| hot.retain(|neuron| !gone[*neuron as usize]));
        if over > 0 && self.head {
            self.head = false;
            over = over.saturating_sub(demand.head.bytes());
        }
        while over > 0 && self.first_resident < demand.layers.len() {
            over = over.saturating_sub(demand.layers[self.first_resident].base());
            self.first_resident += 1;
        }
        self
    }

    /// The same, possible for this model: without neurons it has not, named once, none of them hot below the first resident
    /// layer, and no head without a layer.
    pub fn within(mut self, demand: &Demand) -> Self {
        self.first_resident = self.first_resident.min(demand.layers.len());
        self.head &= self.first_resident < demand.layers.len();
        self.hot.resize(demand.layers.len(), Vec::new());
        for (at, (hot, layer)) in self.hot.iter_mut().zip(&demand.layers).enumerate() {
            if at < self.first_resident {
                hot.clear();
            }
            if layer.order.starts_with(hot) {
                continue;
            }
            let mut seen = vec![false; layer.neurons()];
            hot.retain(|neuron| seen.get_mut(*neuron as usize).is_some_and(|seen| !std::mem::replace(seen, true)));
        }
        self
    }

    /// Bytes of weights, keys and values that come to the device, and that leave it, on the way here from `now`. The placement
    /// is one of this model ([`Placement::within`]).
    pub fn moves(&self, demand: &Demand, now: Option<&Resident>) -> (u64, u64) {
        let nothing = Resident { first_layer: usize::MAX, ..Resident::default() };
        let now = now.unwrap_or(&nothing);
        let (mut arriving, mut leaving) = (0, 0);
        let mut moves = |bytes: u64, before: bool, after: bool| match (before, after) {
            (false, true) => arriving += bytes,
            (true, false) => leaving += bytes,
            _ => {}
        };
        moves(demand.head.matrix + demand.head.vectors, now.head, self.head);
        for (at, (layer, hot)) in demand.layers.iter().zip(&self.hot).enumerate() {
            moves(layer.base(), at >= now.first_layer, at >= self.first_resident);
            let mut after = vec![0; mask::words(layer.neurons())];
            hot.iter().for_each(|neuron| mask::insert(&mut after, *neuron as usize));
            let mut before = now.hot.get(at).cloned().unwrap_or_default();
            before.resize(after.len(), 0);
            let only = |here: &[u32], there: &[u32]| -> u64 {
                here.iter().zip(there).map(|(here, there)| u64::from((here & !there).count_ones())).sum()
            };
            moves(layer.neuron * only(&after, &before), false, true);
            moves(layer.neuron * only(&before, &after), true, false);
        }
        (arriving, leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            BLOCK, Skips,
            tests::{demand, layer},
        },
        *,
    };

    #[test]
    fn whole_layers_from_the_last_on() {
        const MIB: u64 = 1 << 20;
        let layers = (0..5).map(|_| layer(3 * BLOCK, 4608, 30 * MIB, Skips::Silent, |at| 1.0 / (at + 1) as f32));
        let demand = demand(layers.collect(), 40 * MIB, 20 * MIB);
        let one = demand.layers[0].base() + demand.layers[0].neurons() as u64 * demand.layers[0].neuron;
        let head = demand.head.matrix + demand.head.vectors + demand.head.scratch;
        let mut counts = [0; 7];
        for budget in (0..400).map(|mib| mib * MIB) {
            let placement = Placement::of_layers(&demand, budget);
            let n = 5 - placement.first_resident;
            assert_eq!(placement, placement.clone().within(&demand));
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
            // Every other neuron, the last named first.
            let mut every = Placement::all(&demand);
            every.hot.iter_mut().for_each(|hot| *hot = hot.iter().copied().filter(|it| it % 2 == 1).rev().collect());
            let kept = every.clone().fitting(&demand, budget);
            assert!(kept.first_resident == 5 || kept.bytes(&demand) <= usable(budget), "{budget}");
            // What fires more stays longer, and the order is the one it came in.
            for (kept, all) in kept.hot.iter().zip(&every.hot) {
                assert!(all.ends_with(kept), "{budget}: {kept:?}");
            }
            let now = (5 - kept.first_resident, kept.head, kept.hot.iter().map(Vec::len).sum::<usize>());
            assert!(now >= last, "a larger budget keeps no less: {last:?}, {now:?}");
            assert!(now.2 == 0 || kept.head, "the head goes after the neurons");
            last = now;
        }
        assert_eq!(last, (5, true, 5 * 3 * BLOCK / 2));
        assert_eq!("layers".parse::<Granularity>().unwrap(), Granularity::Layers);
        assert!("rows".parse::<Granularity>().is_err());
    }
}
