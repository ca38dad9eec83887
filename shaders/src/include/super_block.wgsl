// Rows of super-blocks with all words of aux first, followed by the scales, two per word.

struct SuperBlock {
    // Index of its first word of aux.
    at: u32,
    d: f32,
}

// The super-block of a chunk, with `words` words of aux per super-block.
fn super_block(row: u32, chunk: u32, chunks: u32, words: u32) -> SuperBlock {
    let blocks = chunks / 8u;
    let block = chunk / 8u;
    let first = row * (blocks * words + (blocks + 1u) / 2u);
    let scales = unpack2x16float(weight_aux[first + blocks * words + block / 2u]);
    return SuperBlock(first + block * words, select(scales.x, scales.y, block % 2u == 1u));
}
