//! Products with the experts that a router chose on the device.

use std::ops::Range;

use thermocline_shaders::{limits::expert_tiles, params};

use super::{
    Buffer, FEW_TOKENS, Gpu, GpuMatrix, MatmulOutput, Op, Purpose, Recorder, Usage, grid,
    matmul::{GEMM_WORKGROUP, ROWS, gemv_workgroup},
};
use thermocline_base::error::{Error, Result};

/// Invocations of `group_slots`, which runs as one workgroup.
const GROUP_WORKGROUP: u32 = 256;
/// Fewest pairs per expert, on average, for which grouping the pairs saves time.
const FEW_PAIRS: usize = 4;

/// Inputs of an [`ExpertMatmul`].
#[derive(Debug, Clone)]
pub struct ExpertInput<'a> {
    /// Activations.
    pub x: &'a Buffer,
    /// Elements from one row of `x` to the next, a multiple of 4. The elements after a row's
    /// columns, up to a multiple of 32, are finite.
    pub x_pitch: usize,
    /// Consecutive pairs that read the same row of `x`: the experts per token, or 1 if each pair
    /// has its own row.
    pub pairs_per_row: usize,
    /// Place of the expert of each pair. Products skip pairs whose expert is not in the matrix.
    pub places: &'a Buffer,
    /// The pairs, grouped by expert.
    pub groups: &'a ExpertPairs,
    /// Bias: one number per row of every expert of the matrix.
    pub bias: Option<&'a Buffer>,
}

/// Pairs sorted by expert, so that many pairs of an expert share its weights.
#[derive(Debug, Clone)]
pub struct ExpertPairs {
    /// `[pairs]`: the pairs sorted by expert.
    order: Buffer,
    /// `[tiles, 3]`: expert, first pair and end of each tile in `order`.
    tiles: Buffer,
    op: Op,
    experts: usize,
}

impl ExpertPairs {
    /// Prepares the grouping of up to `pairs` pairs by the first `experts` places. `places` holds
    /// the place of each pair's expert. Pairs with other places are in no group.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget is too small, [`Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, places: &Buffer, pairs: usize, experts: usize) -> Result<Self> {
        let scratch = |what, words: usize| gpu.arena().buffer(Purpose::Scratch, what, words as u64 * 4, Usage::Storage);
        let order = scratch("pairs in order", pairs)?;
        let tiles = scratch("tiles of pairs", 3 * expert_tiles(pairs, experts))?;
        let op = Op::of(gpu, "group_slots", GROUP_WORKGROUP, &[], &[places, &order, &tiles])?;
        Ok(ExpertPairs { order, tiles, op, experts })
    }

    /// The buffer of the pairs in order, for a caller that sorts them itself.
    pub fn order(&self) -> &Buffer {
        &self.order
    }

    /// The buffer of the tiles, for a caller that divides the pairs itself.
    pub fn tiles(&self) -> &Buffer {
        &self.tiles
    }

    /// True if the `pairs` pairs of `tokens` tokens are grouped by expert, because this saves time.
    /// The pairs of few tokens are not grouped, so that their sums have the order of single pairs.
    pub fn pay(&self, tokens: usize, pairs: usize) -> bool {
        tokens > FEW_TOKENS && pairs >= FEW_PAIRS * self.experts
    }

    /// Records the grouping of the first `pairs` pairs.
    pub fn record(&self, recorder: &mut Recorder, pairs: usize) {
        let [experts, pairs32, tiles] = [self.experts, pairs, expert_tiles(pairs, self.experts)].map(|n| n as u32);
        recorder.dispatch(&self.op, &params::GroupSlots { experts, pairs: pairs32, tiles }, [1, 1, 1]);
    }
}

