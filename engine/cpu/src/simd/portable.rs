//! Kernels in plain Rust. With `#[inline(always)]` a function with an instruction set enabled
//! compiles (and vectorises) them for that set. [Plain Rust's table](super::scalar::TABLE) compiles
//! them for the baseline.

use super::{
    INPUTS, InputBlock, InputMinima, LaneChunk, OUTPUTS, position_in_line,
    sum_order::{LINE, LineSums},
};
use thermocline_formats::quant::{BlockType, FloatType, Grouping, UNPACK_STEP, UnpackedMut, WeightType, f16_to_f32};

/// Tokens of a tile of codes.
pub(crate) const TILE_TOKENS: usize = 6;

/// The quantised input of a product: `[n]` activations in blocks of 32, with `x = scale * code`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QuantisedInput<'a> {
    /// `[n]`
    pub codes: &'a [i8],
    /// `[n / 32]`
    pub scales: &'a [f32],
    /// `[n / 32]`, `scale * sum(codes)` of each block.
    pub sums: &'a [f32],
    /// `[n / 16]`, `scale * sum(codes)` of each half block.
    pub half_sums: &'a [f32],
    /// `[n / 32]`, `sum(codes)` of each block.
    pub code_sums: &'a [i32],
    /// `[n / 16]`, `sum(codes)` of each half block.
    pub half_code_sums: &'a [i32],
    /// `[n / 256]`, rounded up: a copy in the order of lanes, if the kernels sum in lanes.
    pub lanes: &'a [LaneChunk],
}

/// Writable memory for a [`QuantisedInput`].
#[derive(Debug)]
pub(crate) struct QuantisedInputMut<'a> {
    /// `[n]`
    pub codes: &'a mut [i8],
    /// `[n / 32]`
    pub scales: &'a mut [f32],
    /// `[n / 32]`
    pub sums: &'a mut [f32],
    /// `[n / 16]`
    pub half_sums: &'a mut [f32],
    /// `[n / 32]`
    pub code_sums: &'a mut [i32],
    /// `[n / 16]`
    pub half_code_sums: &'a mut [i32],
}

impl QuantisedInputMut<'_> {
    /// Sets the scale and the sums of block `at`. `sums` are the sums of the codes of both halves.
    #[inline(always)]
    pub fn set(&mut self, at: usize, scale: f32, sums: [i32; 2]) {
        let sum = sums[0] + sums[1];
        self.scales[at] = scale;
        (self.sums[at], self.code_sums[at]) = (scale * sum as f32, sum);
        self.half_sums[2 * at..][..2].copy_from_slice(&sums.map(|sum| scale * sum as f32));
        self.half_code_sums[2 * at..][..2].copy_from_slice(&sums);
    }
}

/// Weights of `panel_rows` rows over a range of columns, at most one line
/// ([`sum_order`](super::sum_order)): `w = scale * code + min`.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
pub(crate) struct CodePanel<'a> {
    /// The groups of elements that share a scale.
    pub grouping: Grouping,
    /// `[n / 4, panel_rows, 4]`
    pub codes: &'a [i8],
    /// `[n / group, panel_rows]`
    pub scales: &'a [f32],
    /// `[n / group, panel_rows]`, or empty.
    pub mins: &'a [f32],
    /// `[n / group, panel_rows]`, `-128 * sum(codes)`. It cancels the bias of the activations.
    pub bias: &'a [i32],
}

/// Activations of [`TILE_TOKENS`] tokens over a range of columns.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
pub(crate) struct CodeTile<'a> {
    /// `[n / 4, TILE_TOKENS]`, four unsigned codes each: activation codes plus 128.
    pub codes: &'a [u32],
    /// `[n / 32, TILE_TOKENS]`
    pub scales: &'a [f32],
    /// `[n / 32, TILE_TOKENS]`, `scale * sum(codes)`.
    pub sums: &'a [f32],
    /// `[n / 16, TILE_TOKENS]`, `scale * sum(codes)` of each half block.
    pub half_sums: &'a [f32],
}

