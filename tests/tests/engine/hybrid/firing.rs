//! Reports on neurons that fire.

use super::*;

/// Layer and tokens of what was told, the mask of neurons that fired, and the predicted mask.
pub(super) type Told = (usize, usize, Vec<u32>, Option<Vec<u32>>);

/// Report on each layer.
#[derive(Default)]
pub(super) struct Heard(Vec<Told>);

impl Probe for Heard {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let predicted = firing.predicted.map(<[u32]>::to_vec);
        self.0.push((firing.layer, firing.tokens, firing.fired.to_vec(), predicted));
    }
}

impl Heard {
    /// Neurons that fired, or were predicted to, here or there alone.
    pub(super) fn differences(&self, other: &Heard) -> u32 {
        assert_eq!(self.0.len(), other.0.len());
        let pairs = self.0.iter().zip(&other.0);
        pairs
            .map(|(a, b)| {
                assert_eq!((a.0, a.1, a.2.len(), a.3.is_some()), (b.0, b.1, b.2.len(), b.3.is_some()));
                let words = |heard: &(usize, usize, Vec<u32>, Option<Vec<u32>>)| {
                    heard.2.iter().chain(heard.3.iter().flatten()).copied().collect::<Vec<u32>>()
                };
                words(a).iter().zip(words(b)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
            })
            .sum()
    }
}

#[test]
fn placements_do_not_change_firings() {
    let gpu = shared(FULL);
    let model = model(POWERINFER);
    let ids = ids(&model, 40);
    for mode in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted] {
        let hear = |forward: &mut Forward| {
            forward.set_sparsity(mode);
            let mut heard = Heard::default();
            let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
            forward.run(&ids[..33], &mut kv, Outputs::None, &mut heard).unwrap();
            for id in &ids[33..39] {
                forward.top(&[*id], &mut kv, 4, &mut heard).unwrap();
            }
            forward.run(&ids[39..], &mut kv, Outputs::Last, &mut heard).unwrap();
            heard
        };
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = hear(&mut scalar);
        for (what, placement) in placements(&model, 4) {
            // Of 60,000: those a rounding away from zero.
            let differ = hear(&mut hybrid(gpu, &model, &placement, 16)).differences(&wanted);
            assert!(differ <= 4, "{mode} {what}: {differ} neurons differ");
        }
    }
}
