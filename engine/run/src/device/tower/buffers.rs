//! Buffers for the patches of one picture.

use std::ops::Range;

use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, BufferRows, Gpu, Purpose, Recorder, Usage, pitch};
use thermocline_model::{Tower, TowerConfig, TowerLayer};

/// Most patches of a chunk. More would hardly make products faster, and need more memory.
const CHUNK: usize = 1024;

/// Floats after the last row of a product's inputs. Products read whole chunks of 32 columns.
const MARGIN: usize = 32;

/// Patches of a picture and of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PictureSize {
    pub patches: usize,
    /// Most patches of a chunk, a whole number of tokens.
    pub chunk: usize,
    /// Patches of a token.
    pub each: usize,
}

impl PictureSize {
    pub fn new(config: &TowerConfig, patches: usize) -> Self {
        let each = config.merge * config.merge;
        PictureSize { patches, chunk: ((CHUNK / each).max(1) * each).min(patches), each }
    }

    /// Patches of the picture once squares of `each` patches are joined. The number of chunks
    /// stays the same.
    pub fn joined(self, each: usize) -> Self {
        PictureSize { patches: self.patches / each, chunk: self.chunk / each, each: self.each / each }
    }

    /// The patches of each chunk.
    pub fn chunks(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.patches).step_by(self.chunk.max(1)).map(move |first| first..self.patches.min(first + self.chunk))
    }

    /// Most tokens of a chunk.
    pub fn tokens(self) -> usize {
        self.chunk / self.each
    }
}

/// Rows of all patches, of which kernels use those of one chunk.
#[derive(Debug)]
pub(super) struct ChunkedRows {
    /// Rows of the current chunk.
    pub part: Buffer,
    /// Rows of all patches, if they are several chunks.
    whole: Option<Buffer>,
    row_bytes: u64,
}

impl ChunkedRows {
    fn new(gpu: &Gpu, what: &'static str, size: PictureSize, cols: usize) -> Result<Self> {
        let several = size.patches > size.chunk;
        let whole = if several { Some(floats(gpu, what, size.patches * cols)?) } else { None };
        let part = floats(gpu, what, size.chunk * cols + MARGIN)?;
        Ok(ChunkedRows { part, whole, row_bytes: (cols * size_of::<f32>()) as u64 })
    }

    /// Records that the rows of `chunk` become the current ones.
    pub fn load(&self, recorder: &mut Recorder, chunk: &Range<usize>) {
        if let Some(whole) = &self.whole {
            let [at, bytes] = self.bytes_of(chunk);
            recorder.copy(whole, at, &self.part, 0, bytes);
        }
    }

    /// Records that the current rows are those of `chunk`.
    pub fn store(&self, recorder: &mut Recorder, chunk: &Range<usize>) {
        if let Some(whole) = &self.whole {
            let [at, bytes] = self.bytes_of(chunk);
            recorder.copy(&self.part, 0, whole, at, bytes);
        }
    }

    /// The buffer of all rows, and the offset and the bytes of the rows of `chunk`.
    pub fn place(&self, chunk: &Range<usize>) -> (&Buffer, u64, u64) {
        let [at, bytes] = self.bytes_of(chunk);
        (self.whole.as_ref().unwrap_or(&self.part), at, bytes)
    }

    fn bytes_of(&self, chunk: &Range<usize>) -> [u64; 2] {
        [chunk.start, chunk.len()].map(|rows| rows as u64 * self.row_bytes)
    }
}

/// Buffers that the layers and mergers of a tower share.
#[derive(Debug)]
pub(super) struct PictureBuffers {
    pub size: PictureSize,
    /// The residual stream, `[patches, width]`.
    pub stream: ChunkedRows,
    /// Rotated queries, `[patches, width]`.
    pub queries: ChunkedRows,
    /// Cosines and sines, `[patches, head_dim]`, for towers with rotations.
    pub rotations: Option<ChunkedRows>,
    /// Rotated keys and values of all patches, `[heads, patches, head_dim]` each.
    pub keys: Buffer,
    pub values: Buffer,
    /// Normed rows of a chunk, `[chunk, width]`.
    normed: Buffer,
    /// Queries, keys and values of a chunk, `[chunk, 3 * width]`.
    qkv: Buffer,
    /// Outputs of a chunk's heads, `[chunk, width]`.
    heads: Buffer,
    /// Outputs of gates and of up or first matrices.
    pub gate_up: Buffer,
    /// Activated values.
    pub hidden: Buffer,
    /// Outputs of a part, `[chunk, width]`.
    out: Buffer,
    /// Inputs of a map that are brought within its limits, for towers with limits.
    pub limited: Option<Buffer>,
    /// Results of a merger, `[tokens, d_model]`.
    pub results: Buffer,
    width: usize,
}

