//! Sizes fixed in the kernels' texts that whoever dispatches them has to know.

/// Values a workgroup of `top_k` takes: `ceil(len / TOP_K_SHARE)` workgroups, each writing `k`.
pub const TOP_K_SHARE: u32 = 1024;

/// Most values `top_k` is asked for; far fewer than a share, so that every round shrinks the list.
pub const TOP_K_MOST: u32 = 64;

/// Most experts `route` chooses from.
pub const ROUTE_EXPERTS: u32 = 512;

/// Most experts `route` chooses for a token.
pub const ROUTE_USED: u32 = 32;

/// Neurons that `LANES` invocations of `sparse_gate_up` share: a workgroup takes
/// `SPARSE_NEURONS * WORKGROUP_SIZE / LANES`.
pub const SPARSE_NEURONS: u32 = 2;

#[cfg(test)]
mod tests {
    use crate::{Kernel, Tier, WeightType};

    fn assert_size(kernel: &str, name: &str, value: u32) {
        let text = Kernel::named(kernel).unwrap().source(Tier::PORTABLE, Some(WeightType::F32)).unwrap();
        assert!(text.contains(&format!("const {name}: u32 = {value}u;")), "{kernel} {name}");
    }

    #[test]
    fn kernels_have_these_sizes() {
        assert_size("top_k", "SHARE", super::TOP_K_SHARE);
        assert_size("route", "MOST_EXPERTS", super::ROUTE_EXPERTS);
        assert_size("route", "MOST_USED", super::ROUTE_USED);
        assert_size("sparse_gate_up", "NEURONS", super::SPARSE_NEURONS);
    }
}
