//! One layer, prepared.

use super::{
    attention::{AttentionBuffers, AttentionOps},
    ffn::FfnOps,
    loader::{FfnShare, Loader},
    norm::{NormOp, NormWeights},
    registers::Registers,
};
use crate::{
    error::{Error, Result},
    model::{Model, NormSlot, Register, Step},
};

/// A norm of a layer's program.
pub(super) type NormStep = (NormSlot, Register, Register);

/// The prepared steps of one layer.
#[derive(Debug)]
pub(super) struct LayerOps {
    pub norms: Vec<(NormStep, NormOp)>,
    pub attention: AttentionOps,
    pub attention_from: Register,
    pub ffn: FfnOps,
    pub ffn_from: Register,
    /// The norm whose output the FFN reads: where the predictor looks.
    pub feeds_ffn: Option<NormStep>,
    /// Whether the residual stream is still what that norm saw when the FFN's turn comes.
    pub keeps_residual: bool,
}

impl LayerOps {
    pub fn new(
        loader: &mut Loader<'_, '_>,
        registers: &Registers,
        attention: &AttentionBuffers,
        ffn_before: &[&FfnOps],
        model: &Model,
        layer: usize,
        share: FfnShare<'_>,
    ) -> Result<Self> {
        let (config, weights) = (&model.config, &model.weights.layers[layer]);
        let (mut norms, mut attention_from, mut ffn_from) = (Vec::new(), Register::Normed, Register::Normed);
        let mut feeds_ffn: Option<NormStep> = None;
        for step in &config.steps {
            match *step {
                Step::Norm { norm, from, into } => {
                    let Some(of) = weights.norm(norm) else { return Err(no_norm(layer, norm)) };
                    let of = NormWeights::new(loader, of)?;
                    let adds = from == Register::Residual && into != Register::Out;
                    let delta = adds.then(|| registers.get(Register::Out));
                    let op = NormOp::new(loader, &of, registers.get(from), delta, registers.get(into))?;
                    norms.push(((norm, from, into), op));
                }
                Step::Attention { from } => attention_from = from,
                Step::Ffn { from } => {
                    let feeding = norms.iter().rev().find(|((.., into), _): &&(NormStep, NormOp)| *into == from);
                    (ffn_from, feeds_ffn) = (from, feeding.map(|(step, _)| *step));
                }
                Step::AddOut => {}
            }
        }
        for from in [attention_from, ffn_from] {
            if from == Register::Out {
                return Err(Error::invalid("layer program", "products that do not read `Out`", format!("{from:?}")));
            }
        }
        let out = (registers.get(Register::Out), registers.pitch);
        let window = config.layers[layer].window;
        let from = registers.get(attention_from);
        let attention = AttentionOps::new(loader, attention, &weights.attention, window, from, out)?;
        let ffn = FfnOps::new(loader, ffn_before, weights, share, (registers, ffn_from), out)?;
        let keeps_residual = config.early_ffn_input().is_none();
        Ok(LayerOps { norms, attention, attention_from, ffn, ffn_from, feeds_ffn, keeps_residual })
    }
}

/// The model has no such norm there.
pub(super) fn no_norm(layer: usize, norm: NormSlot) -> Error {
    Error::invalid("layer program", "norms the model has", format!("{norm:?} in layer {layer}"))
}

/// A step may only read what it was prepared for.
pub(super) fn same(prepared: Register, asked: Register) -> Result<()> {
    if prepared == asked {
        return Ok(());
    }
    Err(Error::invalid("layer program", format!("a step that reads {prepared:?}"), format!("{asked:?}")))
}
