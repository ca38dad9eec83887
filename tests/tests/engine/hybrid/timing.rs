//! Time that a device spends in each layer.

use std::time::Instant;

use super::*;

/// Layers and their GPU times in nanoseconds.
#[derive(Default)]
struct Clocked {
    wanted: bool,
    layers: Vec<(usize, u64)>,
}

impl Probe for Clocked {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_times(&mut self) -> bool {
        self.wanted
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.layers.push((firing.layer, firing.gpu_ns));
    }
}

/// Times the layers of `model` in every placement by the device's clock.
fn layers_are_timed(model: &Arc<Model>) {
    let gpu = shared(FULL);
    assert!(gpu.caps().timestamps, "the software driver the tests use has timestamps");
    let ids = ids(model, 20);
    for (what, placement) in placements(model, 5) {
        let mut forward = hybrid(gpu, model, &placement, 16);
        let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
        // The test computes a prompt of two chunks, then tokens. Times are wanted, not wanted, and
        // wanted again.
        for (tokens, wanted) in [(0..17, true), (17..18, true), (18..19, false), (19..20, true)] {
            let (mut clocked, began) = (Clocked { wanted, ..Clocked::default() }, Instant::now());
            forward.run(&ids[tokens], &mut kv, Outputs::Last, &mut clocked).unwrap();
            let took = began.elapsed().as_nanos() as u64;
            assert!(!clocked.layers.is_empty());
            for (layer, time) in &clocked.layers {
                let there = wanted && placement.first_resident <= *layer;
                assert_eq!(*time > 0, there, "{what}: layer {layer}, {time} ns");
            }
            let sum: u64 = clocked.layers.iter().map(|(_, time)| time).sum();
            assert!(sum <= took, "{what}: {sum} ns on the device of {took} ns");
        }
    }
}

#[test]
fn gpu_times_are_reported_per_layer() {
    layers_are_timed(&model(POWERINFER));
    layers_are_timed(&wide());
}

#[test]
fn timed_tokens_create_no_gpu_objects() {
    let gpu = open(GpuOptions::default());
    let model = model(POWERINFER);
    let (_, placement) = placements(&model, 5).swap_remove(3);
    let mut forward = hybrid(&gpu, &model, &placement, 16);
    let mut kv = forward.kv_cache(20, KvType::F32).unwrap();
    let ids = ids(&model, 20);
    forward.run(&ids[..16], &mut kv, Outputs::Last, &mut Clocked { wanted: true, ..Clocked::default() }).unwrap();
    let made = (gpu.arena().made(), gpu.bind_groups());
    for wanted in [true, false, true] {
        let mut clocked = Clocked { wanted, ..Clocked::default() };
        forward.run(&ids[16..17], &mut kv, Outputs::Last, &mut clocked).unwrap();
        assert_eq!(clocked.layers.iter().any(|(_, time)| *time > 0), wanted, "it is looked at");
    }
    assert_eq!((gpu.arena().made(), gpu.bind_groups()), made, "buffers, bind groups");
}
