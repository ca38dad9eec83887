//! Tests of adaptive placement on a synthetic text that changes its topic.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::*;
use thermocline_base::telemetry::neurons::LayerFiring;
use thermocline_run::placement::Placement;

const NEURONS: usize = 1024;
const HOT: usize = 256;
const LAYERS: usize = 4;
const BYTES: u64 = 6 << 10;

/// Firing frequencies per layer, `[neurons]`: a power law over the neurons, in an order specific to
/// the topic.
struct Topic(Vec<Vec<f32>>);

impl Topic {
    /// Creates a topic that shares its 64 most frequent neurons with all other topics.
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let layer = |_| {
            let mut own: Vec<usize> = (64..NEURONS).collect();
            own.shuffle(&mut rng);
            let mut frequency = vec![0.0; NEURONS];
            for (rank, neuron) in (0..64).chain(own).enumerate() {
                frequency[neuron] = 0.9 / (1.0 + rank as f32 / 40.0).powf(1.5);
            }
            frequency
        };
        Topic((0..LAYERS).map(layer).collect())
    }

    fn token(&self, layer: usize, rng: &mut StdRng) -> Vec<u32> {
        let mut fired = vec![0; NEURONS / 32];
        for (neuron, frequency) in self.0[layer].iter().enumerate() {
            fired[neuron / 32] |= u32::from(rng.random::<f32>() < *frequency) << (neuron % 32);
        }
        fired
    }

    fn hottest(&self) -> Placement {
        let hot = self.0.iter().map(|frequency| {
            let mut order: Vec<u32> = (0..NEURONS as u32).collect();
            order.sort_by(|a, b| frequency[*b as usize].total_cmp(&frequency[*a as usize]));
            order[..HOT].to_vec()
        });
        Placement { hot: hot.collect(), ..Placement::default() }
    }

    /// Returns the expected fraction of firings that hit `placement`.
    fn hit_rate(&self, placement: &Placement) -> f32 {
        let all: f32 = self.0.iter().flatten().sum();
        let hit = |(frequency, hot): (&Vec<f32>, &Vec<u32>)| hot.iter().map(|n| frequency[*n as usize]).sum::<f32>();
        self.0.iter().zip(&placement.hot).map(hit).sum::<f32>() / all
    }
}

/// A follower and its placement while texts are read.
struct Run {
    follower: Follower,
    placement: Placement,
    rng: StdRng,
    /// Exchanges per layer that made each neuron hot, `[neurons]`.
    came: Vec<Vec<u32>>,
}

impl Run {
    fn new(topic: &Topic, options: FollowOptions) -> Self {
        let layers: Vec<_> = topic.0.iter().map(|frequency| (NEURONS, BYTES, Some(&frequency[..]))).collect();
        Run {
            follower: Follower::with_layers(&layers, options),
            placement: topic.hottest(),
            rng: StdRng::seed_from_u64(1),
            came: vec![vec![0; NEURONS]; LAYERS],
        }
    }

