//! Checks that the bandwidth kernel reads every word, because a measurement counts all of them.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{Tier, params::Stream};

use crate::gpu::{Call, Gpu};

#[test]
fn read_bandwidth_reads_every_word_once() {
    let gpu = Gpu::get();
    for (len, workgroups) in [(1_u32, (1, 1, 1)), (63, (2, 1, 1)), (4096, (3, 2, 1)), (100_003, (5, 1, 1))] {
        let mut state = 7_u32;
        let mut word = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        let data: Vec<u32> = (0..4 * len).map(|_| word()).collect();
        let (stride, invocations) = (workgroups.0 * 64, workgroups.0 * workgroups.1 * 64);
        // The previous contents must be overwritten.
        let sums = vec![u32::MAX; invocations as usize];
        let params = Stream { len, stride, invocations };
        let call = Call {
            kernel: "read_bandwidth",
            tier: Tier::PORTABLE,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 64.0)],
            params: bytes_of(&params),
            buffers: &[cast_slice(&data), cast_slice(&sums)],
            workgroups,
        };
        let got = gpu.run_for(&call, [1])[0].iter().fold(0_u32, |sum, part| sum.wrapping_add(*part));
        let expected = data.iter().fold(0_u32, |sum, word| sum.wrapping_add(*word));
        assert_eq!(got, expected, "{len} elements, {workgroups:?}");
    }
}