/// Rounds to `scale = max |x| / 127`, `code = round(x / scale)`, ties to even.
#[inline(always)]
pub(super) fn quantise(x: &[f32], mut row: QuantisedInputMut<'_>) {
    let (blocks, rest) = x.as_chunks::<32>();
    assert!(rest.is_empty() && row.codes.len() == x.len(), "{} activations", x.len());
    for (at, x) in blocks.iter().enumerate() {
        let codes = &mut row.codes.as_chunks_mut::<32>().0[at];
        let mut lanes = [0f32; 16];
        for i in 0..16 {
            lanes[i] = x[i].abs().max(x[i + 16].abs());
        }
        let largest = lanes.iter().fold(0f32, |a, b| a.max(*b));
        // For a smaller maximum, 127 / largest would overflow. Such activations would not affect a
        // product anyway.
        let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
        let mut sums = [0i32; 2];
        for i in 0..32 {
            // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
            codes[i] = (x[i] * inverse + 12_582_912.0).to_bits() as i8;
        }
        for i in 0..16 {
            sums[0] += i32::from(codes[i]);
            sums[1] += i32::from(codes[i + 16]);
        }
        row.set(at, largest / 127.0, sums);
    }
}

/// Products for any block type. Unpacks 256 elements at a time and multiplies groups exactly.
#[inline(always)]
pub(super) fn dot_codes(ty: BlockType, weights: &[u8], x: QuantisedInput<'_>, out: &mut [f32]) {
    let format = ty.format();
    let grouping = format.grouping;
    for (row, out) in rows(WeightType::Blocks(ty), weights, x.codes.len(), out) {
        let (mut codes, mut scales, mut mins) = ([0i8; UNPACK_STEP], [0f32; 16], [0f32; 16]);
        let mut sums = LineSums::new(0.0);
        for (at, src) in row.chunks(UNPACK_STEP / format.len * format.bytes).enumerate() {
            let n = src.len() / format.bytes * format.len;
            (format.unpack)(src, UnpackedMut { codes: &mut codes[..n], scales: &mut scales, mins: &mut mins });
            let first = at * UNPACK_STEP;
            for group in 0..n / grouping.len {
                let k = group * grouping.len;
                if first + k > 0 && (first + k).is_multiple_of(LINE) {
                    sums = LineSums::new(sums.total());
                }
                let (w, xs) = (&codes[k..][..grouping.len], &x.codes[first + k..][..grouping.len]);
                let dot: i32 = w.iter().zip(xs).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                sums.add(group, dot as f32, scales[group] * x.scales[(first + k) / 32]);
                if grouping.minima {
                    let of_x = if grouping.len == 32 { x.sums } else { x.half_sums };
                    sums.add(group, mins[group], of_x[(first + k) / grouping.len]);
                }
            }
        }
        *out = sums.total();
    }
}

/// Pairs every row of `weights` with its output. Checks the lengths.
#[inline(always)]
pub(super) fn rows<'a, T>(
    ty: WeightType,
    weights: &'a [u8],
    cols: usize,
    out: &'a mut [T],
) -> impl Iterator<Item = (&'a [u8], &'a mut T)> {
    let row_bytes = ty.row_bytes(cols).unwrap_or(0);
    assert_eq!(weights.len(), out.len() * row_bytes, "{} {ty} rows of {cols}", out.len());
    weights.chunks_exact(row_bytes.max(1)).zip(out)
}

/// `out[r] = dot(W[r])` for rows of blocks. Checks the lengths.
#[inline(always)]
pub(super) fn dot_each(
    ty: BlockType,
    weights: &[u8],
    x: QuantisedInput<'_>,
    out: &mut [f32],
    dot: impl Fn(&[u8]) -> f32,
) {
    rows(WeightType::Blocks(ty), weights, x.codes.len(), out).for_each(|(row, out)| *out = dot(row));
}

/// Dot product of a row of floats, summed in sixteen lanes.
#[inline(always)]
pub(super) fn dot_floats(ty: FloatType, row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunk = [0f32; 16];
    for (src, x) in row.chunks(16 * ty.bytes()).zip(x.chunks(16)) {
        chunk[x.len()..].fill(0.0);
        widen(ty, src, &mut chunk[..x.len()]);
        for (i, x) in x.iter().enumerate() {
            lanes[i] += chunk[i] * x;
        }
    }
    lanes.iter().sum()
}

