//! Products of a packed panel of 16 rows of floats with a tile of tokens.

use std::arch::x86_64::*;

use super::{FLOAT_TOKENS, ROWS, load_ps, store_ps};

/// See [`Kernels::tile_floats`](crate::simd::Kernels::tile_floats).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<8>().0.as_chunks::<2>(), x.as_chunks::<FLOAT_TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * FLOAT_TOKENS);
    let (acc, _) = acc.as_chunks_mut::<8>();
    let (acc, _) = acc.as_chunks_mut::<2>();
    let mut total: [[__m256; 2]; FLOAT_TOKENS] = std::array::from_fn(|t| [load_ps(&acc[t][0]), load_ps(&acc[t][1])]);
    for (w, x) in panel.iter().zip(x) {
        let (w0, w1) = (load_ps(&w[0]), load_ps(&w[1]));
        for t in 0..FLOAT_TOKENS {
            let x = _mm256_set1_ps(x[t]);
            total[t][0] = _mm256_fmadd_ps(w0, x, total[t][0]);
            total[t][1] = _mm256_fmadd_ps(w1, x, total[t][1]);
        }
    }
    for t in 0..FLOAT_TOKENS {
        store_ps(&mut acc[t][0], total[t][0]);
        store_ps(&mut acc[t][1], total[t][1]);
    }
}
