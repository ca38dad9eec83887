//! The part of a layer's FFN that is on a device.

use super::{
    GpuLoader, Segment,
    expert_buffers::ExpertShape,
    expert_matrices::ExpertMatrices,
    ffn::{DenseFfn, FfnBuffers, FfnShape},
    firing_log::{FiringEntry, FiringLog},
    load::FfnPart,
    neuron_weights::NeuronWeights,
    registers::Registers,
    resident_experts::{ExpertRegisters, ResidentExperts},
    resident_neurons::{NeuronUpload, ResidentNeurons},
    slot_table::SlotTable,
};
use crate::runtime::Pass;
use thermocline_base::error::{Error, Result};
use thermocline_model::{Ffn, LayerConfig, LayerWeights, Register, SkipRule, Skips, mask};

/// The FFN of one layer on a device, prepared.
#[derive(Debug)]
pub(crate) enum DeviceFfn {
    /// An FFN that is resident as a whole, because its neurons cannot be resident one by one.
    Whole(Box<WholeFfn>),
    /// The resident experts of an MoE layer.
    Experts(Box<ResidentExperts>),
    /// The resident neurons of an FFN.
    Neurons(Box<ResidentNeurons>),
    /// Nothing is on the device: the CPU computes the FFN.
    Cold,
    /// The layer has no FFN.
    Absent,
}

/// An FFN that is whole on the device, and the mask of its neurons.
#[derive(Debug)]
pub(crate) struct WholeFfn {
    ffn: DenseFfn,
    /// Mask of all neurons.
    resident: Vec<u32>,
    /// Rule for the neurons that may be skipped. No predictor is used.
    rule: SkipRule,
}