/// Widens a float type to f32.
#[inline(always)]
pub(super) fn widen(ty: FloatType, src: &[u8], dst: &mut [f32]) {
    match ty {
        FloatType::F32 => {
            for (dst, b) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
                *dst = f32::from_le_bytes(*b);
            }
        }
        FloatType::F16 => {
            for (dst, b) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *dst = f16_to_f32(*b);
            }
        }
        FloatType::BF16 => {
            for (dst, b) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *dst = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            }
        }
    }
}

/// Reorders `[ROWS, n]` to `[n / WORD, ROWS, WORD]`.
#[inline(always)]
pub(super) fn interleave<T: Copy, const WORD: usize, const ROWS: usize>(rows: &[T], out: &mut [T]) {
    let n = rows.len() / ROWS;
    assert!(rows.len() == n * ROWS && out.len() == rows.len() && n.is_multiple_of(WORD));
    let (words, _) = out.as_chunks_mut::<WORD>();
    for (row, elements) in rows.chunks_exact(n.max(1)).enumerate() {
        for (k, word) in elements.as_chunks::<WORD>().0.iter().enumerate() {
            words[k * ROWS + row] = *word;
        }
    }
}

/// Checks the lengths of a panel of at most one line, a tile and their accumulators. Returns the
/// number of groups.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn check_tile(rows: usize, panel: &CodePanel<'_>, x: &CodeTile<'_>, acc: &[f32]) -> usize {
    let n = panel.codes.len() / rows;
    let groups = n / panel.grouping.len;
    assert!(n.is_multiple_of(32) && n <= LINE && panel.codes.len() == n * rows && acc.len() == TILE_TOKENS * rows);
    assert!(panel.scales.len() == groups * rows && panel.bias.len() == groups * rows);
    assert!(panel.mins.len() == if panel.grouping.minima { groups * rows } else { 0 });
    assert!(x.codes.len() == n / 4 * TILE_TOKENS && x.scales.len() == n / 32 * TILE_TOKENS);
    assert!(x.sums.len() == n / 32 * TILE_TOKENS && x.half_sums.len() == n / 16 * TILE_TOKENS);
    groups
}

/// Multiplies a panel of floats with a tile of tokens.
#[inline(always)]
pub(super) fn tile_floats<const ROWS: usize, const TOKENS: usize>(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<ROWS>(), x.as_chunks::<TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * TOKENS);
    for (w, x) in panel.iter().zip(x) {
        for (x, acc) in x.iter().zip(acc.as_chunks_mut::<ROWS>().0) {
            for (acc, w) in acc.iter_mut().zip(w) {
                *acc += w * x;
            }
        }
    }
}

/// Sums over the active inputs of the codes of line `at`: first for the low nibbles of its bytes,
/// then for the high nibbles.
#[inline(always)]
fn nibble_sums(inputs: &InputBlock<'_>, at: usize) -> [[i32; OUTPUTS / 2]; 2] {
    const LINE: usize = OUTPUTS / 2;
    let (row, mut sums) = (inputs.codes.len() / INPUTS, [[0; LINE]; 2]);
    for input in inputs.active {
        let (line, x) =
            (&inputs.codes[*input as usize * row + at * LINE..][..LINE], i32::from(inputs.x[*input as usize]));
        for (byte, codes) in line.iter().enumerate() {
            sums[0][byte] += i32::from(codes & 15) * x;
            sums[1][byte] += i32::from(codes >> 4) * x;
        }
    }
    sums
}

/// See [`Kernels::add_inputs`](super::Kernels::add_inputs).
#[inline(always)]
pub(super) fn add_inputs(inputs: &InputBlock<'_>, acc: &mut [f32]) {
    let InputBlock { scales, codes, scale, sum, .. } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    for (at, (acc, scales)) in acc.chunks_exact_mut(OUTPUTS).zip(scales.chunks_exact(2 * OUTPUTS)).enumerate() {
        let sums = nibble_sums(inputs, at);
        for (output, (acc, head)) in acc.iter_mut().zip(scales.as_chunks::<2>().0).enumerate() {
            let (byte, shift) = position_in_line(output);
            *acc += f16_to_f32(*head) * (sums[shift / 4][byte] as f32 * scale - 8.0 * sum);
        }
    }
}

