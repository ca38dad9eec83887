//! One step of a layer on the device. The CPU may compute a part of its FFN.

use super::{
    cpu_share::{ColdPart, CpuShare},
    split_layer::SplitLayer,
};
use crate::{
    device::{
        device_ffn::DeviceFfn,
        device_model::DeviceModel,
        expert_matrices::expert_matrices,
        expert_pass::{ExpertPass, ExpertStream},
        neuron_pass::{NeuronPass, NeuronSelection, NeuronStream},
        neuron_weights::NeuronWeights,
        resident_neurons::ResidentNeurons,
        resident_pass::NothingResident,
        streaming_buffer::StreamingBuffer,
    },
    runtime::{Pass, Sequences},
};
use thermocline_base::error::Result;
use thermocline_gpu::{WorkKind, work_of};
use thermocline_model::{BoundFfn, BoundOperation, BoundStep, FfnKind, FfnWeights};

impl DeviceModel {
    /// Computes a step of a layer on the device; `cold` computes the part of the FFN that is not
    /// resident. `streams`: stream the layer's cold units to the device if possible.
    pub fn step(
        &mut self,
        pass: &mut Pass<'_>,
        step: &BoundStep<'_>,
        sequences: &mut Sequences<'_>,
        cold: &mut CpuShare,
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
                    let preference = cold.cpu.preferences.with_resident(pass, step.layer, &resident.slots.resident);
                    resident.route(self.layers.segment.recorder(), tokens, preference);
                    return Ok(());
                }
                self.layers.read_register(from, 0..tokens)?;
                cold.cpu.route_of(pass, &ffn, experts, self.layers.residual())
            }
            BoundOperation::Ffn(ffn) => self.run_ffn(pass, &ffn, cold, streams),
            _ => Ok(()),
        }
    }

    /// Computes `Out = ffn(from)`, whose input is ready; `cold` computes the part that is not
    /// resident. `streams`: stream the layer's cold units to the device if possible.
    fn run_ffn(&mut self, pass: &mut Pass<'_>, of: &BoundFfn<'_>, cold: &mut CpuShare, streams: bool) -> Result<()> {
        let (layer, tokens) = (of.layer, pass.tokens.len());
        let DeviceModel { layers, ffns, log, hand_over, streaming_buffer, .. } = self;
        let ffn = &ffns[layer - layers.range().start];
        let work = work_of(ffn.work(), tokens);
        let mut split = SplitLayer { pass, ffn: *of, layers, hand_over, log, cold, work };
        match (ffn, of.kind) {
            (DeviceFfn::Whole(whole), _) => {
                split.expect()?;
                whole.record(&mut split.layers.segment, split.pass, layer, split.log)?;
            }
            (DeviceFfn::Neurons(neurons), FfnKind::Dense(weights)) => {
                split.run_neurons(neurons, weights, streaming_buffer.as_mut().filter(|_| streams && tokens > 1))?;
            }
            (DeviceFfn::Experts(experts), FfnKind::Experts(weights)) => {
                let held = &experts.slots.resident;
                let preference = split.cold.cpu.preferences.with_resident(split.pass, layer, held);
                experts.route_late(split.layers.segment.recorder(), tokens, preference);
                let resident = ExpertPass::new(experts, split.pass, preference.is_some());
                let buffer = streaming_buffer.as_mut().filter(|_| streams && tokens > 1);
                match experts.streamed.as_ref().zip(buffer) {
                    _ if experts.slots.is_whole() => {
                        split.expect()?;
                        resident.record_whole(&mut split.layers.segment, split.pass, layer, split.log)?;
                    }
                    Some((streamed, buffer)) => {
                        let matrices = expert_matrices(&experts.gpu, weights)?;
                        let stream = ExpertStream { buffer, streamed, matrices };
                        resident.record_streamed(&mut split.layers.segment, split.pass, layer, split.log, stream)?;
                    }
                    None => {
                        let ranges = if preference.is_some() { tokens } else { 0 };
                        split.run(resident, ColdPart::Experts { resident: held, ranges })?;
                    }
                }
            }
            _ => split.run(NothingResident { tokens }, ColdPart::Whole)?,
        }
        self.layers.segment.worked()
    }
}

impl SplitLayer<'_, '_> {
    /// Announces the work of an FFN that is entirely resident.
    fn expect(&mut self) -> Result<()> {
        self.layers.segment.expect(WorkKind::of(self.pass.tokens.len()), self.work)
    }

    /// Computes `Out = ffn` for an FFN whose neurons are resident one by one. Cold neurons pass
    /// through `buffer` if possible, otherwise the CPU computes them.
    fn run_neurons(
        mut self,
        neurons: &ResidentNeurons,
        weights: &FfnWeights,
        buffer: Option<&mut StreamingBuffer>,
    ) -> Result<()> {
        let (layer, tokens) = (self.ffn.layer, self.pass.tokens.len());
        let resident = NeuronPass::new(neurons, self.pass, layer);
        let selection = resident.selection;
        if neurons.slots.is_whole() {
            self.expect()?;
            return resident.record_whole(&mut self.layers.segment, self.pass, self.log);
        }
        // An observer gets gate and up of all neurons only from a side that computes them all.
        if self.pass.probe.wants_ffn_hidden() && selection == NeuronSelection::All {
            return self.run(NothingResident { tokens }, ColdPart::Whole);
        }
        let Some((streamed, buffer)) = neurons.streamed.as_ref().zip(buffer) else {
            let predicted = selection == NeuronSelection::Predicted;
            return self.run(resident, ColdPart::Neurons { ffn: weights, predicted });
        };
        let weights = NeuronWeights::of_ffn(&self.pass.model.weights.layers[layer].ffn)?;
        let stream = NeuronStream { buffer, streamed, weights, cold: &self.cold.neurons[layer] };
        let observed = self.pass.probe.wants_firing();
        resident.record_streamed(&mut self.layers.segment, self.log, stream, observed)
    }
}
