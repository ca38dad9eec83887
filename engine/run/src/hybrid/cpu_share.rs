//! The CPU's side of a hybrid processor. The CPU computes whole layers that are not on the device,
//! and the cold parts of the device layers' FFNs.

use std::time::Instant;

use bytemuck::Pod;
use thermocline_shaders::limits::NO_NEURON;

use super::deferred_firing::DeferredFiring;
use crate::{
    device::{
        firing_log::{ColdWork, FiringEntry},
        registers::{Registers, unpad},
    },
    runtime::{
        ChosenExperts, CpuFfn, CpuProcessor, FfnBlock, FfnTask, HeldExperts, LayerInputs, Pass, PredictionSource,
        Processor, TokenInputs,
    },
};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::{BoundFfn, FfnWeights, mask};

/// The CPU, and the neurons of the device's layers that the CPU computes.
#[derive(Debug)]
pub(crate) struct CpuShare {
    pub cpu: CpuProcessor,
    /// Computes cold neurons; separate from the FFNs of the CPU's own layers.
    ffn: CpuFfn,
    /// The cold neurons of each layer, ascending, if its neurons are resident one by one.
    pub neurons: Vec<Vec<u32>>,
    handed_over: HandedOver,
}

/// The part of a layer's FFN that the CPU computes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ColdPart<'a> {
    /// The neurons that are not resident.
    Neurons {
        /// The layer's FFN.
        ffn: &'a FfnWeights,
        /// True if neurons that the predictor excludes are skipped.
        predicted: bool,
    },
    /// The chosen experts that are not resident.
    Experts {
        /// Mask of the resident experts.
        resident: &'a [u32],
        /// Number of tokens whose ranges of the router's values are handed over.
        ranges: usize,
    },
    /// The whole FFN.
    Whole,
}

/// The input of an FFN's cold part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColdInput<'a> {
    /// `[tokens, d_model]`
    pub x: &'a [f32],
    /// True if the mask of fired neurons is wanted.
    pub observed: bool,
}

/// Data that a device has handed over after an FFN's input, for each kind of [`ColdPart`].
#[derive(Debug, Default)]
struct HandedOver {
    /// For neurons: the predictor's mask, empty if the predictor was not computed.
    predicted: Vec<u32>,
    /// For experts: the pairs' experts and their router weights, `[tokens, used]`.
    ids: Vec<u32>,
    router_weights: Vec<f32>,
    /// For experts: the ranges of the router's values, `[tokens]`, if routers prefer resident
    /// experts.
    ranges: Vec<f32>,
    /// For a whole FFN: the residual stream, `[tokens, d_model]`.
    residual: Vec<f32>,
}

impl CpuShare {
    /// Starts without cold neurons in any of `n_layer` layers.
    pub fn new(cpu: Cpu, n_layer: usize) -> Self {
        let mut cpu = CpuProcessor::new(cpu);
        cpu.hold_experts(HeldExperts::None);
        CpuShare { cpu, ffn: CpuFfn::default(), neurons: vec![Vec::new(); n_layer], handed_over: HandedOver::default() }
    }

    /// Reads the `bytes` that the device has handed over for `part` after the FFN's input.
    pub fn receive(&mut self, part: ColdPart<'_>, bytes: &[u8], registers: &Registers) {
        let HandedOver { predicted, ids, router_weights, ranges, residual } = &mut self.handed_over;
        match part {
            ColdPart::Neurons { .. } => copy(bytes, predicted),
            ColdPart::Experts { ranges: tokens, .. } => {
                let (pairs, of_tokens) = bytes.split_at(bytes.len() - tokens * size_of::<f32>());
                let (chosen, weights) = pairs.split_at(pairs.len() / 2);
                copy(chosen, ids);
                copy(weights, router_weights);
                copy(of_tokens, ranges);
            }
            ColdPart::Whole => unpad(bytes, registers.row_bytes() as usize, registers.d_model, residual),
        }
    }

    /// Computes `part` of an FFN's output, `[tokens, d_model]`, without the bias unless `part` is
    /// the whole FFN. Returns its work and the masks that an observer wants.
    pub fn compute(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        part: ColdPart<'_>,
        input: ColdInput<'_>,
        out: &mut [f32],
    ) -> Result<FiringEntry> {
        match part {
            ColdPart::Neurons { ffn: weights, predicted } => {
                self.compute_neurons(pass, ffn, weights, predicted, input, out)
            }
            ColdPart::Experts { resident, .. } => self.compute_experts(pass, ffn, resident, input, out),
            ColdPart::Whole => self.compute_whole(pass, ffn, input, out),
        }
    }

