//! Sizes that are fixed in the kernels' texts and that callers need.

/// Values per workgroup of `top_k`. `ceil(len / TOP_K_RANGE)` workgroups write `k` values each.
pub const TOP_K_RANGE: u32 = 1024;

/// Largest `k` of `top_k`, far smaller than a range, so that every round shrinks the list.
pub const TOP_K_MOST: u32 = 64;

/// Largest number of experts that `route` can choose from.
pub const ROUTE_EXPERTS: u32 = 512;

/// Largest number of experts that `route` chooses per token.
pub const ROUTE_USED: u32 = 32;

/// Largest number of expert groups of `route`.
pub const ROUTE_GROUPS: u32 = 64;

/// Pairs per tile of `group_slots`.
pub const EXPERT_TILE: u32 = 64;

/// Largest number of tiles for `pairs` pairs of `experts` experts: full tiles, and one partial tile
/// per expert.
pub const fn expert_tiles(pairs: usize, experts: usize) -> usize {
    let partial = if pairs < experts { pairs } else { experts };
    pairs / EXPERT_TILE as usize + partial
}

/// Binding of the code book of weight types that have one. It follows the bindings of every kernel
/// that reads weights, and is the last binding that every adapter supports.
pub const CODE_BOOK: u32 = 7;

/// Columns per workgroup of `gemm_neurons`.
pub const GEMM_NEURONS_COLUMNS: u32 = 64;

/// Largest number of tokens (`TOKENS`) per workgroup of `sparse_down`.
pub const SPARSE_DOWN_TOKENS: u32 = 8;

/// Neurons shared by `LANES` invocations of `sparse_gate_up` and `expert_gate_up`. A workgroup
/// takes `SPARSE_NEURONS * WORKGROUP_SIZE / LANES` neurons.
pub const SPARSE_NEURONS: u32 = 2;

/// Words between the grids of consecutive neuron blocks, as written by `slot_list`.
pub const SLOT_GRID: u32 = 4;

/// Table entry of `slot_list` for a slot without a neuron.
pub const NO_NEURON: u32 = u32::MAX;

/// Tokens per workgroup of `attention_prompt`.
pub const ATTENTION_QUERIES: u32 = 32;

/// Output elements of a head per workgroup of `attention_prompt`.
pub const ATTENTION_OUT: u32 = 256;

/// Keys per tile of `attention_decode`. A split is a whole number of tiles.
pub const ATTENTION_TILE: u32 = 32;

/// Largest number of query heads per workgroup of `attention_decode`.
pub const ATTENTION_HEADS: u32 = 8;
/// Largest number of units of four elements in the query heads of a workgroup of
/// `attention_decode`.
pub const ATTENTION_UNITS: u32 = 256;

/// Largest number of splits that `attention_merge` combines.
pub const ATTENTION_SPLITS: u32 = 256;

/// Rows of a state that each lane of `delta_net` and `mamba2_scan` holds.
pub const SCAN_ROWS: u32 = 16;
/// Largest number of lanes per workgroup of `delta_net` and `mamba2_scan`.
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
