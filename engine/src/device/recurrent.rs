//! Recurrent mixers of layers on the device: projections, short convolution, scan and output matrix. The kernels that are bound to a
//! conversation's state are its own ([`StateOps`]).

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use thermocline_shaders::limits::{SCAN_LANES, SCAN_ROWS};

use super::{
    delta_net::DeltaNetOps,
    layer::no_buffers,
    loader::GpuLoader,
    mamba2::Mamba2Ops,
    product::Product,
    registers::Registers,
    state::{StateCopies, StateOps},
};
use crate::{
    cpu::ops::ShortConv,
    error::Result,
    gpu::{Buffer, BufferRows, Gpu, MemoryUse, Op, Purpose, Recorder, params, pitch},
    model::{BoundMixer, BoundRecurrent, Linear, ModelConfig, RecurrentConfig, RecurrentWeights, Register},
};

/// Invocations of a workgroup, for kernels written for any number.
pub(super) const WORKGROUP: u32 = 128;
/// Tokens of a convolution's run: more runs of a prompt are computed at once.
const RUN: usize = 32;

/// Row pitches of a recurrent mixer's buffers, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrentLayout {
    /// Projections of a token: first the convolution's channels, then gates and rates.
    pub projected: usize,
    /// Channels behind the convolution.
    pub convolved: usize,
    /// Outputs of the heads; 0 without a scan.
    pub heads: usize,
}

impl RecurrentLayout {
    /// For rows of so many floats.
    pub(super) fn new(projected: usize, convolved: usize, heads: usize) -> Self {
        RecurrentLayout { projected: pitch(projected), convolved: pitch(convolved), heads: pitch(heads) }
    }

    fn of(of: &RecurrentConfig) -> Self {
        match of {
            RecurrentConfig::DeltaNet { shape, .. } => DeltaNetOps::layout(shape),
            RecurrentConfig::Mamba2 { shape, .. } => Mamba2Ops::layout(shape),
            RecurrentConfig::ShortConv { channels, .. } => RecurrentLayout::new(3 * channels, *channels, 0),
        }
    }
}