impl PictureBuffers {
    /// Makes the buffers for pictures of `size`.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if they do not fit the budget.
    pub fn new(gpu: &Gpu, tower: &Tower, size: PictureSize) -> Result<Self> {
        let (config, layers) = (&tower.config, &tower.weights.layers);
        let (width, chunk) = (config.width, size.chunk);
        let chunked = |what, cols| ChunkedRows::new(gpu, what, size, cols);
        let mergers = layers.iter().filter_map(|layer| layer.deepstack.as_ref()).chain(tower.merger());
        let merged = mergers.map(|merger| size.tokens() * pitch(merger.first.weight.rows())).max().unwrap_or(0);
        let squares = chunk / config.first_merge.pow(2);
        let joins = layers.iter().filter_map(|layer| layer.join.as_ref());
        let joined = joins.map(|join| squares * pitch(join.up.weight.rows())).max().unwrap_or(0);
        let hidden = (chunk * pitch(config.n_ff)).max(joined);
        let gated = if layers.iter().any(|layer| layer.gate.is_some()) { 2 } else { 1 };
        let limited = chunk * width.max(pitch(config.n_ff)) + MARGIN;
        let has_limits = layers.iter().flat_map(TowerLayer::maps).any(|map| map.limits.is_some());
        let limited = has_limits.then(|| floats(gpu, "limited inputs", limited));
        Ok(PictureBuffers {
            size,
            stream: chunked("patches", width)?,
            queries: chunked("queries", width)?,
            rotations: config.rope.map(|_| chunked("rotations", config.heads.head_dim)).transpose()?,
            keys: floats(gpu, "keys of patches", size.patches * width)?,
            values: floats(gpu, "values of patches", size.patches * width)?,
            normed: floats(gpu, "normed patches", chunk * width + MARGIN)?,
            qkv: floats(gpu, "queries, keys and values", chunk * 3 * width)?,
            heads: floats(gpu, "attention's output", chunk * width + MARGIN)?,
            gate_up: floats(gpu, "gate and up", (hidden * gated).max(merged))?,
            hidden: floats(gpu, "hidden activations", hidden.max(merged) + MARGIN)?,
            out: floats(gpu, "outputs of a part", chunk * width + MARGIN)?,
            limited: limited.transpose()?,
            results: floats(gpu, "merged patches", size.tokens() * config.d_model)?,
            width,
        })
    }

    /// Rows of the width of the residual stream.
    pub fn normed(&self) -> BufferRows<'_> {
        BufferRows { buffer: &self.normed, pitch: self.width }
    }

    pub fn qkv(&self) -> BufferRows<'_> {
        BufferRows { buffer: &self.qkv, pitch: 3 * self.width }
    }

    pub fn heads(&self) -> BufferRows<'_> {
        BufferRows { buffer: &self.heads, pitch: self.width }
    }

    pub fn out(&self) -> BufferRows<'_> {
        BufferRows { buffer: &self.out, pitch: self.width }
    }
}

fn floats(gpu: &Gpu, what: &'static str, floats: usize) -> Result<Buffer> {
    gpu.arena().buffer(Purpose::Scratch, what, (floats as u64).saturating_mul(4), Usage::Storage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_tokens_and_cover_all_patches() {
        for (each, patches) in [(1, 5000), (4, 4096), (4, 12), (9, 2520), (16, 4096), (4096, 8192)] {
            let size = PictureSize { patches, chunk: ((CHUNK / each).max(1) * each).min(patches), each };
            let chunks: Vec<_> = size.chunks().collect();
            assert!(chunks.iter().all(|chunk| chunk.len() % each == 0 && chunk.len() <= size.chunk), "{size:?}");
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start), "{size:?}");
            assert_eq!((chunks[0].start, chunks[chunks.len() - 1].end), (0, patches));
            assert_eq!(size.tokens() * each, size.chunk);
            if size.chunk.is_multiple_of(4) {
                let joined: Vec<_> = chunks.iter().map(|chunk| chunk.start / 4..chunk.end / 4).collect();
                assert_eq!(size.joined(4).chunks().collect::<Vec<_>>(), joined, "{size:?}");
            }
        }
    }
}
