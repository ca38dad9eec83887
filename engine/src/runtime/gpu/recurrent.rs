//! Recurrent mixers of layers on the device, except the kernels that are bound to a conversation's state ([`StateOps`]).

use std::sync::Arc;

use parking_lot::Mutex;
use thermocline_shaders::limits::{DELTA_LANES, DELTA_ROWS};

use super::{
    layer::no_recurrence,
    loader::Loader,
    product::Product,
    state::{StateCopies, StateOps},
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Recorder, params, pitch},
    model::{DeltaNetShape, DeltaNetWeights, ModelConfig, RecurrentConfig, RecurrentWeights},
};

/// Invocations of a workgroup, for kernels written for any number.
const WORKGROUP: u32 = 128;
/// Tokens of a convolution's run: more runs of a prompt are computed at once.
const RUN: usize = 32;

/// Row pitches of a recurrent mixer's buffers, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrentLayout {
    /// Projections of a token: first the convolution's channels, then the gate, then the rates.
    pub projected: usize,
    /// Channels behind the convolution.
    pub convolved: usize,
    /// Outputs of the heads.
    pub heads: usize,
}

impl RecurrentLayout {
    pub fn new(of: &RecurrentConfig) -> Self {
        match of {
            RecurrentConfig::DeltaNet { shape, .. } => RecurrentLayout {
                projected: pitch(shape.qkv() + shape.values() + 2 * shape.v_heads),
                convolved: pitch(shape.qkv()),
                heads: pitch(shape.values()),
            },
            // Refused by `check`.
            _ => RecurrentLayout { projected: 0, convolved: 0, heads: 0 },
        }
    }

    /// The pitches.
    pub fn rows(self) -> [usize; 3] {
        [self.projected, self.convolved, self.heads]
    }
}

/// Different recurrent mixers of a model's layers.
pub(crate) fn kinds(config: &ModelConfig) -> Vec<&RecurrentConfig> {
    let mut kinds: Vec<&RecurrentConfig> = Vec::new();
    for of in config.layers.iter().filter_map(|layer| layer.recurrent.as_ref()) {
        if !kinds.contains(&of) {
            kinds.push(of);
        }
    }
    kinds
}

/// Buffers of one kind of mixer, which its layers share.
#[derive(Debug, Clone)]
pub(crate) struct MixerBuffers {
    of: RecurrentConfig,
    layout: RecurrentLayout,
    /// `[chunk, layout.projected]`
    pub projected: Buffer,
    /// `[chunk, layout.convolved]`
    pub convolved: Buffer,
    /// `[chunk, layout.heads]`
    pub heads: Buffer,
}

/// Buffers of all recurrent mixers, and the rings that carry states up and down.
#[derive(Debug)]
pub(crate) struct RecurrentBuffers {
    kinds: Vec<MixerBuffers>,
    /// `None` in a model without recurrent layers.
    pub copies: Option<Arc<Mutex<StateCopies>>>,
}

impl RecurrentBuffers {
    pub fn new(loader: &Loader<'_, '_>) -> Result<Self> {
        let each = kinds(loader.config).into_iter().map(|of| {
            let layout = RecurrentLayout::new(of);
            let buffer = |what, pitch: usize| loader.scratch(what, loader.chunk * pitch);
            Ok(MixerBuffers {
                of: of.clone(),
                layout,
                projected: buffer("a recurrent mixer's projections", layout.projected)?,
                convolved: buffer("convolved channels", layout.convolved)?,
                heads: buffer("a recurrent mixer's heads", layout.heads)?,
            })
        });
        Ok(RecurrentBuffers {
            kinds: each.collect::<Result<_>>()?,
            copies: StateCopies::new(loader.gpu, loader.config)?,
        })
    }

    /// Sizes of the scratch buffers, in floats.
    pub fn scratch_floats(config: &ModelConfig, chunk: usize) -> Vec<usize> {
        let rows = kinds(config).into_iter().flat_map(|of| RecurrentLayout::new(of).rows());
        rows.map(|row| chunk * row).collect()
    }