/// See [`Kernels::add_byte_inputs`](super::Kernels::add_byte_inputs).
#[inline(always)]
pub(super) fn add_byte_inputs(inputs: &InputBlock<'_>, acc: &mut [f32]) {
    let InputBlock { scales, codes, active, x, scale, .. } = *inputs;
    let row = acc.len();
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * row && row.is_multiple_of(OUTPUTS));
    for (at, (acc, scales)) in acc.chunks_exact_mut(OUTPUTS).zip(scales.chunks_exact(2 * OUTPUTS)).enumerate() {
        let mut sums = [0i32; OUTPUTS];
        for input in active {
            let (line, x) = (&codes[*input as usize * row + at * OUTPUTS..][..OUTPUTS], i32::from(x[*input as usize]));
            sums.iter_mut().zip(line).for_each(|(sum, code)| *sum += i32::from(code.cast_signed()) * x);
        }
        for ((acc, head), sum) in acc.iter_mut().zip(scales.as_chunks::<2>().0).zip(sums) {
            *acc += f16_to_f32(*head) * (sum as f32 * scale);
        }
    }
}

/// See [`Kernels::add_inputs_with_minima`](super::Kernels::add_inputs_with_minima).
#[inline(always)]
pub(super) fn add_inputs_with_minima(inputs: &InputBlock<'_>, of: &InputMinima<'_>, acc: &mut [f32]) {
    let InputBlock { scales, codes, scale, sum, .. } = *inputs;
    let (outputs, row) = (acc.len(), acc.len() / 2);
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * outputs && outputs.is_multiple_of(OUTPUTS));
    assert!(of.factors.len() == outputs && of.minima.len() == outputs && of.scales.len() == 2 * outputs);
    for (at, acc) in acc.chunks_exact_mut(OUTPUTS).enumerate() {
        let sums = nibble_sums(inputs, at);
        for (output, acc) in acc.iter_mut().enumerate() {
            let ((byte, shift), at) = (position_in_line(output), at * OUTPUTS + output);
            let head = |of: &[u8]| f16_to_f32([of[2 * at], of[2 * at + 1]]);
            let weight = head(scales) * f32::from(of.factors[at]);
            let min = head(of.scales) * f32::from(of.minima[at]);
            *acc += weight * (sums[shift / 4][byte] as f32 * scale) - min * sum;
        }
    }
}

/// `acc += a * w` for a row of floats.
#[inline(always)]
pub(super) fn axpy_floats(ty: FloatType, row: &[u8], a: f32, acc: &mut [f32]) {
    let mut floats = [0f32; 64];
    for (src, acc) in row.chunks(64 * ty.bytes()).zip(acc.chunks_mut(64)) {
        widen(ty, src, &mut floats[..acc.len()]);
        for (acc, w) in acc.iter_mut().zip(&floats) {
            *acc += a * w;
        }
    }
}

/// `acc += a * w` for a row of blocks.
#[inline(always)]
pub(super) fn axpy_blocks(ty: BlockType, row: &[u8], a: f32, acc: &mut [f32]) {
    let format = ty.format();
    let grouping = format.grouping;
    let (mut codes, mut scales, mut mins) = ([0i8; UNPACK_STEP], [0f32; 16], [0f32; 16]);
    for (src, acc) in row.chunks(UNPACK_STEP / format.len * format.bytes).zip(acc.chunks_mut(UNPACK_STEP)) {
        let codes = &mut codes[..acc.len()];
        (format.unpack)(src, UnpackedMut { codes, scales: &mut scales, mins: &mut mins });
        for (group, (acc, codes)) in acc.chunks_mut(grouping.len).zip(codes.chunks(grouping.len)).enumerate() {
            let scale = a * scales[group];
            let min = if grouping.minima { a * mins[group] } else { 0.0 };
            for (acc, code) in acc.iter_mut().zip(codes) {
                *acc += scale * f32::from(*code) + min;
            }
        }
    }
}
