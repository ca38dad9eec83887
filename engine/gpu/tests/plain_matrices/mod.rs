//! Small matrix products in plain WGSL, for drivers without hardware matrices. Each invocation of a
//! subgroup holds some elements of a matrix of sums. A tile of 16-bit floats is represented by its
//! position in shared memory.

/// The language extension that is removed.
const ENABLE: &str = "enable wgpu_cooperative_matrix;";

/// Functions that replace those of the extension. SIDE is filled in.
const FUNCTIONS: &str = "
var<private> tile_lane: u32;
var<private> tile_lanes: u32;
// Matrix after matrix the elements of this invocation.
var<private> tile_sums: array<f32, 512>;

struct Tile {
    start: u32,
    stride: u32,
}

fn zero_tile(matrix: u32) -> u32 {
    for (var i = 0u; i < SIDE * SIDE; i += tile_lanes) {
        tile_sums[(matrix * SIDE * SIDE + i) / tile_lanes] = 0.0;
    }
    return matrix;
}

// Rows of weights and columns of x lie one after the other.
fn multiply_add(weights: Tile, x: Tile, matrix: u32) -> u32 {
    for (var i = tile_lane; i < SIDE * SIDE; i += tile_lanes) {
        let weights_at = weights.start + i / SIDE * weights.stride;
        let x_at = x.start + i % SIDE * x.stride;
        var sum = 0.0;
        for (var k = 0u; k < SIDE; k += 1u) {
            sum += f32(weight_tile[weights_at + k]) * f32(x_tile[x_at + k]);
        }
        tile_sums[(matrix * SIDE * SIDE + i) / tile_lanes] += sum;
    }
    return matrix;
}

fn store_sums(matrix: u32, start: u32, stride: u32) {
    for (var i = tile_lane; i < SIDE * SIDE; i += tile_lanes) {
        sums[start + i / SIDE * stride + i % SIDE] = tile_sums[(matrix * SIDE * SIDE + i) / tile_lanes];
    }
}
";

/// `source` with functions instead of the extension, or unchanged if it does not use the extension.
pub fn in_plain_text(source: &str) -> String {
    if !source.contains(ENABLE) {
        return source.to_owned();
    }
    let side = if source.contains("coop_mat16x16") { 16 } else { 8 };
    let text = source.replace(ENABLE, "").replace("coopMultiplyAdd(", "multiply_add(");
    let lanes = "let index = builtins.index;";
    assert!(text.contains(lanes));
    let text = text
        .replace(lanes, &format!("{lanes}\n    tile_lane = builtins.subgroup_lane;\n    tile_lanes = subgroup_size;"));
    // A position in a tile replaces the pointer to it.
    let text = of_places(&text, &format!("coopLoadT<coop_mat{side}x{side}<f16, A>>("), "&weight_tile[", "Tile(");
    let text = of_places(&text, &format!("coopLoad<coop_mat{side}x{side}<f16, B>>("), "&x_tile[", "Tile(");
    let text = of_places(&text, "coopStoreT(", "&sums[", "store_sums(");
    let zero = format!("coop_mat{side}x{side}<f32, C>()");
    let mut pieces = text.split(&zero);
    let mut text = pieces.next().unwrap().to_owned();
    for (matrix, piece) in pieces.enumerate() {
        text += &format!("zero_tile({matrix}u){piece}");
    }
    assert!(!text.contains("coop_mat") && !text.contains("coopL") && !text.contains("coopS"), "{text}");
    text + &FUNCTIONS.replace("SIDE", &format!("{side}u"))
}

/// Replaces the function `from` in `text` by `name`. Its pointer, which begins with `tile`, becomes
/// an index.
fn of_places(text: &str, from: &str, tile: &str, name: &str) -> String {
    let mut pieces = text.split(from);
    let mut all = pieces.next().unwrap().to_owned();
    for piece in pieces {
        all += name;
        all += &piece.replacen(tile, "", 1).replacen("], ", ", ", 1);
    }
    all
}
