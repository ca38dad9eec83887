//! Products of quantised weights with float activations. Blocks are decoded to codes, which are
//! multiplied as floats. Written once over [`Vector`]. Instruction sets differ only in how
//! [`Kernels::unpack`] decodes.

use super::{
    DOT_TOKENS, Kernels,
    vector::{Vector, VectorKernel, dispatch},
};
use thermocline_formats::quant::{BlockType, Grouping, UNPACK_STEP as STEP, UnpackedMut, f16_at};

/// Codes, scales and minima of [`STEP`] elements.
struct Decoded {
    codes: [i8; STEP],
    scales: [f32; STEP / 16],
    mins: [f32; STEP / 16],
}

impl Decoded {
    const EMPTY: Decoded = Decoded { codes: [0; STEP], scales: [0.0; STEP / 16], mins: [0.0; STEP / 16] };

    /// Decodes the `n` elements in `src`, and returns the codes of each group with its scale and
    /// minimum.
    #[inline(always)]
    fn groups<const LEN: usize>(
        &mut self,
        kernels: &Kernels,
        ty: BlockType,
        src: &[u8],
        n: usize,
    ) -> impl Iterator<Item = (&[i8; LEN], f32, f32)> {
        let to = UnpackedMut { codes: &mut self.codes[..n], scales: &mut self.scales, mins: &mut self.mins };
        (kernels.unpack)(ty, src, to);
        let groups = self.codes[..n].as_chunks::<LEN>().0.iter();
        groups.zip(self.scales.iter().zip(&self.mins)).map(|(codes, (scale, min))| (codes, *scale, *min))
    }
}

/// Sets `out[t] = row . x[t]` for a row of a quantised type and some tokens.
pub(super) fn dot_tokens(
    kernels: &Kernels,
    ty: BlockType,
    row: &[u8],
    x: &[&[f32]],
    ahead: isize,
    out: &mut [f32; DOT_TOKENS],
) {
    let out = &mut out[..x.len()];
    match *x {
        [a] => out.copy_from_slice(&dot(kernels, ty, row, [a], ahead)),
        [a, b] => out.copy_from_slice(&dot(kernels, ty, row, [a, b], ahead)),
        [a, b, c] => out.copy_from_slice(&dot(kernels, ty, row, [a, b, c], ahead)),
        _ => panic!("a product of {} tokens", x.len()),
    }
}

/// `row . x[t]` for a row of a quantised type.
pub(super) fn dot<const N: usize>(
    kernels: &Kernels,
    ty: BlockType,
    row: &[u8],
    x: [&[f32]; N],
    ahead: isize,
) -> [f32; N] {
    match ty.format().grouping {
        Grouping { len: 32, minima: true, .. } => {
            dispatch(kernels.isa, Dot::<32, true, N> { kernels, ty, row, x, ahead })
        }
        Grouping { len: 32, .. } => dispatch(kernels.isa, Dot::<32, false, N> { kernels, ty, row, x, ahead }),
        Grouping { minima: true, .. } => dispatch(kernels.isa, Dot::<16, true, N> { kernels, ty, row, x, ahead }),
        Grouping { .. } => dispatch(kernels.isa, Dot::<16, false, N> { kernels, ty, row, x, ahead }),
    }
}

struct Dot<'a, const LEN: usize, const MINIMA: bool, const N: usize> {
    kernels: &'a Kernels,
    ty: BlockType,
    row: &'a [u8],
    x: [&'a [f32]; N],
    ahead: isize,
}

