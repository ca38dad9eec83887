//! Memory layout of attention, and its division into workgroups.

use crate::{
    limits::{ATTENTION_HEADS, ATTENTION_SPLITS, ATTENTION_TILE, ATTENTION_UNITS},
    params::Attention,
};

/// Least number of keys per split, so that the partials are small compared with the caches read.
const MIN_SPAN: u32 = 64;

/// Elements between consecutive heads of the queries, or between consecutive rows of the caches.
pub const fn head_pitch(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(4)
}

/// Query heads of one key/value head per workgroup of `attention_decode`: its override `HEADS`. As
/// many as its shared memory holds, rounded down to a divisor of their number unless that is less
/// than half.
pub fn decode_heads(n_head: u32, n_kv_head: u32, head_dim: u32) -> u32 {
    let group = n_head / n_kv_head.max(1);
    let most = (ATTENTION_UNITS * 4 / head_pitch(head_dim).max(1)).clamp(1, ATTENTION_HEADS).min(group.max(1));
    (most.div_ceil(2)..=most).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(most)
}

/// The grid of `attention_decode`: each split takes `span` keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeGrid {
    /// Keys per split.
    pub span: u32,
    /// Number of splits. With one split, the kernel writes the output itself and no merge is
    /// needed.
    pub splits: u32,
    /// Groups of query heads.
    pub head_groups: u32,
    /// Tokens.
    pub tokens: u32,
}

impl DecodeGrid {
    /// The grid of the first token of `params`, for all key/value heads. Divides the keys that the
    /// token sees into splits, so that there are at most `workgroups` workgroups, or one split if
    /// that is already more. Ignores `span`, `splits` and the page of `params`. `heads` comes from
    /// [`decode_heads`].
    pub fn alone(params: &Attention, heads: u32, workgroups: u32) -> Self {
        let group = params.n_head / params.n_kv_head.max(1);
        let head_groups = params.n_kv_head * group.div_ceil(heads.max(1));
        let window = if params.window == 0 { u32::MAX } else { params.window };
        let seen = params.position.saturating_add(1).min(window);
        let most = (workgroups / head_groups.max(1)).clamp(1, ATTENTION_SPLITS);
        let span = seen.div_ceil(most).max(MIN_SPAN).next_multiple_of(ATTENTION_TILE);
        DecodeGrid { span, splits: seen.div_ceil(span), head_groups, tokens: 1 }
    }

    /// The grid of the first tokens of `params`. It ends before the first token whose splits differ
    /// from its splits alone. Several splits take at most `workgroups` workgroups. A token's sums
    /// therefore have the same order alone and among others.
    pub fn new(params: &Attention, heads: u32, workgroups: u32) -> Self {
        let first = Self::alone(params, heads, workgroups);
        let workgroups_of = |tokens: u32| u64::from(first.splits) * u64::from(first.head_groups) * u64::from(tokens);
        let joins = |token: &u32| {
            let params = Attention { position: params.position.saturating_add(*token), ..*params };
            let fits = first.splits == 1 || workgroups_of(token + 1) <= u64::from(workgroups);
            fits && Self::alone(&params, heads, workgroups) == first
        };
        let more = (1..params.tokens).take_while(joins).count() as u32;
        DecodeGrid { tokens: 1 + more, ..first }
    }

    /// The same splits for only the heads of the page in `params`.
    pub fn of_heads(self, params: &Attention, heads: u32) -> Self {
        let group = params.n_head / params.n_kv_head.max(1);
        DecodeGrid { head_groups: params.kv_heads * group.div_ceil(heads.max(1)), ..self }
    }

    /// Workgroups in each dimension.
    pub fn workgroups(&self) -> (u32, u32, u32) {
        (self.splits, self.head_groups, self.tokens)
    }

    /// Upper bound of the floats of the partials, over all grids made for `workgroups`: each split
    /// of a token has a part of every head.
    pub fn max_partials_len(n_head: u32, value_dim: u32, heads: u32, workgroups: u32) -> usize {
        workgroups as usize * heads.min(n_head) as usize * (head_pitch(value_dim) as usize + 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n_head: u32, n_kv_head: u32, tokens: u32, position: u32, window: u32) -> Attention {
        Attention { n_head, n_kv_head, tokens, position, window, ..Attention::default() }
    }

    #[test]
    fn heads_fit_shared_memory() {
        for (n_head, n_kv_head, head_dim, heads) in [
            (32, 32, 128, 1),
            (32, 8, 128, 4),
            (28, 4, 128, 7),
            (71, 1, 64, 8),
            (48, 4, 128, 6),
            (16, 2, 256, 4),
            (4, 2, 6, 2),
        ] {
            assert_eq!(decode_heads(n_head, n_kv_head, head_dim), heads, "{n_head} {n_kv_head} {head_dim}");
            assert!(heads * head_pitch(head_dim) <= 1024);
        }
    }

    #[test]
    fn decode_grid_splits_cover_the_visible_keys_within_bounds() {
        for window in [0, 1, 100, 4096] {
            for position in (0..400).chain([4095, 131_071]) {
                for (tokens, workgroups) in [(1, 1), (1, 512), (3, 512), (8, 1024), (8, 100_000)] {
                    let params = shape(71, 1, tokens, position, window);
                    let grid = DecodeGrid::new(&params, 8, workgroups);
                    assert!((1..=tokens).contains(&grid.tokens));
                    for token in 0..grid.tokens {
                        let params = Attention { position: position + token, ..params };
                        assert_eq!(DecodeGrid { tokens: 1, ..grid }, DecodeGrid::alone(&params, 8, workgroups));
                        let seen = if window == 0 { params.position + 1 } else { (params.position + 1).min(window) };
                        assert!(grid.span * grid.splits >= seen && grid.span * (grid.splits - 1) < seen);
                    }
                    assert!((1..=ATTENTION_SPLITS).contains(&grid.splits) && grid.span.is_multiple_of(ATTENTION_TILE));
                    assert!(grid.splits == 1 || grid.splits * grid.head_groups * grid.tokens <= workgroups);
                    // A grid of one split has no partials.
                    let parts = if grid.splits == 1 { 0 } else { grid.splits * grid.tokens * 71 };
                    let floats = parts as usize * (head_pitch(64) as usize + 4);
                    assert!(floats <= DecodeGrid::max_partials_len(71, 64, 8, workgroups));
                }
            }
        }
        // Position 64 needs a second split, and position 500 a longer span.
        let tokens = |position| DecodeGrid::new(&shape(71, 1, 8, position, 0), 8, 1024).tokens;
        assert_eq!([0, 56, 57, 63, 64].map(tokens), [8, 8, 7, 1, 8]);
        assert_eq!(DecodeGrid::new(&shape(32, 8, 1, 4095, 0), 4, 512).workgroups(), (64, 8, 1));
    }
}
