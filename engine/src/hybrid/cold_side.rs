//! The CPU's side of a hybrid processor: whole layers that are not on the device, and the cold part of the FFNs of those that are.

use std::time::Instant;

use crate::{
    cpu::Cpu,
    device::firing_log::ColdWork,
    error::{Error, Result},
    model::{BoundFfn, Ffn, mask},
    runtime::{
        ChosenExperts, CpuFfn, CpuProcessor, FfnBlock, FfnTask, LayerInputs, Pass, PredictionSource, TokenInputs,
    },
};

/// The CPU, and the neurons it has to compute of the device's layers.
#[derive(Debug)]
pub(crate) struct ColdSide {
    pub cpu: CpuProcessor,
    /// Computes cold neurons, beside the CPU's own layers.
    ffn: CpuFfn,
    /// Per layer its cold neurons, ascending, where neurons are resident one by one.
    pub neurons: Vec<Vec<u32>>,
}

impl ColdSide {
    /// Nothing of `n_layer` layers is cold yet.
    pub fn new(cpu: Cpu, n_layer: usize) -> Self {
        ColdSide { cpu: CpuProcessor::new(cpu), ffn: CpuFfn::default(), neurons: vec![Vec::new(); n_layer] }
    }

    /// Computes the cold neurons' part of a layer's FFN output, without its bias: `out` is `[tokens, d_model]`, as are the FFN's
    /// inputs. `predicted` is the predictor's mask of all neurons, if it is followed; `observed`: [`ColdWork::fired`] is wanted.
    pub fn compute_neurons(
        &mut self,
        pass: &Pass<'_>,
        layer: usize,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        predicted: Option<&[u32]>,
        observed: bool,
        out: &mut [f32],
    ) -> Result<ColdWork> {
        let started = Instant::now();
        let weights = &pass.model.weights.layers[layer];
        let Ffn::Dense(ffn) = &weights.ffn else {
            return Err(Error::invalid("cold neurons", "an FFN of neurons", "experts"));
        };
        let task = FfnTask {
            blocks: &[FfnBlock { neurons: Some(&self.neurons[layer]), ..FfnBlock::whole(ffn) }],
            activation: pass.model.config.activation,
            sparsity: pass.sparsity,
            prediction: predicted.map(PredictionSource::Mask),
            recall_check: false,
            activation_threshold: weights.activation_threshold,
            x,
            tokens,
            observed,
            separate: false,
        };
        let work = self.ffn.partial(self.cpu.cpu(), &task, out)?;
        let mut fired = Vec::new();
        if observed {
            fired.resize(tokens * mask::words(ffn.up.weight.rows()), 0);
            self.ffn.fired(0, &mut fired);
        }
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        Ok(ColdWork { any: work.active > 0, fired, bytes, scattered, cpu_ns })
    }

    /// Computes the weighted sum of cold experts of an MoE layer; an id that is no expert's is left out. `out` and the inputs are
    /// `[tokens, d_model]`; `observed` as before.
    pub fn compute_experts(
        &mut self,
        pass: &Pass<'_>,
        ffn: &BoundFfn<'_>,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        chosen: ChosenExperts<'_>,
        observed: bool,
        out: &mut [f32],
    ) -> Result<ColdWork> {
        let started = Instant::now();
        let neurons = ffn.kind.neurons().count();
        let mut fired = vec![0; if observed { tokens * mask::words(neurons) } else { 0 }];
        let masks = observed.then_some(&mut fired[..]);
        let work = self.cpu.experts_of(pass, ffn, TokenInputs { x, tokens }, chosen, out, masks)?;
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        Ok(ColdWork { any: true, fired, bytes, scattered, cpu_ns })
    }

    /// Computes a whole FFN; `out` is `[tokens, d_model]`.
    pub fn compute_ffn(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        inputs: LayerInputs<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        self.cpu.ffn_of(pass, ffn, inputs, out)
    }
}