impl DeviceFfn {
    /// Uploads `part` of a layer's FFN, and the layer's predictor if `with_predictor`. The FFN
    /// reads the register that the program in `shape` names and writes `Out`. Buffers are shared
    /// with the layers in `before` (all other layers) if they fit, so each shape has one set of
    /// buffers.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        before: &[DeviceFfn],
        weights: &LayerWeights,
        part: FfnPart<'_>,
        with_predictor: bool,
        registers: &Registers,
        shape: &LayerConfig,
    ) -> Result<Self> {
        let Some(from) = shape.ffn_input() else { return Ok(DeviceFfn::Absent) };
        let input = registers.get(from);
        let out = registers.rows(Register::Out);
        match (&weights.ffn, part) {
            (Ffn::None, _) => Ok(DeviceFfn::Absent),
            (_, FfnPart::None) if !Self::places_units(weights) => Ok(DeviceFfn::Cold),
            (Ffn::Dense(ffn), part) if NeuronWeights::places_neurons(weights) => {
                let (several, neurons) = match part {
                    FfnPart::All => (false, (0..ffn.up.weight.rows() as u32).collect()),
                    FfnPart::Hot(neurons) => (true, neurons.to_vec()),
                    FfnPart::None => (false, Vec::new()),
                };
                let fits = |it: &&ResidentNeurons| NeuronWeights::of(ffn).is_some_and(|of| it.buffers.fits(of));
                let before = before.iter().filter_map(DeviceFfn::neurons).find(fits);
                let upload = NeuronUpload { neurons: &neurons, several, with_predictor };
                let neurons = ResidentNeurons::new(loader, before, weights, upload, registers, from)?;
                Ok(DeviceFfn::Neurons(Box::new(neurons)))
            }
            (Ffn::Dense(_), FfnPart::Hot(neurons)) => Err(Error::unsupported(
                "part of an FFN on the GPU",
                format!("{} neurons of an output-major down projection", neurons.len()),
                "a neuron-major down projection, and gate and up of one type",
            )),
            (Ffn::Dense(ffn), _) => {
                let (n_ff, shape) = (ffn.up.weight.rows(), FfnShape::of(ffn));
                let whole = before.iter().filter_map(|ffn| match ffn {
                    DeviceFfn::Whole(whole) => Some(&whole.ffn),
                    _ => None,
                });
                let before = whole.into_iter().find(|it| it.buffers.fits(shape));
                let buffers = match before {
                    Some(before) => before.buffers.clone(),
                    None => FfnBuffers::new(loader, loader.chunk, shape)?,
                };
                let mut resident = vec![0; mask::words(n_ff)];
                mask::fill(&mut resident, n_ff, |_| true);
                let mut ffn = DenseFfn::new(loader, before, &buffers, ffn, input, out)?;
                ffn.set_inner(loader, weights.layer_norms(), weights.gate_deviations)?;
                let rule = SkipRule { has_predictor: false, ..loader.skip_rule(weights) };
                Ok(DeviceFfn::Whole(Box::new(WholeFfn { ffn, resident, rule })))
            }
            (Ffn::Experts(ffn), part) => {
                let hot: Vec<u32> = match part {
                    FfnPart::All => (0..ffn.experts.len() as u32).collect(),
                    FfnPart::Hot(experts) => experts.to_vec(),
                    FfnPart::None => Vec::new(),
                };
                let shape_of = ExpertShape::of(ffn);
                let before = before.iter().filter_map(DeviceFfn::experts).find(|it| it.buffers.fits(shape_of));
                let router_from = shape.early_router_input().map(|from| registers.get(from));
                let rule = loader.skip_rule(weights);
                let inputs = ExpertRegisters { registers, from: input, router_from };
                let experts = ResidentExperts::new(loader, before, ffn, rule, &hot, inputs)?;
                Ok(DeviceFfn::Experts(Box::new(experts)))
            }
        }
    }

    /// True if neurons of a layer's FFN (experts, in an MoE layer) can be resident one by one.
    pub fn places_units(layer: &LayerWeights) -> bool {
        let experts = matches!(&layer.ffn, Ffn::Experts(weights) if ExpertMatrices::exist(weights));
        NeuronWeights::places_neurons(layer) || experts
    }

    /// The resident neurons, if neurons are placed one by one.
    pub fn neurons(&self) -> Option<&ResidentNeurons> {
        match self {
            DeviceFfn::Neurons(neurons) => Some(neurons),
            _ => None,
        }
    }

    /// The resident neurons, mutably.
    pub fn neurons_mut(&mut self) -> Option<&mut ResidentNeurons> {
        match self {
            DeviceFfn::Neurons(neurons) => Some(neurons),
            _ => None,
        }
    }

    /// The resident experts, in an MoE layer.
    pub fn experts(&self) -> Option<&ResidentExperts> {
        match self {
            DeviceFfn::Experts(experts) => Some(experts),
            _ => None,
        }
    }

    /// The resident units by slot, if they are placed one by one.
    pub fn slots(&self) -> Option<&SlotTable> {
        match self {
            DeviceFfn::Neurons(neurons) => Some(&neurons.slots),
            DeviceFfn::Experts(experts) => Some(&experts.slots),
            DeviceFfn::Whole(_) | DeviceFfn::Cold | DeviceFfn::Absent => None,
        }
    }

    /// Frees what was prepared for the streaming buffer.
    pub fn forget_streaming(&mut self) {
        match self {
            DeviceFfn::Neurons(neurons) => neurons.streamed = None,
            DeviceFfn::Experts(experts) => experts.streamed = None,
            DeviceFfn::Whole(_) | DeviceFfn::Cold | DeviceFfn::Absent => {}
        }
    }

    /// Drops blocks of slots from the cold end until at most `slots` are left.
    pub fn drop_to(&mut self, slots: usize) {
        match self {
            DeviceFfn::Neurons(neurons) => neurons.drop_to(slots),
            DeviceFfn::Experts(experts) => experts.drop_to(slots),
            DeviceFfn::Whole(_) | DeviceFfn::Cold | DeviceFfn::Absent => {}
        }
    }

    /// Words of one token in the firing log.
    pub fn logged_words(&self) -> usize {
        match self {
            DeviceFfn::Neurons(neurons) => neurons.buffers.slots / 32 + mask::words(neurons.neurons()),
            DeviceFfn::Experts(experts) => experts.logged_words(),
            DeviceFfn::Whole(whole) => whole.resident.len(),
            DeviceFfn::Cold | DeviceFfn::Absent => 0,
        }
    }

    /// Words of one token's strengths in the firing log.
    pub fn logged_strengths(&self) -> usize {
        match self {
            DeviceFfn::Neurons(neurons) => neurons.buffers.slots,
            DeviceFfn::Whole(whole) => whole.ffn.buffers.n_ff,
            DeviceFfn::Experts(_) | DeviceFfn::Cold | DeviceFfn::Absent => 0,
        }
    }

    /// Mask of the resident neurons; in an MoE layer, of all experts' neurons in order. `None` if
    /// no neuron can be resident.
    pub fn resident_neurons(&self) -> Option<&[u32]> {
        match self {
            DeviceFfn::Neurons(neurons) => Some(&neurons.slots.resident),
            DeviceFfn::Experts(experts) => Some(&experts.resident_neurons),
            DeviceFfn::Whole(whole) => Some(&whole.resident),
            DeviceFfn::Cold | DeviceFfn::Absent => None,
        }
    }

    /// True if the device computes the whole FFN.
    pub fn is_whole(&self) -> bool {
        match self {
            DeviceFfn::Whole(_) | DeviceFfn::Absent => true,
            DeviceFfn::Experts(_) | DeviceFfn::Neurons(_) | DeviceFfn::Cold => {
                self.slots().is_some_and(SlotTable::is_whole)
            }
        }
    }

    /// Multiply-adds per token.
    pub fn work(&self) -> u64 {
        match self {
            DeviceFfn::Whole(whole) => whole.ffn.work(),
            DeviceFfn::Experts(experts) => experts.work,
            DeviceFfn::Neurons(neurons) => neurons.work(),
            DeviceFfn::Cold | DeviceFfn::Absent => 0,
        }
    }
}

impl WholeFfn {
    /// Records the FFN of a pass, without the neurons that its sparsity mode skips. Up rows are not
    /// read if the gate shows that the neuron is silent. Fired masks go to `log`. Gate and up
    /// values go to the observer if it wants them and all neurons are computed.
    pub fn record(&self, segment: &mut Segment, pass: &mut Pass<'_>, layer: usize, log: &mut FiringLog) -> Result<()> {
        let (ffn, tokens) = (&self.ffn, pass.tokens.len());
        let shows = pass.probe.wants_ffn_hidden();
        let skips = self.rule.skips(pass.sparsity, pass.is_single(), shows);
        let threshold = skips.gate_threshold().filter(|_| self.rule.gated);
        if shows && skips == Skips::Nothing {
            ffn.record_gate_up(segment.recorder(), tokens);
            ffn.buffers.show(segment, tokens, layer, pass.probe)?;
            ffn.record_down(segment.recorder(), tokens);
        } else {
            ffn.record(segment.recorder(), tokens, threshold);
        }
        if pass.probe.wants_firing() {
            // If a threshold was applied, neurons below it are already zero.
            let above = self.rule.fires_above().filter(|_| threshold.is_none());
            let fired = ffn.buffers.record_fired(segment.recorder(), tokens, above);
            let wants = pass.probe.wants_device_strength() && tokens == 1;
            let strength = if wants { ffn.record_strength(segment.recorder(), above.is_some()) } else { None };
            let entry = FiringEntry { complete: true, ..FiringEntry::new(layer, tokens) };
            log.push(segment, fired, None, strength, entry)?;
        }
        Ok(())
    }
}