    fn compute_neurons(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        weights: &FfnWeights,
        predicted: bool,
        ColdInput { x, observed }: ColdInput<'_>,
        out: &mut [f32],
    ) -> Result<FiringEntry> {
        let started = Instant::now();
        let (layer, tokens) = (ffn.layer, pass.tokens.len());
        let mask = Some(&self.handed_over.predicted[..]).filter(|mask| !mask.is_empty());
        let blocks = [FfnBlock { neurons: Some(&self.neurons[layer]), ..FfnBlock::whole(weights) }];
        let task = FfnTask {
            sparsity: pass.sparsity,
            separate: pass.is_separate_on_both_sides(layer),
            prediction: mask.filter(|_| predicted).map(PredictionSource::Mask),
            activation_threshold: ffn.activation_threshold,
            observed,
            ..FfnTask::dense(&blocks, pass.model.config.activation, TokenInputs { x, tokens })
        };
        let work = self.ffn.partial(self.cpu.cpu(), &task, out)?;
        let mut fired = Vec::new();
        if observed {
            fired.resize(tokens * mask::words(weights.up.weight.rows()), 0);
            self.ffn.fired(0, &mut fired);
        }
        let mut strength = Vec::new();
        if observed && tokens == 1 && pass.probe.wants_device_strength() {
            strength.resize(weights.up.weight.rows(), 0.0);
            self.ffn.strength(0).spread(&mut strength);
        }
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        let work = ColdWork { any: work.active > 0, fired, strength, bytes, scattered, cpu_ns };
        let predicted = mask.filter(|_| observed).map(<[u32]>::to_vec);
        Ok(FiringEntry { work, predicted, ..FiringEntry::new(layer, tokens) })
    }

    /// Computes the weighted sum of the chosen experts that are not `resident`.
    fn compute_experts(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        resident: &[u32],
        ColdInput { x, observed }: ColdInput<'_>,
        out: &mut [f32],
    ) -> Result<FiringEntry> {
        let (layer, tokens) = (ffn.layer, pass.tokens.len());
        let HandedOver { ids, router_weights, ranges, .. } = &mut self.handed_over;
        if pass.probe.wants_router() {
            pass.probe.router(layer, &ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
        }
        let preference = self.cpu.preferences.with_resident(pass, layer, resident);
        let (used, mut dropped) = (ids.len() / tokens.max(1), 0);
        for (pair, (id, weight)) in ids.iter_mut().zip(&*router_weights).enumerate() {
            let expert = *id as usize;
            let is_dropped = preference.as_ref().is_some_and(|of| of.drops(pair % used, expert, *weight));
            dropped += usize::from(is_dropped);
            if is_dropped || mask::contains(resident, expert) {
                *id = NO_NEURON;
            }
        }
        pass.probe.dropped_experts(layer, dropped);
        self.cpu.preferences.add_ranges(pass, layer, ranges);
        let mut entry = FiringEntry::new(layer, tokens);
        if ids.iter().all(|id| *id == NO_NEURON) {
            return Ok(entry);
        }
        let started = Instant::now();
        let neurons = ffn.kind.neurons().count();
        let mut fired = vec![0; if observed { tokens * mask::words(neurons) } else { 0 }];
        let masks = observed.then_some(&mut fired[..]);
        let chosen = ChosenExperts { ids, router_weights };
        let work = self.cpu.experts_of(pass, ffn, TokenInputs { x, tokens }, chosen, out, masks)?;
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        entry.work = ColdWork { any: true, fired, bytes, scattered, cpu_ns, ..ColdWork::default() };
        Ok(entry)
    }

    fn compute_whole(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        ColdInput { x, observed }: ColdInput<'_>,
        out: &mut [f32],
    ) -> Result<FiringEntry> {
        let inputs = LayerInputs {
            x,
            residual: ffn.keeps_residual.then_some(&self.handed_over.residual[..]),
            tokens: pass.tokens.len(),
        };
        let work = ColdWork { any: true, ..ColdWork::default() };
        let entry = FiringEntry { work, ..FiringEntry::new(ffn.layer, pass.tokens.len()) };
        let Pass { model, tokens, states, separate, sparsity, correction, routes, times, ref mut probe, .. } = *pass;
        let neurons = ffn.kind.neurons().count();
        let mut deferred = DeferredFiring { probe: &mut **probe, observed, neurons, entry };
        let probe = &mut deferred;
        let mut pass = Pass {
            model,
            tokens,
            states,
            inputs: &[],
            second_at: None,
            separate,
            sparsity,
            correction,
            routes,
            times,
            probe,
        };
        self.cpu.ffn_of(&mut pass, ffn, inputs, out)?;
        Ok(deferred.entry)
    }
}

/// Sets `to` to the values in `bytes`.
fn copy<T: Pod>(bytes: &[u8], to: &mut Vec<T>) {
    to.resize(bytes.len() / size_of::<T>(), T::zeroed());
    bytemuck::cast_slice_mut(to).copy_from_slice(bytes);
}
