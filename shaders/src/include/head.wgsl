// Heads in units of four elements. Queries and keys may have another width than values and outputs.
// Heads of q and rows of the caches are padded with zeros to whole units.
#include "lane.wgsl"

override HEAD_DIM: u32 = 128u;
override UNITS: u32 = (HEAD_DIM + 3u) / 4u;
override VALUE_DIM: u32 = HEAD_DIM;
override VALUE_UNITS: u32 = (VALUE_DIM + 3u) / 4u;

// Score of a key that is not seen. It is finite, so that the difference of two is a number.
const HIDDEN: f32 = -1e30;

// Writes a unit of a head's output, which starts at `start` of `out`. The kernel declares `out`,
// which has no padding.
fn write_unit(start: u32, unit: u32, value: vec4<f32>) {
    for (var i = 0u; i < 4u; i += 1u) {
        if VALUE_DIM % 4u == 0u || unit * 4u + i < VALUE_DIM {
            out[start + unit * 4u + i] = value[i];
        }
    }
}
