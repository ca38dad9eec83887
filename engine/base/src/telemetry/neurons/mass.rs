//! Firings of neurons that are never exactly zero. The fewest neurons that hold a given fraction of
//! a layer's output mass fire.
//!
//! The mass of neuron `i` for a token is `|hidden_i| * norm_i`. `norm_i` is the Euclidean norm of
//! the neuron's down column. The mass is the largest change of the layer's output that the neuron
//! can cause. Without norms every norm counts as 1.

/// Low bits of a magnitude that its bin number omits. The exponent and three bits of the fraction
/// remain, so that values in a bin differ by at most an eighth.
const LEFT_OUT: u32 = 20;

/// Number of bins for all positive floats.
const BINS: usize = 1 << (31 - LEFT_OUT);

/// Selects neurons by mass, in time proportional to their number. Its buffers grow to the largest
/// chunk and are kept.
#[derive(Debug, Default)]
pub struct MassSelection {
    mass: Vec<f32>,
    bins: Vec<f64>,
    /// Neurons of the bin that contains the threshold.
    edge: Vec<u32>,
    mask: Vec<u32>,
}

impl MassSelection {
    /// Returns the mask, `[tokens, n_ff.div_ceil(32)]`, of the fewest neurons of each token that
    /// hold `fraction` of its mass. `hidden` is `[tokens, n_ff]`, `norms` is `[n_ff]` or empty.
    /// Values that are not finite have no mass.
    pub fn select(&mut self, hidden: &[f32], norms: &[f32], n_ff: usize, fraction: f32) -> &[u32] {
        let words = n_ff.div_ceil(32);
        self.mask.clear();
        self.mask.resize(hidden.len() / n_ff.max(1) * words, 0);
        let mut masks = std::mem::take(&mut self.mask);
        for (row, mask) in hidden.chunks_exact(n_ff.max(1)).zip(masks.chunks_exact_mut(words.max(1))) {
            self.select_of_token(row, norms, fraction, mask);
        }
        self.mask = masks;
        &self.mask
    }

    fn select_of_token(&mut self, hidden: &[f32], norms: &[f32], fraction: f32, mask: &mut [u32]) {
        let finite = |mass: f32| if mass.is_finite() { mass } else { 0.0 };
        self.mass.clear();
        match norms.len() == hidden.len() {
            true => self.mass.extend(hidden.iter().zip(norms).map(|(hidden, norm)| finite(hidden.abs() * norm))),
            false => self.mass.extend(hidden.iter().map(|hidden| finite(hidden.abs()))),
        }
        self.bins.clear();
        self.bins.resize(BINS, 0.0);
        let bin = |mass: f32| (mass.to_bits() >> LEFT_OUT) as usize;
        for mass in &self.mass {
            self.bins[bin(*mass)] += f64::from(*mass);
        }
        let total: f64 = self.bins.iter().sum();
        let mut missing = f64::from(fraction) * total;
        if total <= 0.0 || missing <= 0.0 {
            return;
        }
        let mut edge = 0;
        for (at, bin) in self.bins.iter().enumerate().rev() {
            if *bin >= missing {
                edge = at;
                break;
            }
            missing -= bin;
        }
        self.edge.clear();
        for (neuron, mass) in self.mass.iter().enumerate().filter(|(_, mass)| **mass > 0.0) {
            match bin(*mass) {
                at if at > edge => insert(mask, neuron),
                at if at == edge => self.edge.push(neuron as u32),
                _ => {}
            }
        }
        let all = &self.mass;
        let mass = |neuron: u32| all[neuron as usize];
        self.edge.sort_unstable_by(|a, b| mass(*b).total_cmp(&mass(*a)).then(a.cmp(b)));
        for neuron in &self.edge {
            if missing <= 0.0 {
                break;
            }
            missing -= f64::from(mass(*neuron));
            insert(mask, *neuron as usize);
        }
    }
}

fn insert(mask: &mut [u32], neuron: usize) {
    if let Some(word) = mask.get_mut(neuron / 32) {
        *word |= 1 << (neuron % 32);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::noise, *};

    /// Reference selection that sorts all neurons.
    fn sorted(mass: &[f32], fraction: f32) -> Vec<u32> {
        let mut order: Vec<usize> = (0..mass.len()).filter(|at| mass[*at] > 0.0).collect();
        order.sort_by(|a, b| mass[*b].total_cmp(&mass[*a]).then(a.cmp(b)));
        let mut missing = f64::from(fraction) * mass.iter().map(|mass| f64::from(*mass)).sum::<f64>();
        let mut mask = vec![0; mass.len().div_ceil(32)];
        for at in order {
            if missing <= 1e-9 {
                break;
            }
            missing -= f64::from(mass[at]);
            insert(&mut mask, at);
        }
        mask
    }

    #[test]
    fn mass_selection_matches_a_sort_of_all_neurons() {
        let mut seed = 3u64;
        let mut noise = || (noise(&mut seed) >> 8) as f32 / (1u64 << 24) as f32;
        let mut selection = MassSelection::default();
        for (n_ff, fraction) in [(1, 0.9), (31, 0.5), (64, 0.9), (1000, 0.9), (1000, 0.99), (333, 0.1)] {
            // Integers, so that no sum depends on its order. Some neurons are a thousand times as
            // strong as others.
            let hidden: Vec<f32> = (0..2 * n_ff)
                .map(|at| ((noise() - 0.5) * 64.0).round() * if at % 7 == 0 { 1024.0 } else { 1.0 })
                .collect();
            let norms: Vec<f32> = (0..n_ff).map(|at| (1 + at % 3) as f32).collect();
            for norms in [&norms[..], &[]] {
                let got = selection.select(&hidden, norms, n_ff, fraction).to_vec();
                for (row, got) in hidden.chunks(n_ff).zip(got.chunks(n_ff.div_ceil(32))) {
                    let norm = |at: usize| norms.get(at).copied().unwrap_or(1.0);
                    let mass: Vec<f32> = row.iter().enumerate().map(|(at, value)| value.abs() * norm(at)).collect();
                    assert_eq!(got, sorted(&mass, fraction), "{n_ff} {fraction}");
                }
            }
        }
    }

    #[test]
    fn mass_selection_ignores_what_is_no_number_and_selects_nothing_of_nothing() {
        let mut selection = MassSelection::default();
        assert_eq!(selection.select(&[f32::NAN, -4.0, f32::INFINITY, 1.0], &[], 4, 0.7), [0b0010]);
        assert_eq!(selection.select(&[0.0; 40], &[], 40, 0.9), [0, 0]);
        assert_eq!(selection.select(&[1.0, 2.0], &[], 2, 0.0), [0]);
        assert_eq!(selection.select(&[], &[], 0, 0.9), [0u32; 0]);
        assert_eq!(selection.select(&[1.0, 2.0, 1e-3], &[], 3, 1.0), [0b111]);
    }
}
