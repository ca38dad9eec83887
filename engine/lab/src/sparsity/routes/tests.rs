//! Replays of generated routes with the locality of published routes.

use super::*;
use crate::sparsity::migration::{FollowOptions, Follower};
use thermocline_base::{error::Error, telemetry::neurons::LayerFiring};
use thermocline_run::placement::Placement;

const SPEEDS: ExpertSpeeds = ExpertSpeeds { device: 240e9, cpu: 36e9, bus: 20e9, hand_over: 60e-6 };
const LAYER: RouteLayer = RouteLayer { layer: 0, experts: 512, used: 10, bytes: 2 << 20 };

fn made(locality: Locality) -> Routes {
    synthetic(LAYER, 2, 20 << 20, 1600, locality, 7).unwrap()
}

/// Returns the hit rate. The bus is so fast that every miss is fetched, so only the policy matters.
fn hit_rate(routes: &Routes, slots: usize, policy: Policy) -> f64 {
    let fast = ExpertSpeeds { bus: 1e15, device: 1e15, ..SPEEDS };
    replay(routes, slots, policy, &fast).unwrap().hit_rate
}

#[test]
fn synthetic_routes_have_the_published_locality() {
    let routes = made(Locality::default());
    let (lru, fixed) = (|slots| hit_rate(&routes, slots, Policy::Lru), hit_rate(&routes, 32, Policy::Static));
    assert!((lru(64) - 0.67).abs() < 0.04, "{}", lru(64));
    assert!((lru(128) - 0.81).abs() < 0.04, "{}", lru(128));
    assert!((0.06..0.16).contains(&fixed), "{fixed}");
    let other = synthetic(LAYER, 2, 20 << 20, 1600, Locality::default(), 8).unwrap();
    assert!(other != routes && made(Locality::default()) == routes);
}

/// Routes may repeat recent experts, follow frequencies, or both. At every size, the engine's
/// policy reaches 95 % of the best policy's predicted speed.
#[test]
fn adaptive_policy_is_within_five_percent_of_the_best() {
    let localities = [
        Locality::default(),
        Locality { recency: 0.0, skew: 1.0, ..Locality::default() },
        Locality { recency: 0.5, skew: 1.0, ..Locality::default() },
        Locality { recency: 0.8, skew: 1.3, scale: 12.0, ..Locality::default() },
    ];
    for locality in localities {
        let routes = made(locality);
        for slots in [32, 64, 128, 256] {
            let of = |policy| replay(&routes, slots, policy, &SPEEDS).unwrap();
            let adaptive = of(Policy::Adaptive);
            let best =
                Policy::ALL.map(of).into_iter().max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
            let best = best.unwrap();
            let ratio = adaptive.tokens_per_second / best.tokens_per_second;
            assert!(ratio >= 0.95, "{locality:?} {slots}: {ratio:.3} of {}", best.policy);
        }
    }
}

/// The number of fetched misses gives the shortest time of all divisions between fetching and
/// computing.
#[test]
fn misses_are_fetched_where_that_is_quicker() {
    let bytes = 2e6;
    for (bus, cpu) in [(20e9, 36e9), (60e9, 20e9), (1e9, 50e9), (1e12, 1e9)] {
        let speeds = ExpertSpeeds { bus, cpu, ..SPEEDS };
        for (hits, misses) in [(0, 8), (4, 4), (7, 1), (8, 0)] {
            let fetched = speeds.fetches(bytes, hits, misses);
            let seconds = |fetched| speeds.layer(bytes, hits, fetched, misses - fetched);
            assert!((0..=misses).all(|other| seconds(fetched) <= seconds(other)), "{bus} {cpu} {hits} {misses}");
        }
        assert_eq!(speeds.fetches(bytes, 8, 0), 0);
    }
    let (slow, fast) = (ExpertSpeeds { bus: 1e9, ..SPEEDS }, ExpertSpeeds { bus: 1e12, cpu: 1e9, ..SPEEDS });
    assert_eq!((slow.fetches(bytes, 4, 4), fast.fetches(bytes, 4, 4)), (0, 4));
}

