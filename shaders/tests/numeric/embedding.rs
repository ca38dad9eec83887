//! Rows of the embedding by token id, for weights of every type.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{WeightType, params};

use crate::gpu::{Call, Gpu, assert_close, bytes, weights::Weights};

#[test]
fn embedding_returns_the_rows_of_the_ids() {
    let gpu = Gpu::get();
    for ty in WeightType::ALL {
        let (rows, first_row) = (23_u32, 100_u32);
        for chunks in [1, 3 * ty.block() as u32 / 32] {
            let cols = (chunks as usize * 32).next_multiple_of(ty.block());
            let weights = Weights::random(ty, rows as usize, cols, 3);
            // Rows of weights may be longer than output rows. Some ids belong to other parts of the
            // matrix.
            let pitch = chunks as usize * 32;
            let ids: [u32; 7] = [100, 122, 111, 99, 123, 0, 100];
            let scale = 2.5_f32;
            let params = params::Embedding {
                first_row,
                rows,
                chunks: cols as u32 / 32,
                tokens: ids.len() as u32,
                pitch: pitch as u32,
                stride: 192,
                scale,
            };
            let out = vec![7.0_f32; (ids.len() + 1) * pitch];
            let mut expected = vec![7.0; out.len()];
            for (t, id) in ids.iter().enumerate().filter(|(_, id)| (first_row..first_row + rows).contains(id)) {
                let row = &weights.values[(id - first_row) as usize * cols..][..pitch];
                let to = &mut expected[t * pitch..][..pitch];
                to.iter_mut().zip(row).for_each(|(to, value)| *to = value * f64::from(scale));
            }
            for tier in gpu.tiers() {
                let call = Call {
                    kernel: "embedding",
                    tier,
                    weights: Some(ty),
                    overrides: &[("WORKGROUP_SIZE", 64.0)],
                    params: bytes_of(&params),
                    buffers: &[cast_slice(&weights.main), cast_slice(&weights.aux), cast_slice(&ids), bytes(&out)],
                    workgroups: (3, (ids.len() * pitch / 8).div_ceil(192) as u32, 1),
                };
                assert_close(&gpu.run(&call, 3), &expected, 1e-6, &format!("{ty} {chunks} {tier}"));
            }
        }
    }
}
