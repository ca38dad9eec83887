//! The layers of one pass, on any processor.

use std::time::Instant;

use crate::runtime::{Pass, PassPart, Processor, Sequences, scratch::grow};
use thermocline_base::error::{Error, Result};
use thermocline_model::BoundOperation;

/// Computes every layer of a chunk.
pub(super) fn layers(processor: &mut dyn Processor, pass: &mut Pass<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
    let config = &pass.model.config;
    // A partly advanced recurrent state would have to be recomputed from far back. Single tokens
    // and drafts are therefore finished. Batches are finished because they include other
    // conversations.
    let is_short = pass.is_single() || pass.separate;
    let may_stop = sequences.len() == 1 && !(is_short && config.is_recurrent());
    // A draft head is in the file of its model, whose passes have another order.
    if let Some(pager) = pass.model.pager().filter(|_| pass.model.weights.state_input.is_none()) {
        pager.begin_pass(is_short);
    }
    processor.begin(pass, sequences)?;
    for layer in 0..config.n_layer() {
        if may_stop && pass.probe.cancelled() {
            return Err(Error::Cancelled);
        }
        compute_layer(processor, pass, layer, sequences)?;
        if pass.added_after(layer).next().is_some() {
            processor.add_inputs(pass, layer)?;
        }
        if pass.probe.wants_layer_output() {
            let residual = processor.residual(pass)?;
            pass.probe.layer_output(layer, residual);
        }
    }
    Ok(())
}

/// Computes the steps of one layer for the chunk that the processor has begun.
pub fn compute_layer(
    processor: &mut dyn Processor,
    pass: &mut Pass<'_>,
    layer: usize,
    sequences: &mut Sequences<'_>,
) -> Result<()> {
    for step in pass.model.steps(layer) {
        let step = step?;
        let part = match step.operation {
            BoundOperation::Route { .. } | BoundOperation::Ffn(_) | BoundOperation::DenseFfn { .. } => {
                PassPart::Ffn(layer)
            }
            _ => PassPart::Mixer(layer),
        };
        timed(pass, part, |pass| processor.step(pass, &step, sequences))?;
    }
    Ok(())
}

/// Passes the hidden states of a computed chunk to the probe if the probe wants them.
pub(super) fn report_states(processor: &mut dyn Processor, pass: &mut Pass<'_>, states: &mut Vec<f32>) -> Result<()> {
    if !pass.probe.wants_states() {
        return Ok(());
    }
    let rows = grow(states, Some(pass.register_len()), "hidden states")?;
    processor.hidden(pass, rows)?;
    pass.probe.states(rows);
    Ok(())
}

/// Runs `work` and reports its time to the probe if the probe wants times.
pub(super) fn timed(pass: &mut Pass<'_>, part: PassPart, work: impl FnOnce(&mut Pass<'_>) -> Result<()>) -> Result<()> {
    if !pass.probe.wants_step_times() {
        return work(pass);
    }
    let started = Instant::now();
    work(pass)?;
    pass.probe.step_time(part, started.elapsed());
    Ok(())
}
