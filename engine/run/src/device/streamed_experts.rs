//! The cold experts of a layer that pass through the streaming buffer. First the gates and ups of
//! all chosen experts pass, several experts at a time, and then the downs. The activation in
//! between is recorded once.

use std::ops::Range;

use thermocline_shaders::limits::{EXPERT_TILE, expert_tiles};

use super::{
    expert_buffers::PlacedExperts,
    expert_matrices::{ExpertMatrices, Stack},
    resident_experts::ResidentExperts,
    streaming_buffer::{BufferSize, StreamingBuffer},
};
use thermocline_base::error::Result;
use thermocline_gpu::{Caps, ExpertMatmul, ExpertPairs, Gpu, GpuMatrix, NumberLoad, Recorder, RowLoad, RowStream};
use thermocline_model::mask;

/// Multiply-adds that take about as long as the upload of a byte, so that the pace of a device is
/// not taken to be that of its bus.
const UPLOAD: u64 = 512;

/// The cold experts of one layer, prepared for several tokens.
#[derive(Debug)]
pub(crate) struct StreamedExperts {
    /// One entry per stack of the layer's [`ExpertMatrices`].
    pub stacks: Vec<StreamedStack>,
}

/// A stack of experts in the streaming buffer.
#[derive(Debug)]
pub(crate) struct StreamedStack {
    /// Most experts in the buffer.
    slots: usize,
    matrix: GpuMatrix,
    has_bias: bool,
    product: ExpertMatmul,
}

impl StreamedExperts {
    /// Bytes of room for the largest stack of an expert.
    pub fn least_room(caps: &Caps, matrices: &ExpertMatrices<'_>) -> u64 {
        let largest = matrices.stacks.iter().map(Stack::bytes).max().unwrap_or(0);
        largest + gap(caps)
    }

    /// The buffer of the largest pieces of `matrices` whose weights take at most `room` bytes, for
    /// chunks of `pairs` pairs. `None` if an expert's stack does not fit.
    pub fn buffer_size(caps: &Caps, matrices: &ExpertMatrices<'_>, pairs: usize, room: u64) -> Option<BufferSize> {
        let (order, tiles) = (pairs * 4, expert_tiles(pairs, matrices.count()) * 12);
        let mut size = BufferSize { room, ..BufferSize::default() };
        for stack in &matrices.stacks {
            let layout = stack.layout(slots_within(caps, stack, matrices.count(), room)?);
            let weights = GpuMatrix::bytes_of(caps, layout.ty, layout.rows, layout.cols).ok()?;
            let bias = if stack.has_bias() { layout.rows as u64 * 4 } else { 0 };
            let load = RowStream::bytes_of([weights, bias, order as u64, tiles as u64]);
            size.weights = size.weights.max(weights);
            size.bias = size.bias.max(bias);
            size.load = size.load.max(load);
        }
        Some(size)
    }

    /// Prepares the buffer for the layer of `resident` and `matrices`. `None` if an expert's stack
    /// does not fit.
    pub fn new(
        gpu: &Gpu,
        buffer: &StreamingBuffer,
        resident: &ResidentExperts,
        matrices: &ExpertMatrices<'_>,
    ) -> Result<Option<Self>> {
        let slots = matrices.stacks.iter().map(|stack| slots_within(gpu.caps(), stack, matrices.count(), buffer.room));
        let Some(slots) = slots.collect::<Option<Vec<usize>>>() else { return Ok(None) };
        let stacks = matrices.stacks.iter().zip(slots).enumerate().map(|(at, (stack, slots))| {
            let matrix = GpuMatrix::within(gpu, &buffer.weights, 0, stack.layout(slots))?;
            let has_bias = stack.has_bias();
            let bias = has_bias.then_some(&buffer.bias);
            let placed = PlacedExperts { matrix: &matrix, places: 0..slots, bias, from: &resident.from };
            let product = resident.buffers.product(gpu, matrices, at, &placed)?;
            Ok(StreamedStack { slots, matrix, has_bias, product })
        });
        Ok(Some(StreamedExperts { stacks: stacks.collect::<Result<_>>()? }))
    }
}

