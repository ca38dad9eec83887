//! The memory that the slots of a server may take.

use std::fmt;

use thermocline_engine::{runtime::CacheBytes, session::Engine};
use thermocline_host::units;

/// The most bytes that the caches of all slots take with full contexts, while the model's layers
/// stay where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotMemory {
    /// Number of slots.
    slots: usize,
    /// Tokens of each slot's context.
    context: usize,
    /// Bytes of RAM: keys, values and states of layers on the CPU, snapshots, and the caches of a
    /// draft model.
    ram: u64,
    /// Bytes of GPU memory: keys, values and states of layers there.
    vram: u64,
    /// Limit of both together, if it is smaller.
    limit: Option<u64>,
}

impl SlotMemory {
    /// The memory of `slots` slots of `engine`, with the layers that are on the GPU now.
    pub fn of(engine: &Engine, slots: usize) -> Self {
        let (model, ty, context, chunk) = (engine.model(), engine.kv_type(), engine.context(), engine.device_chunk());
        let first_on_gpu = engine.resident().map_or(usize::MAX, |resident| resident.first_layer);
        let on_cpu = CacheBytes::in_ram(&model.config, context, ty, chunk, |layer| layer < first_on_gpu);
        let on_gpu = CacheBytes::in_ram(&model.config, context, ty.on_gpu(), chunk, |layer| layer >= first_on_gpu);
        let drafter = engine.draft_model().or(model.draft_head.as_ref());
        let of_drafter = drafter.map_or(0, |drafter| CacheBytes::of(&drafter.config, context, ty).total());
        // The snapshots of all layers are in RAM, and `on_cpu` counts them.
        let of_gpu = CacheBytes { snapshots: 0, ..on_gpu }.total();
        let all = |one: u64| one.saturating_mul(slots as u64);
        let (ram, vram) = (all(on_cpu.total().saturating_add(of_drafter)), all(of_gpu));
        let limit = engine.kv_budget().filter(|budget| *budget < ram.saturating_add(vram));
        SlotMemory { slots, context, ram, vram, limit }
    }
}

impl fmt::Display for SlotMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotMemory { slots, context, ram, vram, limit } = *self;
        write!(f, "[{} of {context} tokens: KV caches take up to ", units::counted(slots, "slot"))?;
        match (units::bytes(ram), units::bytes(vram)) {
            (ram, _) if vram == 0 => write!(f, "{ram} of RAM")?,
            (_, gpu) if ram == 0 => write!(f, "{gpu} of GPU memory")?,
            (ram, gpu) => write!(f, "{ram} of RAM and {gpu} of GPU memory")?,
        }
        match limit {
            Some(limit) => write!(f, ", together at most {}]", units::bytes(limit)),
            None => f.write_str("]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_slots_is_told_by_place() {
        let told = |ram: u64, vram: u64, limit: Option<u64>| {
            SlotMemory { slots: 4, context: 4096, ram: ram << 30, vram: vram << 30, limit }.to_string()
        };
        assert_eq!(told(2, 0, None), "[4 slots of 4096 tokens: KV caches take up to 2.0 GiB of RAM]");
        assert_eq!(told(0, 3, None), "[4 slots of 4096 tokens: KV caches take up to 3.0 GiB of GPU memory]");
        assert_eq!(
            told(2, 3, Some(1 << 30)),
            "[4 slots of 4096 tokens: KV caches take up to 2.0 GiB of RAM and 3.0 GiB of GPU memory, together at most \
             1.0 GiB]"
        );
    }
}
