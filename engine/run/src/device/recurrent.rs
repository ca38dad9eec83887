//! Recurrent mixers of layers on the device: projections, short convolution, scan and output
//! matrix. Kernels that use a conversation's state are prepared for that conversation
//! ([`GpuState`](super::GpuState)). Each kind of mixer has an arm in [`layout`] and in [`scan()`],
//! and a file of its name if it has a scan.

mod delta_net;
mod mamba2;
mod mixer_buffers;
mod scan;

use std::{ops::Range, sync::Arc};

use delta_net::DeltaNetOps;
use mamba2::Mamba2Ops;
use mixer_buffers::{MixerBuffers, RecurrentLayout, WORKGROUP};
use parking_lot::Mutex;
use scan::ScanOps;

use super::{
    loader::GpuLoader,
    part_buffers::no_buffers,
    product::Product,
    registers::Registers,
    state::{GpuRowsState, StateCopies, StatePart},
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, BufferRows, Gpu, MemoryUse, Op, Purpose, Recorder, params};
use thermocline_model::{BoundMixer, BoundRecurrent, ModelConfig, RecurrentConfig, Register, StateShape};

/// Tokens that one run of the convolution covers; the runs of a prompt are computed in parallel.
const RUN: usize = 32;

/// Row pitches of a mixer's buffers. Has an arm for every kind of mixer with kernels.
///
/// # Errors
/// [`Error::Unsupported`] for a mixer that the kernels cannot compute.
fn layout(of: &RecurrentConfig) -> Result<RecurrentLayout> {
    match of {
        RecurrentConfig::DeltaNet(of) => DeltaNetOps::layout(of),
        RecurrentConfig::Mamba2(of) => Mamba2Ops::layout(of),
        RecurrentConfig::ShortConv(of) => Ok(RecurrentLayout::new(3 * of.channels, of.channels, 0)),
    }
}

/// The scan after a mixer's convolution, by kind; `None` if the mixer is only a gated convolution.
fn scan(
    loader: &mut GpuLoader<'_, '_>,
    buffers: &MixerBuffers,
    mixer: BoundMixer<'_>,
) -> Result<Option<Box<dyn ScanOps>>> {
    Ok(match mixer {
        BoundMixer::DeltaNet(of, weights) => Some(Box::new(DeltaNetOps::new(loader, buffers, of, weights)?)),
        BoundMixer::Mamba2(of, weights) => Some(Box::new(Mamba2Ops::new(loader, buffers, of, weights)?)),
        BoundMixer::ShortConv(..) => None,
    })
}

/// Returns an error for a mixer that the kernels cannot compute.
///
/// # Errors
/// [`Error::Unsupported`] with the mixer's sizes.
pub(crate) fn check(of: &RecurrentConfig) -> Result<()> {
    layout(of).map(drop)
}

/// The distinct recurrent mixers of a model's layers.
fn kinds(config: &ModelConfig) -> impl Iterator<Item = &RecurrentConfig> {
    let mut kinds: Vec<&RecurrentConfig> = Vec::new();
    for of in config.layers.iter().filter_map(|layer| layer.recurrent.as_ref()) {
        if !kinds.contains(&of) {
            kinds.push(of);
        }
    }
    kinds.into_iter()
}

/// Buffers of all recurrent mixers, and the rings that copy states to and from the device.
#[derive(Debug)]
pub struct RecurrentBuffers {
    kinds: Vec<MixerBuffers>,
    /// `None` in a model without recurrent layers.
    pub copies: Option<Arc<Mutex<StateCopies>>>,
}

impl RecurrentBuffers {
    pub fn new(loader: &GpuLoader<'_, '_>) -> Result<Self> {
        // A mixer without kernels is on no device.
        let each = kinds(loader.config).filter_map(|of| Some((of, layout(of).ok()?)));
        let each = each.map(|(of, layout)| MixerBuffers::new(loader, of, layout));
        Ok(RecurrentBuffers {
            kinds: each.collect::<Result<_>>()?,
            copies: StateCopies::new(loader.gpu, loader.config)?,
        })
    }
}

/// One layer's recurrent mixer.
#[derive(Debug)]
pub struct RecurrentOps {
    pub state: StateShape,
    buffers: MixerBuffers,
    projections: Product,
    /// `[taps, channels]`
    conv_weight: Buffer,
    /// `[channels]`
    conv_bias: Option<Buffer>,
    channels: usize,
    taps: usize,
    /// `None` for a mixer that is only a gated convolution.
    scan: Option<Box<dyn ScanOps>>,
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
        check(of)?;
        let buffers = buffers.kinds.iter().find(|kind| kind.of == *of).ok_or_else(no_buffers)?;
        let weights = weights.mixer();
        let no_conv =
            || Error::unsupported("recurrent mixer on the GPU", of.name(), "mixers after a short convolution");
        let conv = weights.conv().ok_or_else(no_conv)?;
        let what = MemoryUse { purpose: Purpose::Attention, what: "weights of a recurrent mixer" };
        let into = BufferRows { buffer: &buffers.projected, pitch: buffers.layout.projected };
        let projections = Product::new(loader, what, &weights.inputs(), from, into)?;
        let conv_weight = loader.vector("a convolution", conv.weight())?;
        let conv_bias = conv.bias().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let scan = scan(loader, buffers, mixer)?;
        let mixed = if scan.is_some() { &buffers.heads } else { &buffers.convolved };
        let output = Product::new(loader, what, &[weights.output()], mixed, out)?;
        Ok(RecurrentOps {
            state: of.state(),
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

    /// Records the mixer for `tokens` tokens. The rows of each entry of `states` belong to one
    /// conversation and advance its state.
    pub fn record(&self, recorder: &mut Recorder, states: &[GpuRowsState<'_>], tokens: usize) {
        let layout = self.buffers.layout;
        self.projections.record(recorder, tokens);
        for state in states {
            state.record(recorder, StatePart::Conv, |recorder, op, rows| self.record_conv(recorder, op, &rows));
        }
        if let Some(scan) = &self.scan {
            scan.record(recorder, layout, states, tokens);
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

    /// Multiply-adds per token.
    pub fn work(&self) -> u64 {
        let scan = self.scan.as_ref().map_or(0, |scan| scan.work());
        self.projections.work + self.output.work + scan
    }

    /// Prepares the convolution of a conversation whose last inputs are in `state`.
    pub fn conv(&self, gpu: &Gpu, state: &Buffer) -> Result<Op> {
        let flag = |on: bool| f64::from(u8::from(on));
        let overrides = [
            ("HAS_BIAS", flag(self.conv_bias.is_some())),
            ("ACTIVATE", flag(self.scan.is_some())),
            ("GATED", flag(self.scan.is_none())),
        ];
        let bias = self.conv_bias.as_ref().unwrap_or(gpu.nothing());
        let MixerBuffers { projected, convolved, .. } = &self.buffers;
        Op::of(gpu, "short_conv", WORKGROUP, &overrides, &[projected, &self.conv_weight, bias, state, convolved])
    }

    /// Prepares the scan of a conversation with the memory `state`. Returns `None` if the
    /// convolution's inputs are the whole memory.
    pub fn scan(&self, gpu: &Gpu, state: &Buffer) -> Result<Option<Op>> {
        self.scan.as_ref().map(|scan| scan.op(gpu, &self.buffers, state)).transpose()
    }
}