    /// Reads `tokens` tokens and returns how many neurons were exchanged at each token.
    fn read(&mut self, topic: &Topic, tokens: usize) -> Vec<usize> {
        let token = |_| {
            for layer in 0..LAYERS {
                let fired = topic.token(layer, &mut self.rng);
                self.follower.add_firing(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
            }
            self.follower.add_tokens(1, Duration::ZERO);
            let Some(revised) = self.follower.revise(&self.placement) else { return 0 };
            let mut exchanged = 0;
            for (layer, (old, new)) in self.placement.hot.iter().zip(&revised.hot).enumerate() {
                assert_eq!(old.len(), new.len());
                let (mut a, mut b) = (old.clone(), new.clone());
                a.sort_unstable();
                b.sort_unstable();
                b.dedup();
                assert_eq!(b.len(), HOT, "a neuron is hot twice");
                for came in b.iter().filter(|neuron| a.binary_search(neuron).is_err()) {
                    self.came[layer][*came as usize] += 1;
                    exchanged += 1;
                }
            }
            self.placement = revised;
            exchanged
        };
        (0..tokens).map(token).collect()
    }
}

#[test]
fn hot_set_follows_a_change_of_topic_within_its_bytes() {
    let (before, after) = (Topic::new(1), Topic::new(2));
    let options = FollowOptions { bytes_per_token: 8 * BYTES, ..FollowOptions::default() };
    let mut run = Run::new(&before, options);
    let best = before.hit_rate(&before.hottest());
    let calm: usize = run.read(&before, 600).iter().sum();
    assert!(calm < LAYERS * HOT / 50, "{calm} exchanges without a reason");
    assert!(before.hit_rate(&run.placement) > best - 0.01);

    let stale = after.hit_rate(&run.placement);
    assert!(stale < best - 0.2, "the topics are too much alike: {stale} of {best}");
    let moved = run.read(&after, 400);
    let recovered = after.hit_rate(&run.placement);
    assert!(recovered > best - 0.2 * (best - stale), "{stale} -> {recovered} of {best}");

    // The moved bytes never exceed the accrued bytes, including the content of the bucket.
    for (at, _) in moved.iter().enumerate() {
        for length in [1, 10, 100] {
            let some: usize = moved[at..moved.len().min(at + length)].iter().sum();
            assert!(some as u64 * BYTES <= options.bytes_per_token * (16 + length as u64), "{some} in {length} tokens");
        }
    }
    let all: usize = moved.iter().sum();
    assert!(all > 50 && run.follower.moved() == (calm + all) as u64 * BYTES);
}

#[test]
fn exchanges_of_a_stationary_text_do_not_oscillate() {
    let topic = Topic::new(3);
    let mut run = Run::new(&topic, FollowOptions::default());
    let moved: usize = run.read(&topic, 4000).iter().sum();
    let most = run.came.iter().flatten().max().copied().unwrap_or(0);
    assert!(moved < 4000 / 10 && most <= 6, "{moved} exchanges, one neuron came {most} times");
}

/// In an MoE layer, the chosen experts count, not the neurons that fire in them. Enough bytes
/// accrue for an expert that is larger than the usual burst.
#[test]
fn experts_are_exchanged_by_how_often_they_are_chosen() {
    const BYTES: u64 = 50_000;
    let options = FollowOptions { bytes_per_token: 1000, ..FollowOptions::default() };
    let mut follower = Follower::with_layers(&[(4, BYTES, Some(&[0.5; 4]))], options);
    let mut placement = Placement { hot: vec![vec![0, 1]], ..Placement::default() };
    let mut came = Vec::new();
    for token in 1..=400 {
        let (fired, chosen) = (&[u32::MAX; 9][..], Some(&[0b1100][..]));
        follower.add_firing(&LayerFiring { layer: 0, tokens: 1, fired, chosen, ..LayerFiring::default() });
        follower.add_tokens(1, Duration::ZERO);
        if let Some(revised) = follower.revise(&placement) {
            came.push(token);
            placement = revised;
        }
    }
    placement.hot[0].sort_unstable();
    assert_eq!((&placement.hot[0][..], follower.moved()), (&[2, 3][..], 2 * BYTES));
    assert!(came.len() == 2 && came[0] >= 50 && came[1] >= came[0] + 50, "as tokens have accrued it: {came:?}");
}

#[test]
fn budget_of_zero_bytes_moves_nothing() {
    let (before, after) = (Topic::new(1), Topic::new(2));
    let mut run = Run::new(&before, FollowOptions { bytes_per_token: 0, ..FollowOptions::default() });
    assert_eq!(run.read(&after, 300).iter().sum::<usize>(), 0);
    assert_eq!(run.follower.moved(), 0);
}

#[test]
fn recall_checks_take_turns_and_correct_each_layer_alone() {
    let topic = Topic::new(1);
    let mut run = Run::new(&topic, FollowOptions::default());
    let mut checks = [0; LAYERS];
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..400 {
        let correction = run.follower.threshold_correction();
        assert_eq!(correction.shift.len(), LAYERS);
        let Some(layer) = correction.recall_check else { panic!("no layer is checked") };
        checks[layer] += 1;
        let fired = topic.token(layer, &mut rng);
        // The predictor of layer 0 misses half of the firings, the other predictors miss none.
        let predicted: Vec<u32> =
            fired.iter().map(|bits| if layer == 0 { bits & 0x5555_5555 } else { *bits }).collect();
        let (fired, predicted) = (&fired[..], Some(&predicted[..]));
        run.follower.add_firing(&LayerFiring {
            layer,
            tokens: 1,
            fired,
            predicted,
            complete: true,
            ..LayerFiring::default()
        });
    }
    assert_eq!(checks, [100; LAYERS]);
    let shift = run.follower.threshold_correction().shift;
    assert!(shift[0] < 0.0 && shift[1..].iter().all(|shift| *shift > 0.0), "{shift:?}");
    assert!(run.follower.recall(0).is_some_and(|found| (found - 0.5).abs() < 0.1));
    assert_eq!(run.follower.recall(1), Some(1.0));
}

#[test]
fn firings_of_other_shapes_are_ignored() {
    let mut follower = Follower::with_layers(&[(64, 10, None), (0, 0, None)], FollowOptions::default());
    for (layer, tokens, fired) in [(0, 2, &[1, 2][..]), (1, 1, &[1]), (7, 1, &[1, 2]), (0, 1, &[])] {
        follower.add_firing(&LayerFiring { layer, tokens, fired, complete: true, ..LayerFiring::default() });
    }
    follower.add_tokens(1, Duration::ZERO);
    assert_eq!(follower.revise(&Placement::default()), None);
    assert_eq!(follower.revise(&Placement::cpu(9)), None);
}