    /// Elements of the longest row of a buffer.
    pub fn widest(config: &ModelConfig) -> usize {
        Self::scratch_floats(config, 1).into_iter().max().unwrap_or(0)
    }
}

/// One layer's recurrent mixer: a gated delta net's matrices, convolution and norm.
#[derive(Debug)]
pub(crate) struct RecurrentOps {
    pub of: RecurrentConfig,
    pub buffers: MixerBuffers,
    shape: DeltaNetShape,
    /// Taps of the convolution.
    taps: usize,
    eps: f32,
    projections: Product,
    /// `[taps, channels]`
    pub conv_weight: Buffer,
    /// `[channels]`
    pub conv_bias: Option<Buffer>,
    /// Lengths of queries and keys, rates.
    inputs: Op,
    norm: Op,
    output: Product,
}

impl RecurrentOps {
    /// Uploads the mixer of `layer`, which reads `from` and writes `out`, whose rows are `pitch` apart.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        buffers: &RecurrentBuffers,
        (layer, of, weights): (usize, &RecurrentConfig, &RecurrentWeights),
        from: &Buffer,
        (out, pitch): (&Buffer, usize),
    ) -> Result<Self> {
        let Some(buffers) = buffers.kinds.iter().find(|kind| kind.of == *of) else { return Err(no_recurrence(layer)) };
        check(of)?;
        let (RecurrentConfig::DeltaNet { shape, taps }, RecurrentWeights::DeltaNet(weights)) = (of, weights) else {
            return Err(no_recurrence(layer));
        };
        let DeltaNetWeights { qkv, gate, alpha, beta, conv, a, dt_bias, norm, output } = &**weights;
        let what = (Purpose::Attention, "weights of a recurrent mixer");
        let into = (&buffers.projected, buffers.layout.projected);
        let projections = Product::new(loader, what, &[qkv, gate, alpha, beta], from, into)?;
        let conv_weight = loader.vector("a convolution", conv.weight())?;
        let conv_bias = conv.bias().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let (a, dt_bias) = (loader.vector("decays", a)?, loader.vector("a bias", dt_bias)?);
        let norm = loader.vector("a norm", &norm.weight)?;
        let output = Product::new(loader, what, &[output], &buffers.heads, (out, pitch))?;
        let pipelines = loader.gpu.pipelines();
        let bindings = [&buffers.convolved, &buffers.projected, &a, &dt_bias].map(Into::into);
        let inputs = Op::new(loader.gpu, &pipelines.get("delta_inputs", None, WORKGROUP, &[])?, &bindings)?;
        let bindings = [&buffers.heads, &buffers.projected, &norm].map(Into::into);
        let norm = Op::new(loader.gpu, &pipelines.get("gated_norm", None, WORKGROUP, &[])?, &bindings)?;
        Ok(RecurrentOps {
            of: of.clone(),
            buffers: buffers.clone(),
            shape: *shape,
            taps: *taps,
            eps: loader.config.norm_eps,
            projections,
            conv_weight,
            conv_bias,
            inputs,
            norm,
            output,
        })
    }

    /// Records the mixer for `tokens` tokens, by which `state` is advanced.
    pub fn record(&self, recorder: &mut Recorder, state: &StateOps, tokens: usize) {
        let (shape, layout) = (&self.shape, &self.buffers.layout);
        self.projections.record(recorder, tokens);
        let runs = tokens.div_ceil(RUN);
        let mut conv = params::ShortConv {
            channels: shape.qkv() as u32,
            taps: self.taps as u32,
            tokens: tokens as u32,
            x_pitch: layout.projected as u32,
            y_pitch: layout.convolved as u32,
            span: RUN as u32,
            save: u32::from(runs == 1),
        };
        let groups = conv.channels.div_ceil(state.conv.pipeline().workgroup());
        recorder.dispatch(&state.conv, &conv, [groups, runs as u32, 1]);
        if runs > 1 {
            (conv.span, conv.save) = (0, 1);
            recorder.dispatch(&state.conv, &conv, [groups, 1, 1]);
        }
        let [k_heads, v_heads, k_dim, v_dim] =
            [shape.k_heads, shape.v_heads, shape.k_dim, shape.v_dim].map(|n| n as u32);
        let [qkv_pitch, rates_pitch, out_pitch] = [layout.convolved, layout.projected, layout.heads].map(|n| n as u32);
        let gate_at = shape.qkv() as u32;
        let decay_at = gate_at + shape.values() as u32;
        let rate_at = decay_at + v_heads;
        let inputs = params::DeltaInputs { k_heads, v_heads, k_dim, qkv_pitch, rates_pitch, decay_at, rate_at };
        recorder.dispatch(&self.inputs, &inputs, [2 * k_heads + 1, tokens as u32, 1]);
        let scan = params::DeltaNet {
            tokens: tokens as u32,
            k_heads,
            v_heads,
            v_dim,
            qkv_pitch,
            rates_pitch,
            decay_at,
            rate_at,
            out_pitch,
        };
        recorder.dispatch(&state.scan, &scan, [v_dim.div_ceil(columns(shape)), v_heads, 1]);
        let norm = params::GatedNorm { dim: v_dim, pitch: out_pitch, gate_pitch: rates_pitch, gate_at, eps: self.eps };
        recorder.dispatch(&self.norm, &norm, [v_heads, tokens as u32, 1]);
        self.output.record(recorder, tokens);
    }

    /// Multiply-adds of `tokens` tokens.
    pub fn work(&self, tokens: usize) -> u64 {
        (self.projections.work + self.output.work + 3 * self.shape.state() as u64) * tokens as u64
    }

    /// The convolution of a conversation whose last inputs are in `state`.
    pub fn conv(&self, gpu: &Gpu, state: &Buffer) -> Result<Op> {
        let overrides = [("HAS_BIAS", f64::from(u8::from(self.conv_bias.is_some())))];
        let pipeline = gpu.pipelines().get("short_conv", None, WORKGROUP, &overrides)?;
        let bias = self.conv_bias.as_ref().unwrap_or(gpu.nothing());
        let MixerBuffers { projected, convolved, .. } = &self.buffers;
        Op::new(gpu, &pipeline, &[projected, &self.conv_weight, bias, state, convolved].map(Into::into))
    }

    /// The scan of a conversation whose memory is `state`.
    pub fn scan(&self, gpu: &Gpu, state: &Buffer) -> Result<Op> {
        let (shape, columns) = (&self.shape, columns(&self.shape));
        let overrides = [
            ("K_DIM", shape.k_dim as f64),
            ("COLUMNS", f64::from(columns)),
            ("INTERLEAVED", f64::from(u8::from(shape.interleaved))),
        ];
        let pipeline = gpu.pipelines().get("delta_net", None, slices(shape) * columns, &overrides)?;
        let MixerBuffers { projected, convolved, heads, .. } = &self.buffers;
        Op::new(gpu, &pipeline, &[convolved, projected, state, heads].map(Into::into))
    }
}

/// Refuses a mixer that the kernels cannot compute.
///
/// # Errors
/// [`Error::Unsupported`] with its sizes.
pub(crate) fn check(of: &RecurrentConfig) -> Result<()> {
    let RecurrentConfig::DeltaNet { shape, .. } = of else {
        return Err(Error::Unsupported {
            what: "recurrent mixer on the GPU",
            got: of.name().to_owned(),
            supported: "gated delta nets".to_owned(),
        });
    };
    let most = DELTA_LANES * DELTA_ROWS;
    if shape.k_dim <= most as usize {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "gated delta net on the GPU",
        got: format!("keys of {} elements", shape.k_dim),
        supported: format!("up to {most}"),
    })
}

/// Lanes of `delta_net` that share a column of the state.
fn slices(shape: &DeltaNetShape) -> u32 {
    (shape.k_dim as u32).div_ceil(DELTA_ROWS).max(1)
}

/// Columns of the state that a workgroup of `delta_net` takes.
fn columns(shape: &DeltaNetShape) -> u32 {
    (DELTA_LANES / slices(shape)).clamp(1, (shape.v_dim as u32).next_multiple_of(16))
}