impl<const LEN: usize, const MINIMA: bool, const N: usize> VectorKernel<[f32; N]> for Dot<'_, LEN, MINIMA, N> {
    /// Codes are widened once for all tokens. Each token's sums have the same order as for the
    /// token alone.
    #[inline(always)]
    fn run<V: Vector>(self, v: V) -> [f32; N] {
        let Dot { kernels, ty, row, x, ahead } = self;
        let step_bytes = STEP / ty.format().len * ty.format().bytes;
        let mut decoded = Decoded::EMPTY;
        let mut acc = [[v.splat(0.0); 4]; N];
        for (step, src) in row.chunks(step_bytes).enumerate() {
            v.prefetch(src, ahead);
            let x = x.map(|x| &x[step * STEP..x.len().min((step + 1) * STEP)]);
            let groups = decoded.groups::<LEN>(kernels, ty, src, x[0].len());
            let x = x.map(|x| x.as_chunks::<LEN>().0);
            for (at, (codes, scale, min)) in groups.enumerate() {
                let first = v.load_i8(codes);
                let mut sums: [V::F; N] = std::array::from_fn(|token| v.mul(first, v.load(&x[token][at])));
                let mut plain: [V::F; N] = std::array::from_fn(|token| v.load(&x[token][at]));
                for k in (V::LANES..LEN).step_by(V::LANES) {
                    let codes = v.load_i8(&codes[k..]);
                    for token in 0..N {
                        let x = v.load(&x[token][at][k..]);
                        sums[token] = v.mul_add(codes, x, sums[token]);
                        plain[token] = v.add(plain[token], x);
                    }
                }
                for (token, acc) in acc.iter_mut().enumerate() {
                    acc[at % 2] = v.mul_add(sums[token], v.splat(scale), acc[at % 2]);
                    if MINIMA {
                        acc[2 + at % 2] = v.mul_add(plain[token], v.splat(min), acc[2 + at % 2]);
                    }
                }
            }
        }
        acc.map(|acc| v.sum(v.add(v.add(acc[0], acc[1]), v.add(acc[2], acc[3]))))
    }
}

/// Decodes whole blocks of a quantised type to `w = scale * code + min`.
pub(super) fn widen(kernels: &Kernels, ty: BlockType, src: &[u8], dst: &mut [f32]) {
    let format = ty.format();
    assert_eq!(Some(src.len()), format.ty.row_bytes(dst.len()), "{} row of {}", format.ty, dst.len());
    match format.grouping.len {
        _ if ty == BlockType::Q8_0 => dispatch(kernels.isa, WidenBytes { src, dst }),
        32 => dispatch(kernels.isa, Widen::<32>(kernels, ty, src, dst)),
        _ => dispatch(kernels.isa, Widen::<16>(kernels, ty, src, dst)),
    }
}

struct Widen<'a, const LEN: usize>(&'a Kernels, BlockType, &'a [u8], &'a mut [f32]);

impl<const LEN: usize> VectorKernel for Widen<'_, LEN> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Widen(kernels, ty, src, dst) = self;
        let step_bytes = STEP / ty.format().len * ty.format().bytes;
        let mut decoded = Decoded::EMPTY;
        for (src, dst) in src.chunks(step_bytes).zip(dst.chunks_mut(STEP)) {
            let groups = decoded.groups::<LEN>(kernels, ty, src, dst.len());
            for ((codes, scale, min), dst) in groups.zip(dst.as_chunks_mut::<LEN>().0) {
                let (scale, min) = (v.splat(scale), v.splat(min));
                for k in (0..LEN).step_by(V::LANES) {
                    v.store(&mut dst[k..], v.mul_add(v.load_i8(&codes[k..]), scale, min));
                }
            }
        }
    }
}

/// Decodes blocks of Q8_0, whose codes are plain bytes.
struct WidenBytes<'a> {
    src: &'a [u8],
    dst: &'a mut [f32],
}

impl VectorKernel for WidenBytes<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        for (block, dst) in self.src.as_chunks::<34>().0.iter().zip(self.dst.as_chunks_mut::<32>().0) {
            let (codes, scale) = (bytemuck::cast_slice(&block[2..]), v.splat(f16_at(block, 0)));
            for k in (0..32).step_by(V::LANES) {
                v.store(&mut dst[k..], v.mul(v.load_i8(&codes[k..]), scale));
            }
        }
    }
}
