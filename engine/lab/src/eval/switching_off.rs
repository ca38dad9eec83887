//! Switches neurons off for one token and measures how far a logit falls. Effects through later
//! layers and norms count, which [`attribution`](super::attribution()) omits. The whole model
//! computes the tokens before.

use std::{ops::ControlFlow, sync::Arc};

use serde::Serialize;

use super::attribution::{FinalResidual, SplitContext, forward_after, forward_beside, logit_of};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Model, NeuronIndex};
use thermocline_run::runtime::{CallInputs, Forward, KvCache, Outputs, check_logits};

/// Falls of a token's logit without some neurons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SwitchingOff {
    /// Additional fall for each neuron, in the given order, after the neurons before it were
    /// switched off. The sum is the fall without all of them.
    pub falls: Vec<f32>,
    /// Logit of the whole model, before a soft cap.
    pub whole: f32,
    /// Logit without all of the neurons, before a soft cap.
    pub without: f32,
}

/// Measures the logit of `token` after `context` while `neurons` are switched off, one after
/// another, for the last token of `context`. Computes like [`attribution`](super::attribution()):
/// one pass over the context, then one pass over one token per neuron.
///
/// # Errors
/// [`Error::Invalid`] for an empty context, an id outside the vocabulary or a neuron that the model
/// does not have. [`Error::Cancelled`], and errors of the forward pass.
pub fn switching_off<'t>(
    model: &Arc<Model>,
    cpu: &Cpu,
    context: impl Into<CallInputs<'t>>,
    token: u32,
    neurons: &[NeuronIndex],
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<SwitchingOff> {
    let SplitContext { last, before } = SplitContext::new(model, context.into(), token)?;
    let held = before.tokens.len();
    let (mut forward, mut kv) = forward_after(model, cpu, before, 1, proceed)?;
    // Recurrent states return to this snapshot.
    kv.take_snapshot();
    let mut logit = |forward: &mut Forward, kv: &mut KvCache| {
        let mut probe = FinalResidual::new(model, proceed);
        forward.run(last, kv, Outputs::Last, &mut probe)?;
        let logit = logit_of(model, probe.residual(), token);
        check_logits(&[logit])?;
        kv.truncate(held);
        Ok::<_, Error>(logit)
    };
    let whole = logit(&mut forward, &mut kv)?;
    drop(forward);
    let (mut falls, mut without) = (Vec::with_capacity(neurons.len()), whole);
    for count in 1..=neurons.len() {
        let rest = Arc::new(model.without_neurons(&neurons[..count])?);
        let now = logit(&mut forward_beside(&rest, cpu, last)?, &mut kv)?;
        falls.push(without - now);
        without = now;
    }
    Ok(SwitchingOff { falls, whole, without })
}
