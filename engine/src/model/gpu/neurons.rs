//! The down projection of files that have a neuron for a row: sums of rows instead of products with them.

use thermocline_shaders::limits::SPARSE_DOWN_TOKENS;

use super::{
    elementwise::{Elementwise, WORKGROUP, flat_grid},
    loader::Loader,
};
use crate::{
    error::{Error, Result},
    gpu::{Binding, Buffer, Caps, Gpu, Op, Purpose, Recorder, layout::device_type, params, pitch},
    model::Linear,
};

/// Workgroups that few tokens' sums are cut into.
const WORKGROUPS: usize = 512;
/// Fewer neurons than this are not worth a workgroup of their own.
const LEAST_SHARE: usize = 64;
/// Invocations of a workgroup of `sparse_down`, and those that read a row side by side, eight columns each.
const DOWN_WORKGROUP: u32 = 128;
const STRIP: usize = 32;

/// Where partial sums go; layers of one width share it.
#[derive(Debug, Clone)]
pub(super) struct PartialSums {
    /// `[rows, 32 * chunks]`
    partials: Buffer,
    rows: usize,
    chunks: usize,
    /// `[chunk, pitch]`, where there are matrices of several parts.
    more: Option<Buffer>,
}

/// `y[t] = sum over neurons of hidden[t, n] * W[n] + b`
#[derive(Debug)]
pub(super) struct NeuronsDown {
    gpu: Gpu,
    parts: Vec<Part>,
    pub sums: PartialSums,
    cols: usize,
    hidden_pitch: usize,
    /// Multiply-adds of a token.
    pub work: u64,
}

/// Some of the neurons.
#[derive(Debug)]
struct Part {
    neurons: usize,
    /// For one token, and for several that share what is read.
    one: Op,
    few: Op,
    /// Partial sums to the output, or to where they are then added from.
    sum: Op,
    add: Option<Elementwise>,
}

impl PartialSums {
    fn new(loader: &Loader<'_, '_>, chunks: usize, several: bool) -> Result<Self> {
        let rows = Self::rows(loader.gpu.caps(), chunks, loader.chunk);
        let more = several.then(|| loader.scratch("more sums", loader.chunk * pitch(loader.config.d_model)));
        Ok(PartialSums {
            partials: loader.scratch("partial sums", rows * chunks * 32)?,
            rows,
            chunks,
            more: more.transpose()?,
        })
    }

    /// Rows of sums for `chunk` tokens.
    pub fn rows(caps: &Caps, chunks: usize, chunk: usize) -> usize {
        let most = caps.max_binding as usize / (chunks * 128);
        (WORKGROUPS / strips(chunks)).min(most).max(chunk)
    }
}

/// Workgroups side by side on a row of `chunks` times 32 columns.
fn strips(chunks: usize) -> usize {
    (chunks * 4).div_ceil(STRIP)
}

