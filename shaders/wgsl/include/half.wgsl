// F16 data lies in memory as pairs in a u32, in every tier, so that buffers have one layout.
#if f16
enable f16;

fn unpack_pair(pair: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<vec2<f16>>(pair));
}
#else
fn unpack_pair(pair: u32) -> vec2<f32> {
    return unpack2x16float(pair);
}
#endif
