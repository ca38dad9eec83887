//! Who computes what is not resident.

use crate::{
    error::Result,
    model::{Ffn, Probe},
};

/// The other side of a split FFN: it has all weights, and works while the device computes the resident neurons.
pub(crate) trait ColdSide {
    /// What the neurons of `layer` that are not resident add to the FFN's output, without its bias: `out` is
    /// `[tokens, d_model]`, as is `x`, the FFN's input. `predicted` is the predictor's mask of all neurons, if it was asked;
    /// `watched`: [`ColdWork::fired`] is wanted.
    fn partial(
        &mut self,
        layer: usize,
        x: &[f32],
        out: &mut [f32],
        predicted: Option<&[u32]>,
        watched: bool,
    ) -> Result<ColdWork>;

    /// The neurons of `layer` that are not resident, with their FFN, if the device is to compute the chunk's part of these, too, with
    /// rows that are sent to it. Where it has no room for them, they are asked for here all the same.
    fn streamed(&self, layer: usize) -> Option<(&Ffn, &[u32])> {
        let _ = layer;
        None
    }

    /// What experts of the mixture of `layer` add to its output: `ids` and `shares` are `[tokens, used]`, and an id that is no
    /// expert's is somebody else's business. `out` and `x` are `[tokens, d_model]`; `watched` as before.
    fn experts(
        &mut self,
        layer: usize,
        x: &[f32],
        chosen: (&[u32], &[f32]),
        out: &mut [f32],
        watched: bool,
    ) -> Result<ColdWork>;

    /// The whole FFN: `out` and `x` are `[tokens, d_model]`, as is what the norm before it saw, if that is still known.
    fn whole(
        &mut self,
        layer: usize,
        x: &[f32],
        residual: Option<&[f32]>,
        out: &mut [f32],
        probe: &mut dyn Probe,
    ) -> Result<()>;
}

/// What the other side did.
#[derive(Debug, Default)]
pub(crate) struct ColdWork {
    /// Whether any neuron was active, or any expert asked; if not, the sum is zero.
    pub any: bool,
    /// `[tokens, n_ff.div_ceil(32)]`, where it is wanted: which of its neurons fired.
    pub fired: Vec<u32>,
    /// Bytes of weights read, and of these how many as rows here and there.
    pub bytes: u64,
    pub scattered: u64,
    /// Nanoseconds it worked.
    pub cpu_ns: u64,
}

/// Nobody: for models that are on the device altogether.
#[derive(Debug)]
pub(super) struct NoOther;

fn nobody(layer: usize) -> crate::Error {
    crate::Error::invalid("FFN on the GPU", "all of it", format!("a part of layer {layer}'s"))
}

impl ColdSide for NoOther {
    fn partial(&mut self, layer: usize, _: &[f32], _: &mut [f32], _: Option<&[u32]>, _: bool) -> Result<ColdWork> {
        Err(nobody(layer))
    }

    fn experts(&mut self, layer: usize, _: &[f32], _: (&[u32], &[f32]), _: &mut [f32], _: bool) -> Result<ColdWork> {
        Err(nobody(layer))
    }

    fn whole(&mut self, layer: usize, _: &[f32], _: Option<&[f32]>, _: &mut [f32], _: &mut dyn Probe) -> Result<()> {
        Err(nobody(layer))
    }
}
