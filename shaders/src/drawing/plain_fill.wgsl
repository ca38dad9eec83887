// One colour everywhere, without a texture lookup. A software driver draws the large areas of a
// window with it.

struct Corner {
    @builtin(position) position: vec4<f32>,
    @location(0) @interpolate(flat) colour: u32,
}

@vertex
fn plain_fill_corner(@builtin(vertex_index) number: u32) -> Corner {
    // One triangle that covers the target. The index of its first corner, a multiple of four,
    // encodes the colour.
    let x = f32(number & 1u) * 4.0 - 1.0;
    let y = f32((number >> 1u) & 1u) * 4.0 - 1.0;
    return Corner(vec4<f32>(x, y, 0.0, 1.0), number >> 2u);
}

@fragment
fn plain_fill_colour(corner: Corner) -> @location(0) vec4<f32> {
    let channels = (vec3<u32>(corner.colour) >> vec3<u32>(0u, 8u, 16u)) & vec3<u32>(255u);
    return vec4<f32>(vec3<f32>(channels) / 255.0, 1.0);
}
