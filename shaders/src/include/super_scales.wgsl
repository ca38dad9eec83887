// Scale and minimum of a chunk of Q4_K or Q5_K, from the first four words of its super-block's aux.
fn chunk_scale_and_min(header: vec4<u32>, chunk: u32) -> vec2<f32> {
    let i = chunk % 8u;
    let scale = extractBits(header.y, i * 4u, 4u) | (extractBits(header.w, i * 2u, 2u) << 4u);
    let low = extractBits(header.z, i * 4u, 4u) | (extractBits(header.w, i * 2u + 16u, 2u) << 4u);
    return unpack2x16float(header.x) * vec2<f32>(f32(scale), f32(low));
}
