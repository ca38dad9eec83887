//! The CPU's part of the device's layers.

use std::time::Instant;

use crate::{
    error::{Error, Result},
    model::{
        CpuFfn, CpuProcessor, Ffn, FfnBlock, FfnTask, Guess, Model, Probe, Sparsity,
        gpu::{ColdSide, ColdWork},
        mask,
    },
};

/// The CPU, lent to a device for one layer.
#[derive(Debug)]
pub(super) struct Cold<'a> {
    pub model: &'a Model,
    pub cpu: &'a mut CpuProcessor,
    pub ffn: &'a mut CpuFfn,
    /// Neurons of the layer that are not resident, ascending.
    pub neurons: &'a [u32],
    pub sparsity: Sparsity,
    pub tokens: usize,
    /// Whether the device is to compute these neurons, too.
    pub streams: bool,
}

impl ColdSide for Cold<'_> {
    fn partial(
        &mut self,
        layer: usize,
        x: &[f32],
        out: &mut [f32],
        predicted: Option<&[u32]>,
        watched: bool,
    ) -> Result<ColdWork> {
        let started = Instant::now();
        let weights = &self.model.weights.layers[layer];
        let Ffn::Dense(ffn) = &weights.ffn else {
            return Err(Error::invalid("cold neurons", "an FFN of neurons", "a mixture"));
        };
        let task = FfnTask {
            blocks: &[FfnBlock { neurons: Some(self.neurons), ..FfnBlock::whole(ffn) }],
            activation: self.model.config.activation,
            sparsity: self.sparsity,
            guess: predicted.map(Guess::Mask),
            audited: false,
            cut: weights.cut,
            x,
            tokens: self.tokens,
            observed: watched,
        };
        let work = self.ffn.partial(self.cpu.cpu(), &task, out)?;
        let mut fired = Vec::new();
        if watched {
            fired.resize(self.tokens * mask::words(ffn.up.weight.rows()), 0);
            self.ffn.fired(0, &mut fired);
        }
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        Ok(ColdWork { any: work.active > 0, fired, bytes, scattered, cpu_ns })
    }

    fn streamed(&self, layer: usize) -> Option<(&Ffn, &[u32])> {
        self.streams.then(|| (&self.model.weights.layers[layer].ffn, self.neurons))
    }

    fn experts(
        &mut self,
        layer: usize,
        x: &[f32],
        chosen: (&[u32], &[f32]),
        out: &mut [f32],
        watched: bool,
    ) -> Result<ColdWork> {
        let started = Instant::now();
        let neurons = self.model.weights.layers[layer].ffn.neurons().count();
        let mut fired = vec![0; if watched { self.tokens * mask::words(neurons) } else { 0 }];
        let told = watched.then_some(&mut fired[..]);
        let work = self.cpu.experts_of(self.model, layer, (x, self.tokens), chosen, out, told)?;
        let (bytes, scattered) = (work.bytes(), work.scattered);
        let cpu_ns = started.elapsed().as_nanos() as u64;
        Ok(ColdWork { any: true, fired, bytes, scattered, cpu_ns })
    }

    fn whole(
        &mut self,
        layer: usize,
        x: &[f32],
        residual: Option<&[f32]>,
        out: &mut [f32],
        probe: &mut dyn Probe,
    ) -> Result<()> {
        self.cpu.ffn_of(self.model, layer, (x, residual), out, self.tokens, probe)
    }
}
