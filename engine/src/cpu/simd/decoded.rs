//! Quantised weights against activations that stay floats: blocks are decoded to codes, which are multiplied as floats.
//! Written once over [`Vector`]; what differs between instruction sets is how [`Kernels::unpack`] decodes.

use super::{
    Kernels,
    portable::rows,
    vector::{Kernel, Vector, dispatch},
};
use crate::{
    cpu::Isa,
    quant::{BlockType, Encoding, Grouping, UNPACK_STEP as STEP, UnpackedMut, f16_at},
};

/// Codes, scales and minima of [`STEP`] elements.
struct Decoded {
    codes: [i8; STEP],
    scales: [f32; STEP / 16],
    mins: [f32; STEP / 16],
}

impl Decoded {
    const EMPTY: Decoded = Decoded { codes: [0; STEP], scales: [0.0; STEP / 16], mins: [0.0; STEP / 16] };

    /// Codes of each group with its scale and minimum, of the `n` elements in `src`.
    #[inline(always)]
    fn groups<const LEN: usize>(
        &mut self,
        kernels: &dyn Kernels,
        ty: BlockType,
        src: &[u8],
        n: usize,
    ) -> impl Iterator<Item = (&[i8; LEN], f32, f32)> {
        let to = UnpackedMut { codes: &mut self.codes[..n], scales: &mut self.scales, mins: &mut self.mins };
        kernels.unpack(ty, src, to);
        let groups = self.codes[..n].as_chunks::<LEN>().0.iter();
        groups.zip(self.scales.iter().zip(&self.mins)).map(|(codes, (scale, min))| (codes, *scale, *min))
    }
}

/// `out[r] = W[r] . x` for `out.len()` rows of a quantised type.
pub(super) fn dot(
    isa: Isa,
    kernels: &dyn Kernels,
    ty: BlockType,
    weights: &[u8],
    x: &[f32],
    ahead: isize,
    out: &mut [f32],
) {
    match ty.format().grouping {
        Grouping { len: 32, minima: true, .. } => {
            dispatch(isa, Dot::<32, true> { kernels, ty, weights, x, ahead, out })
        }
        Grouping { len: 32, .. } => dispatch(isa, Dot::<32, false> { kernels, ty, weights, x, ahead, out }),
        Grouping { minima: true, .. } => dispatch(isa, Dot::<16, true> { kernels, ty, weights, x, ahead, out }),
        Grouping { .. } => dispatch(isa, Dot::<16, false> { kernels, ty, weights, x, ahead, out }),
    }
}

struct Dot<'a, const LEN: usize, const MINIMA: bool> {
    kernels: &'a dyn Kernels,
    ty: BlockType,
    weights: &'a [u8],
    x: &'a [f32],
    ahead: isize,
    out: &'a mut [f32],
}

impl<const LEN: usize, const MINIMA: bool> Kernel for Dot<'_, LEN, MINIMA> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Dot { kernels, ty, weights, x, ahead, out } = self;
        let step_bytes = STEP / ty.format().len * ty.format().bytes;
        let mut decoded = Decoded::EMPTY;
        for (row, out) in rows(Encoding::Blocks(ty), weights, x.len(), out) {
            let mut acc = [v.splat(0.0); 4];
            for (src, x) in row.chunks(step_bytes).zip(x.chunks(STEP)) {
                v.prefetch(src, ahead);
                let groups = decoded.groups::<LEN>(kernels, ty, src, x.len());
                for (at, ((codes, scale, min), x)) in groups.zip(x.as_chunks::<LEN>().0).enumerate() {
                    let mut sum = v.mul(v.load_i8(codes), v.load(x));
                    let mut plain = v.load(x);
                    for k in (V::LANES..LEN).step_by(V::LANES) {
                        let x = v.load(&x[k..]);
                        sum = v.mul_add(v.load_i8(&codes[k..]), x, sum);
                        plain = v.add(plain, x);
                    }
                    acc[at % 2] = v.mul_add(sum, v.splat(scale), acc[at % 2]);
                    if MINIMA {
                        acc[2 + at % 2] = v.mul_add(plain, v.splat(min), acc[2 + at % 2]);
                    }
                }
            }
            *out = v.sum(v.add(v.add(acc[0], acc[1]), v.add(acc[2], acc[3])));
        }
    }
}

/// Decodes whole blocks of a quantised type to `w = scale * code + min`.
pub(super) fn widen(isa: Isa, kernels: &dyn Kernels, ty: BlockType, src: &[u8], dst: &mut [f32]) {
    let format = ty.format();
    assert_eq!(Some(src.len()), format.ty.row_bytes(dst.len()), "{} row of {}", format.ty, dst.len());
    match format.grouping.len {
        _ if ty == BlockType::Q8_0 => dispatch(isa, WidenBytes { src, dst }),
        32 => dispatch(isa, Widen::<32>(kernels, ty, src, dst)),
        _ => dispatch(isa, Widen::<16>(kernels, ty, src, dst)),
    }
}

struct Widen<'a, const LEN: usize>(&'a dyn Kernels, BlockType, &'a [u8], &'a mut [f32]);

impl<const LEN: usize> Kernel for Widen<'_, LEN> {
    type Output = ();

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

/// Decodes blocks of Q8_0, whose codes are bytes as they are.
struct WidenBytes<'a> {
    src: &'a [u8],
    dst: &'a mut [f32],
}

impl Kernel for WidenBytes<'_> {
    type Output = ();

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
