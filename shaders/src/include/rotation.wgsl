// Rotations of queries and keys (ROPE, Su et al. 2021), for the first `dims` elements of a head:
//   (a, b) <- (a cos - b sin, a sin + b cos)
//   pairs (i, i + dims / 2) when NEOX, else (2 i, 2 i + 1)
// The kernel declares `table`, [rows, dims / 2], with the (cos, sin) of each row's token.
override NEOX: bool = false;
override ROPE: bool = true;

struct Rotation {
    // The other element of the pair.
    partner: u32,
    // Factors on the element and on its partner.
    cosine: f32,
    sine: f32,
}

// The rotation of element i, which is below `dims`.
fn rotation_of(row: u32, i: u32, dims: u32) -> Rotation {
    let half = dims / 2u;
    var pair = i / 2u;
    var is_first = i % 2u == 0u;
    var partner = i ^ 1u;
    if NEOX {
        pair = i % half;
        is_first = i < half;
        partner = select(i - half, i + half, is_first);
    }
    let rotation = table[row * half + pair];
    return Rotation(partner, rotation.x, select(rotation.y, -rotation.y, is_first));
}