impl NeuronsDown {
    /// `before` is another layer's.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&PartialSums>,
        linear: &Linear,
        hidden: &Buffer,
        (y, y_pitch): (&Buffer, usize),
    ) -> Result<Self> {
        let (gpu, weight) = (loader.gpu, &linear.weight);
        let (neurons, cols, ty) = (weight.rows(), weight.cols(), device_type(weight.ty()));
        let caps = gpu.caps();
        // Each part sees the hidden activations from its first neuron on, so that begins where a binding may.
        let align = caps.binding_alignment.max(16);
        let unit = (align / 4) as usize;
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 31).saturating_sub(align);
        let units = (most / ty.row_bytes(cols) as u64) as usize / unit;
        let step = units.max(1) * unit;
        let chunks = cols.next_multiple_of(ty.block()) / 32;
        let several = neurons > step;
        let fits = |sums: &&PartialSums| sums.chunks == chunks && (!several || sums.more.is_some());
        let sums = match before.filter(fits) {
            Some(sums) => sums.clone(),
            None => PartialSums::new(loader, chunks, several)?,
        };
        let bias = linear.bias.as_ref().map(|bias| loader.vector("a bias", bias)).transpose()?;

        let down = |tokens: u32| {
            // What is silent for one token is mostly not silent for all of several.
            let skip = tokens == 1 && loader.config.activation.is_sparse();
            let overrides = [
                ("DENSE", 1.0),
                ("SKIP", f64::from(u8::from(skip))),
                ("STRIP", STRIP as f64),
                ("TOKENS", f64::from(tokens)),
            ];
            gpu.pipelines().get("sparse_down", Some(ty), DOWN_WORKGROUP, &overrides)
        };
        let (one, few) = (down(1)?, down(SPARSE_DOWN_TOKENS)?);
        let mut parts = Vec::new();
        for start in (0..neurons).step_by(step) {
            let rows = start..(start + step).min(neurons);
            let Some(rows_of) = weight.slice_rows(rows.clone()) else {
                return Err(Error::invalid("down projection", format!("{neurons} rows"), format!("{rows:?}")));
            };
            let matrix = loader.uploader.matrix(Purpose::Ffn, "FFN weights", &[&rows_of])?;
            let [part] = matrix.parts() else {
                let wanted = matrix.bytes();
                return Err(Error::Memory { what: "FFN weights of a few neurons", wanted, available: most });
            };
            let offset = start as u64 * 4;
            let bindings = [
                part.main(),
                part.aux(gpu.nothing()),
                Binding::part(hidden, offset, hidden.bytes() - offset),
                gpu.nothing().into(),
                (&sums.partials).into(),
            ];
            let one = Op::new(gpu, &one, &bindings)?;
            let few = one.variant(&few);
            let (into, bias, add) = match &sums.more {
                Some(more) if start > 0 => {
                    let sizes = (cols, pitch(cols));
                    (more, None, Some(Elementwise::new(gpu, "add", &[], &[y, more], sizes)?))
                }
                _ => (y, bias.as_ref(), None),
            };
            let has_bias = [("HAS_BIAS", f64::from(u8::from(bias.is_some())))];
            let sum = gpu.pipelines().get("sum_splits", None, WORKGROUP, &has_bias)?;
            let bindings = [(&sums.partials).into(), bias.unwrap_or(gpu.nothing()).into(), into.into()];
            parts.push(Part { neurons: rows.len(), one, few, sum: Op::new(gpu, &sum, &bindings)?, add });
        }
        debug_assert_eq!(y_pitch, pitch(cols));
        let work = (neurons * cols) as u64;
        Ok(NeuronsDown { gpu: gpu.clone(), parts, sums, cols, hidden_pitch: pitch(neurons), work })
    }

    /// Records it for the first `tokens` rows.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        let chunks = self.sums.chunks;
        let groups = if tokens == 1 { 1 } else { tokens.div_ceil(SPARSE_DOWN_TOKENS as usize) };
        let wanted = (WORKGROUPS / (strips(chunks) * groups)).min(self.sums.rows / tokens);
        for part in &self.parts {
            let splits = wanted.min(part.neurons / LEAST_SHARE).max(1);
            let params = params::SparseDown {
                chunks: chunks as u32,
                neurons: part.neurons as u32,
                tokens: tokens as u32,
                hidden_pitch: self.hidden_pitch as u32,
                splits: splits as u32,
            };
            let op = if tokens == 1 { &part.one } else { &part.few };
            recorder.dispatch(op, &params, [strips(chunks), splits, groups].map(|n| n as u32));
            let (grid, stride) = flat_grid(&self.gpu, tokens * self.cols, part.sum.pipeline().workgroup());
            let params = params::SumSplits {
                cols: self.cols as u32,
                pitch: pitch(self.cols) as u32,
                tokens: tokens as u32,
                splits: splits as u32,
                partial_pitch: chunks as u32 * 32,
                stride,
            };
            recorder.dispatch(&part.sum, &params, grid);
            if let Some(add) = &part.add {
                add.record(recorder, tokens);
            }
        }
    }
}