impl StreamedStack {
    /// Splits experts into pieces that fit, of about equal length.
    pub fn pieces<'e>(&self, experts: &'e [ExpertSpan]) -> impl Iterator<Item = &'e [ExpertSpan]> + use<'e> {
        let pieces = experts.len().div_ceil(self.slots).max(1);
        experts.chunks(experts.len().div_ceil(pieces).max(1))
    }

    /// Records the upload of the experts of `piece` and their products. `order` holds the pairs in
    /// order if they have not been uploaded for this layer. Returns the uploaded bytes.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        buffer: &mut StreamingBuffer,
        stack: &Stack<'_>,
        groups: &ExpertPairs,
        piece: &[ExpertSpan],
        order: Option<&[u32]>,
    ) -> Result<u64> {
        let row = |row: usize| stack.row(piece[row / stack.rows].expert as usize, row % stack.rows);
        let load = [RowLoad { matrix: &self.matrix, rows: piece.len() * stack.rows, row: &row }];
        let tiles = tiles_of(piece);
        let bias = piece.iter().filter(|_| self.has_bias).flat_map(|span| stack.bias(span.expert as usize));
        let bias: Vec<f32> = bias.collect();
        let numbers = [
            NumberLoad { bytes: bytemuck::cast_slice(&tiles), to: groups.tiles() },
            NumberLoad { bytes: bytemuck::cast_slice(order.unwrap_or_default()), to: groups.order() },
            NumberLoad { bytes: bytemuck::cast_slice(&bias), to: &buffer.bias },
        ];
        let bytes = buffer.rows.record(recorder, &load, &numbers)?;
        self.product.record_tiles(recorder, tiles.len() / 3);
        Ok(bytes)
    }

    /// Work of the experts of `piece`, in multiply-adds. Kernels compute whole tiles.
    pub fn work(&self, stack: &Stack<'_>, piece: &[ExpertSpan]) -> u64 {
        let pairs = piece.iter().map(|span| span.pairs.len().next_multiple_of(EXPERT_TILE as usize)).sum::<usize>();
        (pairs * stack.rows * stack.cols) as u64 + piece.len() as u64 * stack.bytes() * UPLOAD
    }
}

/// Most experts whose `stack` takes at most `room` bytes. `None` if not even one fits.
fn slots_within(caps: &Caps, stack: &Stack<'_>, experts: usize, room: u64) -> Option<usize> {
    let slots = room.saturating_sub(gap(caps)) / stack.bytes().max(1);
    Some((slots as usize).min(experts)).filter(|slots| *slots > 0)
}

/// Most bytes between the two aligned streams of a matrix.
fn gap(caps: &Caps) -> u64 {
    caps.binding_alignment.max(16)
}

/// The pairs of a chunk that use one expert: a range of [`SortedPairs::order`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpertSpan {
    pub expert: u32,
    pub pairs: Range<usize>,
}

/// The pairs of a chunk that use cold experts, sorted by expert.
#[derive(Debug)]
pub(crate) struct SortedPairs {
    /// The pairs in order.
    pub order: Vec<u32>,
    /// The cold experts that some token uses, ascending.
    pub experts: Vec<ExpertSpan>,
}

impl SortedPairs {
    /// Sorts the pairs whose experts `ids` are not in the mask `resident`.
    pub fn new(ids: &[u32], resident: &[u32]) -> Self {
        let expert_of = |pair: &u32| ids[*pair as usize];
        let pairs = 0..ids.len() as u32;
        let mut order: Vec<u32> = pairs.filter(|pair| !mask::contains(resident, expert_of(pair) as usize)).collect();
        // The sort is stable, so the pairs of an expert stay in the order of their tokens.
        order.sort_by_key(expert_of);
        let spans = order.chunk_by(|a, b| expert_of(a) == expert_of(b)).scan(0, |end, span| {
            let start = *end;
            *end += span.len();
            Some(ExpertSpan { expert: expert_of(&span[0]), pairs: start..*end })
        });
        let experts = spans.collect();
        SortedPairs { order, experts }
    }
}

/// The tiles of the experts of `piece`: place in the piece, first pair, and end of the expert's
/// pairs.
fn tiles_of(piece: &[ExpertSpan]) -> Vec<u32> {
    let tiles = piece.iter().enumerate().flat_map(|(place, span)| {
        let firsts = span.pairs.clone().step_by(EXPERT_TILE as usize);
        firsts.flat_map(move |first| [place as u32, first as u32, span.pairs.end as u32])
    });
    tiles.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_cold_experts_are_sorted_and_tiled() {
        // Expert 1 is resident. Expert 2 is used 65 times, so it has two tiles.
        let mut ids = vec![3, 1, 0, 3];
        ids.extend([2; 65]);
        let sorted = SortedPairs::new(&ids, &[0b10]);
        assert_eq!(sorted.order[..3], [2, 4, 5]);
        assert_eq!(sorted.order[65..], [68, 0, 3]);
        let spans: Vec<_> = sorted.experts.iter().map(|span| (span.expert, span.pairs.clone())).collect();
        assert_eq!(spans, [(0, 0..1), (2, 1..66), (3, 66..68)]);
        assert_eq!(tiles_of(&sorted.experts), [0, 0, 1, 1, 1, 66, 1, 65, 66, 2, 66, 68]);
        assert_eq!(tiles_of(&sorted.experts[1..]), [0, 1, 66, 0, 65, 66, 1, 66, 68]);
        let none = SortedPairs::new(&[1, 1], &[0b10]);
        assert!(none.order.is_empty() && none.experts.is_empty());
    }
}