#[test]
fn caches_of_every_expert_hit_and_larger_ones_hit_more() {
    let routes = made(Locality::default());
    for policy in Policy::ALL {
        let rates: Vec<f64> = [16, 64, 256, 512].map(|slots| hit_rate(&routes, slots, policy)).to_vec();
        assert!(rates.windows(2).all(|pair| pair[0] <= pair[1] + 1e-3), "{policy}: {rates:?}");
        assert!(rates[3] > 0.99, "{policy}: {rates:?}");
    }
    let small = |slots| replay(&routes, slots, Policy::Adaptive, &SPEEDS).unwrap().too_small;
    assert_eq!([0, 29, 30, 512].map(small), [true, true, false, false]);
    let whole = replay(&routes, 9999, Policy::Lru, &SPEEDS).unwrap();
    assert_eq!((whole.bytes, whole.too_small), (2 * 512 * LAYER.bytes, false));
}

#[test]
fn routes_round_trip_through_their_file_and_damage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("some.routes");
    let layer = RouteLayer { experts: 40, used: 3, ..LAYER };
    let routes = synthetic(layer, 3, 123, 20, Locality::default(), 1).unwrap();
    routes.write(&path).unwrap();
    assert_eq!(Routes::read(&path).unwrap(), routes);
    let whole = std::fs::read(&path).unwrap();
    let damaged = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = Routes::read(&path).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    damaged(&whole[..whole.len() - 1], "20 tokens");
    damaged(b"", "line of JSON");
    damaged(b"{\"thermocline_routes\":1}\n", "line of JSON");
    damaged(&[&whole[..], &[0, 0]].concat(), "20 tokens");
    let mut other = whole.clone();
    let end = other.len();
    other[end - 1] = 0xff;
    damaged(&other, "below 40");
    assert!(matches!(Routes::read(&folder.path().join("absent")), Err(Error::Io { .. })));
    for bad in
        [RouteLayer { used: 0, ..layer }, RouteLayer { used: 41, ..layer }, RouteLayer { experts: 70000, ..layer }]
    {
        assert!(Routes::new("bad", vec![bad], 0).is_err());
    }
}

/// The hot set of a running engine moves a limited number of bytes per token. It still hits nearly
/// as often as a cache that admits every miss, and more often than a hot set chosen by frequency.
#[test]
fn hot_set_of_experts_follows_recent_routes() {
    let (layers, slots) = (4, 128);
    let routes = synthetic(LAYER, layers, 0, 1600, Locality::default(), 7).unwrap();
    let shape: Vec<(usize, u64, Option<&[f32]>)> = vec![(LAYER.experts, LAYER.bytes, None); layers];
    let options = FollowOptions { expert_bytes_per_token: 8 * LAYER.bytes, ..FollowOptions::default() };
    let mut follower = Follower::with_layers(&shape, options);
    (0..layers).for_each(|at| follower.follow_experts(at, None));
    let mut placement = Placement { hot: vec![(0..slots as u32).collect(); layers], ..Placement::default() };
    let (mut hits, mut all) = (0, 0);
    for token in 0..routes.tokens() {
        for layer in 0..layers {
            let mut fired = vec![0; LAYER.experts.div_ceil(32)];
            for expert in routes.chosen(layer, token) {
                fired[usize::from(*expert) / 32] |= 1 << (expert % 32);
                if token >= routes.tokens() / 4 {
                    all += 1;
                    hits += usize::from(placement.hot[layer].contains(&u32::from(*expert)));
                }
            }
            follower.add_firing(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
        }
        follower.add_tokens(1);
        if let Some(revised) = follower.revise(&placement) {
            placement = revised;
        }
    }
    let moved = follower.moved() / routes.tokens() as u64;
    assert!(moved <= options.expert_bytes_per_token, "{moved} bytes per token");
    let (got, every_miss) = (f64::from(hits as u32) / f64::from(all), hit_rate(&routes, slots, Policy::Adaptive));
    let by_frequency = hit_rate(&routes, slots, Policy::Static);
    assert!(got > 0.9 * every_miss && got > 1.5 * by_frequency, "{got}: {every_miss}, {by_frequency}");
}
