//! Notes for the user about an opened engine: its differences from the options, and memory that is
//! too small.

use thermocline_engine::{
    gpu::Purpose,
    session::{DeviceMemory, DeviceStatus, Engine},
};

use crate::standard_error::say;
use thermocline_host::{memory, units};

/// Reports a model that does not fit into RAM, a cache whose part in GPU memory has another type,
/// and neurons of a split that are not in GPU memory.
pub fn say_what_differs(engine: &Engine) {
    if let Some(ram) = memory::too_small_for(bytes_in_ram(engine)) {
        say(format_args!(
            "[the model is larger than the {} of RAM: weights are read from the disk for every token, which is slow. A \
             smaller weight type needs less RAM; `thermocline plan` shows how much is missing]",
            units::bytes(ram)
        ));
    }
    let (ram, gpu) = (engine.kv_type(), engine.kv_type().on_gpu());
    if ram != gpu && matches!(engine.device(), DeviceStatus::Gpu(_)) {
        say(format_args!(
            "[the part of the KV cache in GPU memory is {gpu}, because the GPU cannot compute with {ram}]"
        ));
    }
    if let Some(split) = engine.split().filter(|split| split.resident < split.neurons) {
        let why = match engine.device() {
            DeviceStatus::Gpu(_) => "there is no room for the other neurons",
            _ => "no GPU is used",
        };
        say(format_args!(
            "[{} of the {} neurons of the split are in GPU memory: {why}]",
            split.resident, split.neurons
        ));
    }
}

/// Bytes of weights in a device's memory.
fn weights_on(memory: &DeviceMemory) -> u64 {
    let others = [Purpose::Kv, Purpose::Scratch, Purpose::Staging];
    memory.by_purpose.iter().filter(|(purpose, _)| !others.contains(purpose)).map(|(_, bytes)| bytes).sum()
}

/// Bytes of weights that stay in RAM. A GPU that shares the RAM takes nothing from it.
fn bytes_in_ram(engine: &Engine) -> u64 {
    let models = [Some(engine.model()), engine.draft_model()];
    let weights: u64 = models.into_iter().flatten().map(|model| model.checkpoint.tensor_bytes()).sum();
    match engine.device() {
        DeviceStatus::Gpu(memory) if !memory.shares_ram => weights.saturating_sub(weights_on(&memory)),
        _ => weights,
    }
}
