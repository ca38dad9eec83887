//! Sizes fixed in the kernels' texts that their caller has to know.

/// Values a workgroup of `top_k` takes: `ceil(len / TOP_K_RANGE)` workgroups, each writing `k`.
pub const TOP_K_RANGE: u32 = 1024;

/// Most values `top_k` is asked for; far fewer than a range, so that every round shrinks the list.
pub const TOP_K_MOST: u32 = 64;

/// Most experts `route` chooses from.
pub const ROUTE_EXPERTS: u32 = 512;

/// Most experts `route` chooses for a token.
pub const ROUTE_USED: u32 = 32;

/// Most groups of experts that `route` chooses among.
pub const ROUTE_GROUPS: u32 = 64;

/// Pairs of a tile of `group_slots`.
pub const EXPERT_TILE: u32 = 64;

/// Most tiles that `pairs` pairs of `experts` experts fill: whole ones, and one of each expert that is not.
pub const fn expert_tiles(pairs: usize, experts: usize) -> usize {
    let partial = if pairs < experts { pairs } else { experts };
    pairs / EXPERT_TILE as usize + partial
}

/// Binding of the code book of a weight type that has one; behind those of every kernel that reads weights, and the last that every
/// adapter has.
pub const CODE_BOOK: u32 = 7;

/// Columns of a workgroup of `gemm_neurons`.
pub const GEMM_NEURONS_COLUMNS: u32 = 64;

/// Most tokens (`TOKENS`) a workgroup of `sparse_down` takes.
pub const SPARSE_DOWN_TOKENS: u32 = 8;

/// Neurons that `LANES` invocations of `sparse_gate_up` and `expert_gate_up` share: a workgroup takes
/// `SPARSE_NEURONS * WORKGROUP_SIZE / LANES`.
pub const SPARSE_NEURONS: u32 = 2;

/// Words from one neuron block's grid to the next's, as `slot_list` writes them.
pub const SLOT_GRID: u32 = 4;

/// Entry of `slot_list`'s table for a slot without a neuron.
pub const NO_NEURON: u32 = u32::MAX;

/// Tokens of a workgroup of `attention_prompt`.
pub const ATTENTION_QUERIES: u32 = 32;

/// Elements of a head's output that a workgroup of `attention_prompt` takes.
pub const ATTENTION_OUT: u32 = 256;

/// Keys of a tile of `attention_decode`; a split is a whole number of them.
pub const ATTENTION_TILE: u32 = 32;

/// Most query heads a workgroup of `attention_decode` takes, and most units of four elements they have together.
pub const ATTENTION_HEADS: u32 = 8;
/// See [`ATTENTION_HEADS`].
pub const ATTENTION_UNITS: u32 = 256;

/// Most splits `attention_merge` combines.
pub const ATTENTION_SPLITS: u32 = 256;

/// Rows of a state that a lane of `delta_net` or `mamba2_scan` keeps.
pub const SCAN_ROWS: u32 = 16;
/// Most lanes of a workgroup of these.
pub const SCAN_LANES: u32 = 128;

#[cfg(test)]
mod tests {
    use crate::{Kernel, Tier, WeightType};

    fn assert_size(kernel: &str, name: &str, value: u32) {
        let text = Kernel::named(kernel).unwrap().source(Tier::PORTABLE, Some(WeightType::F32)).unwrap();
        assert!(text.contains(&format!("const {name}: u32 = {value}u;")), "{kernel} {name}");
    }

    #[test]
    fn limits_equal_the_constants_of_the_kernels() {
        assert_size("top_k", "RANGE", super::TOP_K_RANGE);
        assert_size("route", "MOST_EXPERTS", super::ROUTE_EXPERTS);
        assert_size("route", "MOST_USED", super::ROUTE_USED);
        assert_size("route", "MOST_GROUPS", super::ROUTE_GROUPS);
        assert_size("group_slots", "MOST_EXPERTS", super::ROUTE_EXPERTS);
        assert_size("group_slots", "TOKENS", super::EXPERT_TILE);
        assert_size("expert_gemm", "TOKENS", super::EXPERT_TILE);
        assert_size("gemm_neurons", "COLUMNS", super::GEMM_NEURONS_COLUMNS);
        assert_size("sparse_gate_up", "NEURONS", super::SPARSE_NEURONS);
        assert_size("sparse_down", "MOST_TOKENS", super::SPARSE_DOWN_TOKENS);
        assert_size("slot_list", "GRID", super::SLOT_GRID);
        assert_size("attention_prompt", "QUERIES", super::ATTENTION_QUERIES);
        assert_size("attention_decode", "TILE", super::ATTENTION_TILE);
        assert_size("attention_decode", "MOST_HEADS", super::ATTENTION_HEADS);
        assert_size("attention_decode", "MOST_UNITS", super::ATTENTION_UNITS);
        for scan in ["delta_net", "mamba2_scan"] {
            assert_size(scan, "ROWS", super::SCAN_ROWS);
            assert_size(scan, "MOST_LANES", super::SCAN_LANES);
        }
        assert_size("attention_merge", "MOST_SPLITS", super::ATTENTION_SPLITS);
    }
}
