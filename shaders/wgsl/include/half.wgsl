// F16 data lies in memory as pairs of four bytes. Where the adapter has 16-bit floats they are loaded as such; elsewhere
// the pair is a u32. (A bitcast from u32 to vec2<f16> comes out wrong on Mesa's software driver.)
#if f16
enable f16;

alias HalfPair = vec2<f16>;

fn unpack_pair(pair: HalfPair) -> vec2<f32> {
    return vec2<f32>(pair);
}
#else
alias HalfPair = u32;

fn unpack_pair(pair: HalfPair) -> vec2<f32> {
    return unpack2x16float(pair);
}
#endif
