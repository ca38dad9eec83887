//! One step of a layer that is on the device: its FFN may be on both sides.

use super::{cold_side::ColdSide, split_layer::SplitLayer};
use crate::{
    device::{device_ffn::DeviceFfn, device_model::DeviceModel, resident_neurons::NeuronSelection},
    error::Result,
    model::{BoundFfn, BoundOperation, BoundStep},
    runtime::{Pass, Sequences},
};

impl DeviceModel {
    /// Computes a step of a layer that is here, with `cold` for what is not resident of its FFN. `streams`: the layer's cold neurons are
    /// to be streamed to the device, if they can be.
    pub fn step(
        &mut self,
        pass: &mut Pass<'_>,
        step: &BoundStep<'_>,
        sequences: &mut Sequences<'_>,
        cold: &mut ColdSide,
        streams: bool,
    ) -> Result<()> {
        self.layers.step(step, sequences)?;
        match step.operation {
            BoundOperation::Norm { feeds_ffn: true, .. } => {
                self.predict(pass, step.layer);
                Ok(())
            }
            BoundOperation::Route { ffn, experts, from } => {
                let tokens = pass.tokens.len();
                if let DeviceFfn::Experts(resident) = &self.ffns[step.layer - self.layers.range().start] {
                    resident.route(self.layers.segment.recorder(), tokens);
                    return Ok(());
                }
                self.layers.read_register(from, 0..tokens)?;
                cold.cpu.route_of(pass, &ffn, experts, self.layers.residual())
            }
            BoundOperation::Ffn(ffn) => self.run_ffn(pass, &ffn, cold, streams),
            _ => Ok(()),
        }
    }

    /// Computes the layer's predictor if the pass asks it.
    fn predict(&mut self, pass: &Pass<'_>, layer: usize) {
        let neurons = self.ffns[layer - self.layers.range().start].neurons();
        let asked = neurons.filter(|neurons| neurons.predicts(pass));
        if let Some(predictor) = asked.and_then(|neurons| neurons.predictor.as_ref()) {
            predictor.record(self.layers.segment.recorder(), pass.threshold_shift(layer));
        }
    }

    /// `Out = ffn(from)`, whose input is ready, with `cold` for the part that is not resident. `streams`: the layer's cold neurons are to
    /// be streamed to the device, if they can be.
    pub(super) fn run_ffn(
        &mut self,
        pass: &mut Pass<'_>,
        of: &BoundFfn<'_>,
        cold: &mut ColdSide,
        streams: bool,
    ) -> Result<()> {
        let layer = of.layer;
        let DeviceModel { layers, ffns, log, hand_over, streaming_buffer, .. } = self;
        let (ffn, tokens) = (&ffns[layer - layers.range().start], pass.tokens.len());
        let mut split = SplitLayer { pass, ffn: *of, layers, hand_over, log, cold };
        match ffn {
            DeviceFfn::Whole(whole) => {
                whole.record(&mut split.layers.segment, split.pass, layer, split.log)?;
            }
            DeviceFfn::Neurons(neurons) if neurons.is_whole() => split.run_resident(neurons)?,
            // An observer gets gate and up of all neurons only from the side that computes them all.
            DeviceFfn::Neurons(neurons)
                if split.pass.probe.wants_ffn_hidden() && split.selection(neurons) == NeuronSelection::All =>
            {
                split.run_cold()?;
            }
            DeviceFfn::Neurons(neurons) => match (&neurons.streamed, streaming_buffer) {
                (Some(streamed), Some(buffer)) if streams && tokens > 1 => {
                    split.run_streamed(neurons, streamed, buffer)?;
                }
                _ => split.run_neurons(neurons)?,
            },
            DeviceFfn::Experts(experts) if experts.is_whole() => {
                experts.record(&mut split.layers.segment, split.pass, layer, split.log)?;
            }
            DeviceFfn::Experts(experts) => split.run_experts(experts)?,
            DeviceFfn::Cold | DeviceFfn::Absent => split.run_cold()?,
        }
        let work = ffn.work() * tokens as u64;
        self.layers.segment.worked(work, tokens)
    }
}
