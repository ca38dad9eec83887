//! The RAM of this machine and of this process: the total, and whether more can be allocated.

use std::sync::OnceLock;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use thermocline_engine::{
    calibration::MeasureEffort,
    model::{Ffn, Model},
};

use crate::control_group;

/// One part in this many of the free RAM must stay free.
const SPARE: u64 = 16;

/// Returns the total bytes of RAM, or the limit of the process's control group if it is smaller.
/// Reads the number once. `None` if the system does not report it.
pub fn total() -> Option<u64> {
    static TOTAL: OnceLock<Option<u64>> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let total = system().map(|system| system.total_memory()).filter(|bytes| *bytes > 0);
        total.map(|total| control_group::limit().map_or(total, |limit| limit.min(total)))
    })
}

/// Returns the bytes of RAM that are free for this process. The system's cache of files counts as
/// free. `None` if the system does not report them.
pub fn free() -> Option<u64> {
    let free = system().map(|system| system.available_memory()).filter(|bytes| *bytes > 0);
    free.map(|free| control_group::free().map_or(free, |limit| limit.min(free)))
}

/// Returns the bytes of RAM for a model of `bytes` that does not fit into RAM: all free bytes
/// except a small reserve. `None` if it fits, or if the system does not report its RAM.
pub fn limit_for(bytes: u64) -> Option<u64> {
    too_small_for(bytes).and_then(|_| free()).map(without_spare)
}

/// A number of free bytes without the reserve that must stay free.
const fn without_spare(free: u64) -> u64 {
    free - free / SPARE
}

/// Returns the total bytes of RAM if a model of `bytes` does not fit with its KV cache, which is
/// estimated. `None` if it fits, or if the system does not report its RAM.
pub fn too_small_for(bytes: u64) -> Option<u64> {
    total().filter(|ram| is_too_small(*ram, bytes))
}

/// True if a preparation of `model` should store bundles. Its neurons must be often silent and have
/// gates. The model must not fit into RAM, because only then are rows read from disk.
pub fn bundles_pay(model: &Model) -> bool {
    let ram_is_too_small = || too_small_for(model.checkpoint.tensor_bytes()).is_some();
    model.config.activation.is_sparse() && has_gated_layers(model) && ram_is_too_small()
}

/// True if a dense layer of `model` has gates. Other layers have no bundles.
fn has_gated_layers(model: &Model) -> bool {
    model.weights.layers.iter().any(|layer| matches!(&layer.ffn, Ffn::Dense(ffn) if ffn.gate.is_some()))
}

/// True if a model of `bytes` does not fit into `ram` bytes of RAM with its KV cache, which is
/// estimated.
pub const fn is_too_small(ram: u64, bytes: u64) -> bool {
    needed(bytes) > ram
}

/// Bytes that a model of `bytes` needs with its KV cache, estimated.
const fn needed(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 16)
}

/// Memory information of the system; `None` if the system does not report it.
fn system() -> Option<System> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    System::new_with_specifics(what).ok()
}

/// The effort of measuring this machine, whose matrices must fit into the free RAM.
pub fn measure_effort() -> MeasureEffort {
    MeasureEffort::default().within(free())
}

/// Checks that `bytes` more of RAM are free, with a little to spare. Succeeds if the system does
/// not report its free RAM.
///
/// # Errors
/// The number of free bytes.
pub fn check(bytes: u64) -> Result<(), u64> {
    match free() {
        Some(free) if bytes > without_spare(free) => Err(free),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use thermocline_engine::model::LoadOptions;

    #[test]
    fn layers_without_gates_have_no_bundles() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        for (name, wanted) in [("llama-relu", true), ("opt", false)] {
            let model = Model::open(&fixtures.join(name), &LoadOptions::default()).unwrap();
            assert!(model.config.activation.is_sparse() && has_gated_layers(&model) == wanted, "{name}");
        }
    }

    #[test]
    fn no_machine_has_room_for_everything() {
        assert!(total().is_some_and(|bytes| bytes > 0) && total() == total());
        let ram = total().unwrap();
        assert_eq!([ram / 17 * 16, ram / 17 * 16 + 64, u64::MAX].map(too_small_for), [None, Some(ram), Some(ram)]);
        assert!(free().is_some_and(|free| free <= ram) && without_spare(1600) == 1500);
        assert!(limit_for(ram / 2).is_none() && limit_for(u64::MAX).is_some_and(|limit| limit < ram));
        assert!(check(0).is_ok());
        assert!(check(u64::MAX).is_err_and(|free| free > 0));
    }
}