/// Different recurrent mixers of a model's layers.
fn kinds(config: &ModelConfig) -> Vec<&RecurrentConfig> {
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
    pub fn new(loader: &GpuLoader<'_, '_>) -> Result<Self> {
        let each = kinds(loader.config).into_iter().map(|of| {
            let layout = RecurrentLayout::of(of);
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
}

/// A scan between convolution and output matrix.
#[derive(Debug)]
enum ScanOps {
    DeltaNet(DeltaNetOps),
    Mamba2(Mamba2Ops),
}

/// The matrices and the convolution of a mixer, in the order of a row of projections.
#[derive(Debug)]
struct MixerMatrices<'a> {
    /// Stacked: the convolution's channels, gates, rates.
    projections: Vec<&'a Linear>,
    conv: &'a ShortConv,
    output: &'a Linear,
}

impl<'a> MixerMatrices<'a> {
    fn of(weights: &'a RecurrentWeights) -> Self {
        let (projections, conv, output) = match weights {
            RecurrentWeights::DeltaNet(of) => (vec![&of.qkv, &of.gate, &of.alpha, &of.beta], &of.conv, &of.output),
            RecurrentWeights::Mamba2(of) => (vec![&of.xbc, &of.gate, &of.dt], &of.conv, &of.output),
            RecurrentWeights::ShortConv(of) => (vec![&of.input, &of.input_gate, &of.output_gate], &of.conv, &of.output),
        };
        MixerMatrices { projections, conv, output }
    }
}

/// One layer's recurrent mixer.
#[derive(Debug)]
pub(crate) struct RecurrentOps {
    pub of: RecurrentConfig,
    buffers: MixerBuffers,
    projections: Product,
    /// `[taps, channels]`
    conv_weight: Buffer,
    /// `[channels]`
    conv_bias: Option<Buffer>,
    channels: usize,
    taps: usize,
    /// `None`: the gated convolution is all there is.
    scan: Option<ScanOps>,
    output: Product,
}

impl RecurrentOps {
    /// Uploads a layer's mixer.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &RecurrentBuffers,
        recurrent: BoundRecurrent<'_>,
        registers: &Registers,
    ) -> Result<Self> {
        let BoundRecurrent { from, config: of, weights, mixer, .. } = recurrent;
        let (from, out) = (registers.get(from), registers.rows(Register::Out));
        let buffers = buffers.kinds.iter().find(|kind| kind.of == *of).ok_or_else(no_buffers)?;
        check(of)?;
        let MixerMatrices { projections, conv, output } = MixerMatrices::of(weights);
        let what = MemoryUse { purpose: Purpose::Attention, what: "weights of a recurrent mixer" };
        let into = BufferRows { buffer: &buffers.projected, pitch: buffers.layout.projected };
        let projections = Product::new(loader, what, &projections, from, into)?;
        let conv_weight = loader.vector("a convolution", conv.weight())?;
        let conv_bias = conv.bias().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let scan = match mixer {
            BoundMixer::DeltaNet { shape, weights } => {
                Some(ScanOps::DeltaNet(DeltaNetOps::new(loader, buffers, *shape, weights)?))
            }
            BoundMixer::Mamba2 { shape, step_limits, weights } => {
                Some(ScanOps::Mamba2(Mamba2Ops::new(loader, buffers, *shape, step_limits, weights)?))
            }
            BoundMixer::ShortConv(_) => None,
        };
        let mixed = if scan.is_some() { &buffers.heads } else { &buffers.convolved };
        let output = Product::new(loader, what, &[output], mixed, out)?;
        Ok(RecurrentOps {
            of: of.clone(),
            buffers: buffers.clone(),
            projections,
            conv_weight,
            conv_bias,
            channels: conv.channels(),
            taps: conv.history() + 1,
            scan,
            output,
        })
    }

    /// Records the mixer for `tokens` tokens. Each of `states` is advanced by its rows, tokens of one conversation.
    pub fn record(&self, recorder: &mut Recorder, states: &[(Range<usize>, &StateOps)], tokens: usize) {
        let layout = self.buffers.layout;
        self.projections.record(recorder, tokens);
        for (rows, state) in states {
            self.record_conv(recorder, &state.conv, rows);
        }
        match &self.scan {
            Some(ScanOps::DeltaNet(ops)) => ops.record(recorder, layout, states, tokens),
            Some(ScanOps::Mamba2(ops)) => ops.record(recorder, layout, states, tokens),
            None => {}
        }
        self.output.record(recorder, tokens);
    }

    fn record_conv(&self, recorder: &mut Recorder, op: &Op, rows: &Range<usize>) {
        let (layout, runs) = (self.buffers.layout, rows.len().div_ceil(RUN));
        let mut conv = params::ShortConv {
            channels: self.channels as u32,
            taps: self.taps as u32,
            tokens: rows.len() as u32,
            x_pitch: layout.projected as u32,
            y_pitch: layout.convolved as u32,
            span: RUN as u32,
            save: u32::from(runs == 1),
            row: rows.start as u32,
        };
        let groups = conv.channels.div_ceil(op.pipeline().workgroup());
        recorder.dispatch(op, &conv, [groups, runs as u32, 1]);
        if runs > 1 {
            (conv.span, conv.save) = (0, 1);
            recorder.dispatch(op, &conv, [groups, 1, 1]);
        }
    }

    /// Multiply-adds of `tokens` tokens.
    pub fn work(&self, tokens: usize) -> u64 {
        let scan = match &self.scan {
            Some(ScanOps::DeltaNet(ops)) => ops.work(),
            Some(ScanOps::Mamba2(ops)) => ops.work(),
            None => 0,
        };
        (self.projections.work + self.output.work + scan) * tokens as u64
    }

    /// The convolution of a conversation whose last inputs are in `state`.
    pub fn conv(&self, gpu: &Gpu, state: &Buffer) -> Result<Op> {
        let flag = |on: bool| f64::from(u8::from(on));
        let overrides = [
            ("HAS_BIAS", flag(self.conv_bias.is_some())),
            ("ACTIVATE", flag(self.scan.is_some())),
            ("GATED", flag(self.scan.is_none())),
        ];
        let pipeline = gpu.pipelines().get("short_conv", None, WORKGROUP, &overrides)?;
        let bias = self.conv_bias.as_ref().unwrap_or(gpu.nothing());
        let MixerBuffers { projected, convolved, .. } = &self.buffers;
        Op::new(gpu, &pipeline, &[projected, &self.conv_weight, bias, state, convolved].map(Into::into))
    }

    /// The scan of a conversation whose memory is `state`; `None` if the convolution's inputs are all its memory.
    pub fn scan(&self, gpu: &Gpu, state: &Buffer) -> Result<Option<Op>> {
        match &self.scan {
            Some(ScanOps::DeltaNet(ops)) => ops.scan(gpu, &self.buffers, state).map(Some),
            Some(ScanOps::Mamba2(ops)) => ops.scan(gpu, &self.buffers, state).map(Some),
            None => Ok(None),
        }
    }
}

/// Refuses a mixer that the kernels cannot compute.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) with its sizes.
pub(crate) fn check(of: &RecurrentConfig) -> Result<()> {
    match of {
        RecurrentConfig::DeltaNet { shape, .. } => DeltaNetOps::check(shape),
        RecurrentConfig::Mamba2 { shape, .. } => Mamba2Ops::check(shape),
        RecurrentConfig::ShortConv { .. } => Ok(()),
    }
}

/// Lanes of a scan that share a column of a state of `rows` rows.
pub(super) fn scan_slices(rows: usize) -> u32 {
    (rows as u32).div_ceil(SCAN_ROWS).max(1)
}

/// Columns of a state of `rows` rows that a workgroup of a scan takes, of `width`.
pub(super) fn scan_columns(rows: usize, width: usize) -> u32 {
    (SCAN_LANES / scan_slices(rows)).clamp(1, (width as u32).next_multiple_of(16))
}
