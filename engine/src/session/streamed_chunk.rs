//! The length of a prompt's chunks if experts are streamed to a device. A chunk uploads every
//! chosen expert once, however many tokens choose it, so long chunks take less time per token.

use super::live_planner::bytes_on_device;
use thermocline_base::error::Result;
use thermocline_gpu::Caps;
use thermocline_model::Model;
use thermocline_run::placement::{CostProfile, PlanInputs, StreamingBufferSize, usable};

/// Longest chunk in which experts are streamed.
const LONGEST: usize = 2048;
/// Fraction of a budget (one part in this many) that longer chunks may take for their scratch
/// memory and for the rings of windows. They make only prompts faster, but resident experts make
/// every token faster.
const DIVISOR: u64 = 16;

/// Returns the tokens of a prompt's chunk on a device with the limits `caps` and a budget of
/// `budget` bytes. It is the length in `inputs`, or a greater one if experts are then streamed and
/// its memory is small.
///
/// # Errors
/// As [`planner`](super::planner).
pub fn streamed_chunk(model: &Model, caps: Option<Caps>, inputs: &PlanInputs, budget: u64) -> Result<usize> {
    let usual = inputs.chunk;
    let has_experts = model.config.experts.is_some() && inputs.machine.gpu.is_some();
    // A smaller chunk was requested, or nothing is streamed.
    if usual < PlanInputs::MAX_CHUNK || !has_experts || inputs.stream_prompts == Some(false) {
        return Ok(usual);
    }
    // Sizes need no plan, so nothing is solved here.
    let sizes = |chunk| {
        let inputs = PlanInputs { chunk, ..inputs.clone() };
        let bytes = bytes_on_device(model, caps, &inputs)?;
        let profile = CostProfile::new(model, &bytes, &inputs)?;
        Ok(StreamingBufferSize::new(model, &bytes, &profile, &inputs.streaming()))
    };
    let everything = sizes(usual)?.everything();
    if everything <= usable(budget) {
        return Ok(usual);
    }
    let mut chunk = LONGEST;
    while chunk > usual {
        let long = sizes(chunk)?;
        let more = long.everything().saturating_sub(everything);
        if long.bytes_within(budget) > 0 && more <= budget / DIVISOR {
            return Ok(chunk);
        }
        chunk /= 2;
    }
    Ok(usual)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use thermocline_model::synth::{SynthOptions, SynthShape, shape_model};
    use thermocline_run::{
        placement::Machine,
        runtime::{KvType, Sparsity},
    };

    #[test]
    fn chunks_are_longer_where_experts_are_streamed_and_memory_allows() {
        let inputs = PlanInputs::new(Sparsity::Dense, 4096, KvType::F16);
        let model = |name| shape_model(&SynthOptions::new(SynthShape::named(name).unwrap(), "outline.gguf")).unwrap();
        let of = |model: &Model, inputs: &PlanInputs, budget| streamed_chunk(model, None, inputs, budget).unwrap();
        let qwen = model("qwen3.5-35b-a3b");
        assert_eq!(of(&qwen, &inputs, 12 << 30), LONGEST);
        assert_eq!(of(&qwen, &inputs, 6 << 30), LONGEST / 2, "scratch memory would take too much");
        assert_eq!(of(&qwen, &inputs, 4 << 30), 256, "shorter chunks do not pay");
        assert_eq!(of(&qwen, &inputs, 1 << 40), 256, "everything fits");
        assert_eq!(of(&qwen, &PlanInputs { stream_prompts: Some(false), ..inputs.clone() }, 12 << 30), 256);
        assert_eq!(of(&qwen, &PlanInputs { chunk: 16, ..inputs.clone() }, 12 << 30), 16, "short chunks were asked for");
        let with_bus = |rate: f64| {
            let mut machine = Machine::typical();
            machine.gpu.iter_mut().flat_map(|gpu| gpu.streams.values_mut()).for_each(|of| *of = rate);
            PlanInputs { machine: Arc::new(machine), ..inputs.clone() }
        };
        assert_eq!(of(&qwen, &with_bus(1e6), 12 << 30), 256, "a slow bus");
        let windows = model("gpt-oss-120b");
        assert_eq!(of(&windows, &with_bus(50e9), 12 << 30), LONGEST, "rings grow with chunks");
        assert_eq!(of(&model("relu-llama-7b"), &inputs, 2 << 30), 256, "a dense model");
    }
}
