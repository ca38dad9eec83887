// Positions of a dispatch's tokens, and the growth of queries with their position p (QUERY_SCALE):
//   q <- q (1 + beta ln(1 + floor((p + offset) / length)))

override QUERY_SCALE: bool = false;

struct TokenPositions {
    // Position of the first token.
    first: u32,
    beta: f32,
    // Positions per step of the growth, at least 1.
    length: u32,
    offset: u32,
}

// The factor on a token's query.
fn query_growth(positions: TokenPositions, token: u32) -> f32 {
    if !QUERY_SCALE {
        return 1.0;
    }
    return 1.0 + positions.beta * log(1.0 + f32((positions.first + token + positions.offset) / positions.length));
}
