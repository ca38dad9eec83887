//! Trial of the kernels for a few tokens: whether a token has the bits that it has alone. The
//! kernels' texts have one order of sums for any number of tokens. But a driver compiles one
//! variant for one token and another for several. It may choose other fused operations for each, or
//! another size of subgroups.

use std::ops::ControlFlow;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline_shaders::{WeightType, params};

use super::{
    Buffer, Epilogue, FEW_TOKENS, Gpu, GpuMatrix, KernelShape, Matmul, MatmulOutput, Op, Purpose, ReadbackRing,
    Recorder, SparseDownVariant, Uploader, Usage, sparse_down::SparseDownKind,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::sample::random_weights,
};

/// Rows of the weights.
const ROWS: usize = 256;
/// Columns of a matrix whose product has the workgroups of its shape.
const WIDE: usize = 4096;
/// Columns of a matrix whose product has the smallest workgroups.
const NARROW: usize = 512;

/// Weights and activations of [`FEW_TOKENS`] tokens.
struct TrialSample {
    gpu: Gpu,
    matrix: GpuMatrix,
    cols: usize,
    /// `[tokens, cols]`, and the room of one row.
    inputs: Buffer,
    input: Buffer,
}

/// True if each of a few tokens has the bits that it has alone in products with weights of type
/// `ty`, in kernels of `shape`.
///
/// # Errors
/// [`Error::Memory`] if the trial does not fit the budget, [`Error::Gpu`] if the device is lost.
pub(super) fn products_keep_bits(gpu: &Gpu, ty: WeightType, shape: KernelShape) -> Result<bool> {
    for cols in [WIDE, NARROW] {
        let sample = TrialSample::new(gpu, ty, cols)?;
        let kept = sample.keeps_bits(ROWS, |x, y| {
            let output = MatmulOutput { buffer: y, pitch: ROWS, offset: 0, epilogue: Epilogue::Store };
            let matmul = Matmul::shaped(gpu, &sample.matrix, x, None, &output, shape)?;
            Ok(move |recorder: &mut Recorder, tokens: usize| matmul.record(recorder, tokens))
        })?;
        if !kept {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if each of a few tokens has the bits that it has alone in neuron-major down projections
/// with weights of type `ty`.
///
/// # Errors
/// As [`products_keep_bits`].
pub(super) fn downs_keep_bits(gpu: &Gpu, ty: WeightType) -> Result<bool> {
    let sample = TrialSample::new(gpu, ty, WIDE)?;
    let several = SparseDownVariant::new(gpu, ty, SparseDownKind::Several)?;
    for kind in [SparseDownKind::One, SparseDownKind::Fired] {
        if !sample.keeps_bits_of(&SparseDownVariant::new(gpu, ty, kind)?, &several)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl TrialSample {
    /// Creates a sample with `cols` columns of random weights, and random activations. Their
    /// products are rounded, so that another order of sums has other bits. Some activations are
    /// zero.
    fn new(gpu: &Gpu, ty: WeightType, cols: usize) -> Result<Self> {
        let random = &mut ChaCha8Rng::seed_from_u64(11);
        let ty = ty.tensor_type();
        let file = Matrix::new(ty, ROWS, cols, Bytes::new(random_weights(ty, ROWS * cols, random)));
        let file = file.ok_or_else(|| Error::invalid("columns of a sample", format!("whole blocks of {ty}"), cols))?;
        let mut activation = |at: usize| if at.is_multiple_of(3) { 0.0 } else { random.random_range(-1.0..1.0) };
        let x: Vec<f32> = (0..FEW_TOKENS * cols).map(&mut activation).collect();
        let mut progress = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(gpu, &mut progress)?;
        let matrix = uploader.matrix(Purpose::Scratch, "sample", &[&file])?;
        let inputs = uploader.vector(Purpose::Scratch, "sample", &x)?;
        uploader.finish()?;
        let input = gpu.arena().buffer(Purpose::Scratch, "sample", cols as u64 * 4, Usage::Storage)?;
        Ok(TrialSample { gpu: gpu.clone(), matrix, cols, inputs, input })
    }

    /// True if tokens of a down projection have the same bits in `one`, alone, and in `several`.
    fn keeps_bits_of(&self, one: &SparseDownVariant, several: &SparseDownVariant) -> Result<bool> {
        let [part] = self.matrix.parts() else { return Ok(false) };
        let chunks = self.matrix.chunks();
        self.keeps_bits(chunks * 32, |hidden, partials| {
            let bindings = [part.main(), part.aux(self.gpu.nothing()), hidden.into(), partials.into()];
            let op = Op::new(&self.gpu, &one.pipeline, &bindings)?;
            let of_several = op.variant(&several.pipeline);
            let variants = [(op, one.clone()), (of_several, several.clone())];
            Ok(move |recorder: &mut Recorder, tokens: usize| {
                let (op, variant) = &variants[usize::from(tokens > 1)];
                let params = params::SparseDown {
                    chunks: chunks as u32,
                    neurons: ROWS as u32,
                    tokens: tokens as u32,
                    hidden_pitch: self.cols as u32,
                    splits: 1,
                    first: 0,
                    accumulate: 0,
                };
                let groups = [tokens.div_ceil(variant.tokens), (chunks * 4).div_ceil(variant.strip), 1];
                recorder.dispatch(op, &params, groups.map(|n| n as u32));
            })
        })
    }

    /// Compares the outputs of passes of every size, `[tokens, width]`, with those of each token
    /// alone. `prepare` returns the function that records a pass of some tokens from one buffer to
    /// another.
    fn keeps_bits<R: Fn(&mut Recorder, usize)>(
        &self,
        width: usize,
        prepare: impl Fn(&Buffer, &Buffer) -> Result<R>,
    ) -> Result<bool> {
        let (row, bytes) = (width as u64 * 4, (FEW_TOKENS * width * 4) as u64);
        let buffer = |bytes| self.gpu.arena().buffer(Purpose::Scratch, "sample", bytes, Usage::Storage);
        let (output, outputs) = (buffer(row)?, buffer(bytes)?);
        let (alone, together) = (prepare(&self.input, &output)?, prepare(&self.inputs, &outputs)?);
        let mut ring = ReadbackRing::new(&self.gpu, 1, bytes)?;
        let mut recorder = Recorder::new(&self.gpu);
        for token in 0..FEW_TOKENS as u64 {
            let x = self.cols as u64 * 4;
            recorder.copy(&self.inputs, token * x, &self.input, 0, x);
            alone(&mut recorder, 1);
            recorder.copy(&output, 0, &outputs, token * row, row);
        }
        let expected = ring.read(recorder, &[(&outputs, 0, bytes)], || (), <[u8]>::to_vec)?;
        for tokens in 2..=FEW_TOKENS {
            let mut recorder = Recorder::new(&self.gpu);
            together(&mut recorder, tokens);
            let bytes = tokens as u64 * row;
            let same = |got: &[u8]| expected.starts_with(got);
            if !ring.read(recorder, &[(&outputs, 0, bytes)], || (), same)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterKind, GpuOptions, KernelMutation};

    fn open(mutation: Option<[&str; 3]>) -> Gpu {
        let mutation = mutation.map(|it| it.map(str::to_owned));
        let mutation = mutation.map(|[kernel, from, to]| KernelMutation { kernel, from, to });
        Gpu::open(&GpuOptions { mutation, packed_dot: Some(true), ..GpuOptions::first() }).unwrap()
    }

    const PACKED: KernelShape = KernelShape { packed: true, ..KernelShape::DEFAULT };

    #[test]
    fn trials_find_that_tokens_keep_their_bits() {
        let gpu = open(None);
        let used = gpu.arena().used();
        for ty in [WeightType::F16, WeightType::Q4_0, WeightType::Q6_K] {
            assert!(products_keep_bits(&gpu, ty, KernelShape::DEFAULT).unwrap(), "{ty}");
            assert!(downs_keep_bits(&gpu, ty).unwrap(), "{ty}");
        }
        let wide = KernelShape { workgroup: 256, rows: 2, ..PACKED };
        assert!(products_keep_bits(&gpu, WeightType::Q4_K, wide).unwrap());
        assert_eq!(gpu.arena().used(), used, "all memory is given back");
    }

    /// Right products of several tokens whose sums have another order.
    #[test]
    fn trials_find_another_order_of_sums() {
        let order = "(sums.x + sums.y) + (sums.z + sums.w)";
        let other = format!("select({order}, (sums.x + sums.z) + (sums.y + sums.w), TOKENS > 1u)");
        let gpu = open(Some(["gemv", &format!("w.scale * ({order})"), &format!("w.scale * {other}")]));
        assert!(!products_keep_bits(&gpu, WeightType::Q4_0, KernelShape::DEFAULT).unwrap());
        let order = "let scale = h[t][n] * w.scale;\n                    offsets";
        let other = "let scale = select(h[t][n] * w.scale, h[t][n] * (w.scale * 1.0000002), TOKENS > 1u);\n                    offsets";
        let gpu = open(Some(["sparse_down", order, other]));
        assert!(!downs_keep_bits(&gpu, WeightType::Q4_0).unwrap());
        let gpu = open(Some([
            "gemv_dot",
            "return input.scale * sum",
            "return input.scale * sum * (1.0 + f32(TOKENS - 1u) * 2e-7)",
        ]));
        assert!(!products_keep_bits(&gpu, WeightType::Q4_0, PACKED).unwrap());
    }

    /// An adapter that is not software has the trial when a product is prepared.
    #[test]
    fn devices_whose_tokens_lose_their_bits_promise_none() {
        let order = "(sums.x + sums.y) + (sums.z + sums.w)";
        let other = format!("select({order}, (sums.x + sums.z) + (sums.y + sums.w), TOKENS > 1u)");
        let texts = ["gemv".to_owned(), format!("w.scale * ({order})"), format!("w.scale * {other}")];
        for (texts, keeps) in [(None, true), (Some(texts), false)] {
            let mutation = texts.map(|[kernel, from, to]| KernelMutation { kernel, from, to });
            let pretended_kind = Some(AdapterKind::Discrete);
            let options = GpuOptions { mutation, pretended_kind, packed_dot: Some(false), ..GpuOptions::first() };
            let gpu = Gpu::open(&options).unwrap();
            assert!(gpu.keeps_bits(), "nothing is prepared yet");
            gpu.shape(WeightType::Q4_0).unwrap();
            assert_eq!(gpu.keeps_bits(), keeps);
        }
    }
}
