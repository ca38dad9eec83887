//! Names that most families use.

pub(super) use super::{
    Family, latent, mamba2,
    parts::{
        NORMS_AFTER, NORMS_AROUND, USUAL_NORMS, attention, check_lengths_kept, ffn, fused_layer, gated_heads,
        gated_layer, norms, per_layer_weights, recurrent_without_attention, ungated_layer, usual_layer,
    },
};
pub(super) use crate::{
    Activation, AttentionWeights, ExpertWeights, Ffn, FfnWeights, GateFunction, HeadGates, LayerWeights, Linear,
    ModelConfig, Norm, NormKind, NormSlot, RecurrentConfig, RecurrentWeights, Register, RopeOrder, RopeScaling,
    RopeSections, Router, RouterScore, Step,
    import::{Draft, ExpertOutputs, Gather, HfConfig, HfSizes, LayerRope, Naming, SlidingLayers, Transform},
    load::{Loader, RopeDefaults, Sizes},
    recurrent::load_short_conv,
    rope::yarn_magnitude,
};
pub(super) use thermocline_base::error::Result;
pub(super) use thermocline_cpu::ops::HeadSizes;
pub(super) use thermocline_formats::format::{Array, Bytes, Matrix, Value};
