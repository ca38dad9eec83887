//! Replays of generated routes with the locality of published routes.

use super::{replay::ChosenSplit, *};
use thermocline_base::error::Error;

const SPEEDS: ExpertSpeeds = ExpertSpeeds { device: 240e9, cpu: 36e9, bus: 20e9, hand_over: 60e-6 };
const LAYER: RouteLayer = RouteLayer { layer: 0, experts: 512, used: 10, bytes: 2 << 20 };

fn made(locality: Locality) -> Routes {
    synthetic(LAYER, 2, 20 << 20, 1600, locality, 7).unwrap()
}

/// Returns the hit rate. The bus is so fast that every miss is fetched and every exchange is
/// allowed, so only the policy matters.
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

fn of_skew(skew: f64) -> Locality {
    Locality { recency: 0.0, skew, ..Locality::default() }
}

/// Routes may repeat recent experts, follow frequencies, or both. With a bus that is fast enough
/// for every exchange, the engine's scores reach 95 % of the hits of the best policy.
#[test]
fn scores_of_the_engine_are_within_five_percent_of_the_best_policy() {
    let localities = [
        Locality::default(),
        of_skew(1.0),
        Locality { recency: 0.5, skew: 1.0, ..Locality::default() },
        Locality { recency: 0.8, skew: 1.3, scale: 12.0, ..Locality::default() },
    ];
    for locality in localities {
        let routes = made(locality);
        for slots in [32, 64, 128, 256] {
            let engine = hit_rate(&routes, slots, Policy::Engine);
            let best = [Policy::Static, Policy::Lru, Policy::Lfu(16.0), Policy::Lfu(64.0), Policy::Lfu(256.0)]
                .map(|policy| hit_rate(&routes, slots, policy))
                .into_iter()
                .fold(0.0, f64::max);
            assert!(engine >= 0.95 * best, "{locality:?} {slots}: {engine:.3} of {best:.3}");
        }
    }
}

/// No policy hits more often than Belady's bound.
#[test]
fn bound_is_above_every_policy() {
    let routes = made(Locality::default());
    for slots in [9, 26, 51, 128, 256] {
        let bound = hit_rate(&routes, slots, Policy::Bound);
        for policy in Policy::ALL {
            assert!(hit_rate(&routes, slots, policy) <= bound + 1e-9, "{policy} in {slots} of {bound}");
        }
    }
}

/// With fewer slots than a token has experts, least recently used experts replace each other before
/// they are used again. The engine then keeps frequent experts and moves almost nothing.
#[test]
fn fewer_slots_than_experts_of_a_token_do_not_thrash() {
    let k = LAYER.used;
    let routes = made(Locality { recency: 0.5, skew: 1.3, ..Locality::default() });
    let of = |slots, policy| replay(&routes, slots, policy, &SPEEDS).unwrap();
    for slots in [k - 1, k, k + 1] {
        let (fixed, engine) = (of(slots, Policy::Static), of(slots, Policy::Engine));
        assert!(engine.hit_rate >= 0.9 * fixed.hit_rate, "{slots}: {engine:?}, {fixed:?}");
        assert!(engine.fetched <= 2.0, "{slots}: {engine:?}");
    }
    assert!(of(k - 1, Policy::Engine).fetched < 0.1, "{:?}", of(k - 1, Policy::Engine));
    let mut alternating = Routes::new("two groups in turn", vec![LAYER; 2], 0).unwrap();
    for token in 0..400 {
        let group: Vec<usize> = (0..k).map(|expert| expert + token % 2 * k).collect();
        (0..2).for_each(|at| alternating.push(at, &group));
    }
    for slots in [k - 1, k, k + 1] {
        let engine = replay(&alternating, slots, Policy::Engine, &SPEEDS).unwrap();
        let lru = hit_rate(&alternating, slots, Policy::Lru);
        assert!(lru < 0.11 && engine.hit_rate > 0.44, "{slots}: {lru}, {engine:?}");
        assert!(engine.fetched < 0.1, "{slots}: {engine:?}");
    }
}

/// Routes by frequency alone need no moves. Routes that repeat recent experts do.
#[test]
fn verdict_depends_on_the_routes() {
    let verdict = |routes: &Routes| {
        let sizes = [51, 128, 256].into_iter();
        let replays = sizes.flat_map(|slots| Policy::ALL.map(|policy| replay(routes, slots, policy, &SPEEDS).unwrap()));
        HotSetVerdict::of(&replays.collect::<Vec<_>>()).unwrap()
    };
    let (recent, frequent) = (verdict(&made(Locality::default())), verdict(&made(of_skew(1.5))));
    assert!(recent.follows && recent.ratio > 1.05, "{recent:?}");
    assert!(!frequent.follows && frequent.ratio < 1.02, "{frequent:?}");
    assert_eq!(HotSetVerdict::of(&[]), None);
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
            let seconds = |fetched| speeds.layer(bytes, ChosenSplit { hits, fetched, computed: misses - fetched });
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
    let small = |slots| replay(&routes, slots, Policy::Lru, &SPEEDS).unwrap().too_small;
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

/// The hot set of a running engine moves a limited number of bytes per token. It still hits more
/// often than a hot set chosen by frequency.
#[test]
fn hot_set_of_experts_follows_recent_routes() {
    let (slots, bus) = (128, 12e9);
    let routes = synthetic(LAYER, 4, 2 << 30, 1600, Locality::default(), 7).unwrap();
    let engine = replay(&routes, slots, Policy::Engine, &ExpertSpeeds { bus, ..SPEEDS }).unwrap();
    let share = engine.fetched * LAYER.bytes as f64 / bus * engine.tokens_per_second;
    assert!(share > 0.002 && share <= 0.05, "{share} of the bus: {engine:?}");
    let (unlimited, fixed) = (hit_rate(&routes, slots, Policy::Engine), hit_rate(&routes, slots, Policy::Static));
    assert!(engine.hit_rate > 1.8 * fixed, "{engine:?}: {fixed}");
    assert!((0.6 * unlimited..=unlimited).contains(&engine.hit_rate), "{engine:?}: {unlimited}");
}
