//! Products of a panel of eight rows of floats with a tile of tokens.

use super::{FLOAT_TOKENS, ROWS, registers::*};
use crate::simd::part;

/// See [`Kernels::tile_floats`](crate::simd::Kernels::tile_floats).
pub(super) fn floats(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<ROWS>(), x.as_chunks::<FLOAT_TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * FLOAT_TOKENS);
    let acc = acc.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
    let mut total = [[vdupq_n_f32(0.0); 2]; FLOAT_TOKENS];
    for t in 0..FLOAT_TOKENS {
        total[t] = [load_floats(&acc[t][0]), load_floats(&acc[t][1])];
    }
    for (w, x) in panel.iter().zip(x) {
        let (w0, w1) = (load_floats(part(w, 0)), load_floats(part(w, 4)));
        for t in 0..FLOAT_TOKENS {
            total[t][0] = vfmaq_n_f32(total[t][0], w0, x[t]);
            total[t][1] = vfmaq_n_f32(total[t][1], w1, x[t]);
        }
    }
    for t in 0..FLOAT_TOKENS {
        store_floats(&mut acc[t][0], total[t][0]);
        store_floats(&mut acc[t][1], total[t][1]);
    }
}