/// `y[s, offset + r] = W[place[s], r] . x[s / pairs_per_row] (+ bias[place[s], r])`, where a pair
/// `s` is a token and one of its experts. The matrix holds the experts of some places. Products of
/// other pairs are not written.
#[derive(Debug, Clone)]
pub struct ExpertMatmul {
    parts: Vec<ExpertProductPart>,
    /// Number of experts of all matrices.
    experts: usize,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct ExpertProductPart {
    /// Parameters. Recording fills in the number of pairs.
    params: params::ExpertMatmul,
    /// Kernel that computes each pair separately.
    each: Op,
    /// Kernel that computes each tile of [`ExpertPairs`].
    grouped: Op,
}

impl ExpertMatmul {
    /// Prepares the products of `matrix`, which holds the experts of `places` one after another.
    /// The epilogue must be [`super::Epilogue::Store`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part does not hold whole experts or the epilogue is another one.
    /// [`Error::Gpu`] if the device is lost or the kernel does not compile. [`Error::Memory`] if a
    /// buffer is larger than a binding.
    pub fn new(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        places: Range<usize>,
        input: &ExpertInput<'_>,
        output: &MatmulOutput<'_>,
    ) -> Result<Self> {
        let experts = places.len();
        let rows = matrix.rows() / experts.max(1);
        let misaligned = matrix.parts().iter().any(|part| !part.rows().start.is_multiple_of(rows.max(1)));
        if rows * experts != matrix.rows()
            || misaligned
            || input.pairs_per_row == 0
            || output.epilogue != Default::default()
        {
            let got = format!("{experts} experts in {} rows, {} pairs per token", matrix.rows(), input.pairs_per_row);
            return Err(Error::invalid("a product with experts", "whole experts, and no epilogue", got));
        }
        let (has_bias, ty) = (("HAS_BIAS", f64::from(u8::from(input.bias.is_some()))), Some(matrix.ty()));
        let overrides = [has_bias, ("ROWS", f64::from(ROWS))];
        let each = gpu.pipelines().get("expert_gemv", ty, gemv_workgroup(matrix.chunks()), &overrides)?;
        let grouped = gpu.pipelines().get("expert_gemm", ty, GEMM_WORKGROUP, &[has_bias])?;
        let parts = matrix.parts().iter().map(|part| {
            let bias = input.bias.unwrap_or(gpu.nothing());
            let (main, aux, out) = (part.main(), part.aux(gpu.nothing()), output.buffer);
            let one_by_one = [main.clone(), aux.clone(), input.x.into(), bias.into(), input.places.into(), out.into()];
            let (order, tiles) = (&input.groups.order, &input.groups.tiles);
            let in_order = [main, aux, input.x.into(), bias.into(), order.into(), tiles.into(), out.into()];
            let params = params::ExpertMatmul {
                rows: rows as u32,
                chunks: matrix.chunks() as u32,
                pairs: 0,
                pairs_per_row: input.pairs_per_row as u32,
                x_pitch: input.x_pitch as u32,
                y_pitch: output.pitch as u32,
                y_offset: output.offset as u32,
                first_expert: (places.start + part.rows().start / rows) as u32,
                experts: (part.rows().len() / rows) as u32,
                first_bias: places.start as u32,
                stride: 0,
            };
            Ok(ExpertProductPart {
                params,
                each: Op::new(gpu, &each, &one_by_one)?,
                grouped: Op::new(gpu, &grouped, &in_order)?,
            })
        });
        let (experts, max_groups) = (input.groups.experts, gpu.caps().max_groups);
        Ok(ExpertMatmul { parts: parts.collect::<Result<_>>()?, experts, max_groups })
    }

    /// Records the products of the first `pairs` pairs. Set `grouped` if [`ExpertPairs::record`]
    /// was recorded before.
    pub fn record(&self, recorder: &mut Recorder, pairs: usize, grouped: bool) {
        if grouped {
            return self.record_tiles(recorder, expert_tiles(pairs, self.experts));
        }
        for part in &self.parts {
            let [a, b] = grid(part.params.rows.div_ceil(ROWS) as usize, self.max_groups);
            let params = params::ExpertMatmul { pairs: pairs as u32, stride: a, ..part.params };
            recorder.dispatch(&part.each, &params, [a, b, pairs as u32]);
        }
    }

    /// Records the products of the first `tiles` tiles of the [`ExpertPairs`].
    pub fn record_tiles(&self, recorder: &mut Recorder, tiles: usize) {
        for part in &self.parts {
            let rows = part.grouped.pipeline().workgroup() / 2;
            let [a, b] = grid(part.params.rows.div_ceil(rows) as usize, self.max_groups);
            let params = params::ExpertMatmul { stride: a, ..part.params };
            // Neighbouring workgroups share weights.
            recorder.dispatch(&part.grouped, &params, [tiles as u32, a, b]);
        }
    }
}
