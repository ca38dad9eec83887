//! A block-quantised type as data: the record that each type's file fills in, and loops over rows
//! of blocks.

use super::{TensorType, device};
use thermocline_base::error::Result;

/// Encodes whole blocks of numbers and appends them.
pub type Quantise = fn(&[f32], &mut Vec<u8>);

/// Splits a row of blocks into the GPU's streams `main` and `aux`.
pub type Repack = fn(&[u8], &mut [u8], &mut [u8]) -> Result<()>;

/// All that the engine needs to know about a block-quantised type. Weights are `w = scale * code +
/// min`.
#[derive(Debug)]
pub struct BlockFormat {
    /// The type's id in files.
    pub ty: TensorType,
    /// Elements of a block.
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The groups of elements that share a scale.
    pub grouping: Grouping,
    /// Decodes whole blocks, exactly.
    pub unpack: fn(&[u8], UnpackedMut<'_>),
    /// Encodes whole blocks and appends them. `None` for types that are only read.
    pub quantise: Option<Quantise>,
    /// The encoding on the GPU.
    pub device: DeviceFormat,
    /// Completes a block of random bytes, for tests.
    pub sample: Sample,
}

/// Groups of elements that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Elements per scale: 16 or 32.
    pub len: usize,
    /// True if groups have a minimum.
    pub minima: bool,
    /// The lowest code.
    pub lowest: i8,
    /// The highest code.
    pub highest: i8,
}

impl Grouping {
    /// True if codes exceed `-32..=32`.
    pub fn is_wide(&self) -> bool {
        self.lowest < -32 || self.highest > 32
    }
}

/// A type's encoding on the GPU: the streams `main` and `aux` of a row of weights, and the WGSL
/// text that decodes them.
#[derive(Debug)]
pub struct DeviceFormat {
    /// Words of `main` in a chunk of 32 columns.
    pub main_words: usize,
    /// Bytes of `aux` in a block. A row of `aux` is padded to whole words.
    pub aux_bytes: usize,
    /// True if the first word of each `aux` row is an F32 factor of the whole row.
    pub row_factor: bool,
    /// True if there is a kernel that multiplies integers.
    pub packed: bool,
    /// The code book in device memory: one byte per coordinate, or packed points for IQ1. `None`
    /// for types without a code book.
    pub code_book: Option<&'static [u32]>,
    /// WGSL text that decodes the streams.
    pub wgsl: &'static str,
    /// Splits a row of blocks into the streams. Writes every byte of both.
    pub repack: Repack,
}

impl DeviceFormat {
    /// A format that only float kernels read, to be completed.
    pub(super) const PLAIN: DeviceFormat = DeviceFormat {
        main_words: 0,
        aux_bytes: 0,
        row_factor: false,
        packed: false,
        code_book: None,
        wgsl: "",
        repack: device::copy,
    };
    /// A format that kernels with integer products read too, to be completed.
    pub(super) const PACKED: DeviceFormat = DeviceFormat { packed: true, ..DeviceFormat::PLAIN };
}

/// Writes numbers into a block of random bytes, so that its weights are within a few ones.
/// `random(low, high)` returns a random number.
pub type Sample = fn(&mut [u8], &mut dyn FnMut(f32, f32) -> f32);

/// Memory for the decoded elements of whole blocks.
#[derive(Debug)]
pub struct UnpackedMut<'a> {
    /// `[n]`, the codes.
    pub codes: &'a mut [i8],
    /// `[n / group]` or longer: the scales.
    pub scales: &'a mut [f32],
    /// `[n / group]` or longer: the minima. Empty for a type without minima.
    pub mins: &'a mut [f32],
}

/// Unpacks blocks of 32. `block(bytes, codes)` returns scale and minimum.
#[inline(always)]
pub fn unpack_32<const BYTES: usize>(
    src: &[u8],
    to: UnpackedMut<'_>,
    block: impl Fn(&[u8; BYTES], &mut [i8; 32]) -> (f32, f32),
) {
    let blocks = src.as_chunks::<BYTES>().0.iter().zip(to.codes.as_chunks_mut::<32>().0);
    for (at, (bytes, codes)) in blocks.enumerate() {
        let (scale, min) = block(bytes, codes);
        to.scales[at] = scale;
        if let Some(slot) = to.mins.get_mut(at) {
            *slot = min;
        }
    }
}

/// Unpacks blocks of 256 with `GROUPS` groups, by `block(bytes, codes, scales, mins)`.
#[inline(always)]
pub fn unpack_256<const BYTES: usize, const GROUPS: usize>(
    src: &[u8],
    to: UnpackedMut<'_>,
    block: impl Fn(&[u8; BYTES], &mut [i8; 256], &mut [f32; GROUPS], &mut [f32; GROUPS]),
) {
    let mut none = [0.0; GROUPS];
    let blocks = src.as_chunks::<BYTES>().0.iter().zip(to.codes.as_chunks_mut::<256>().0);
    let scales = to.scales.as_chunks_mut::<GROUPS>().0;
    let mins = to.mins.as_chunks_mut::<GROUPS>().0;
    for (at, (bytes, codes)) in blocks.enumerate() {
        block(bytes, codes, &mut scales[at], mins.get_mut(at).unwrap_or(&mut none));
    }
}

/// Unpacks blocks of `LEN` with `GROUPS` groups and no minima, by `block(bytes, codes, scales)`.
#[inline(always)]
pub(crate) fn unpack_chunks<const BYTES: usize, const LEN: usize, const GROUPS: usize>(
    src: &[u8],
    to: UnpackedMut<'_>,
    block: impl Fn(&[u8; BYTES], &mut [i8; LEN], &mut [f32; GROUPS]),
) {
    let blocks = src.as_chunks::<BYTES>().0.iter().zip(to.codes.as_chunks_mut::<LEN>().0);
    for ((bytes, codes), scales) in blocks.zip(to.scales.as_chunks_mut::<GROUPS>().0) {
        block(bytes, codes, scales);
    }
}

/// Quantises numbers block by block.
pub(super) fn quantise_blocks<const BYTES: usize, const LEN: usize>(
    src: &[f32],
    dst: &mut Vec<u8>,
    block: fn(&[f32; LEN]) -> [u8; BYTES],
) {
    for x in src.as_chunks().0 {
        dst.extend_from_slice(&block(x));
    }
}
