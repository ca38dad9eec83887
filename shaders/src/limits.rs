//! Sizes fixed in the kernels' texts that whoever dispatches them has to know.

/// Values a workgroup of `top_k` takes: `ceil(len / TOP_K_SHARE)` workgroups, each writing `k`.
pub const TOP_K_SHARE: u32 = 1024;

/// Most values `top_k` is asked for; far fewer than a share, so that every round shrinks the list.
pub const TOP_K_MOST: u32 = 64;

/// Most experts `route` chooses from.
pub const ROUTE_EXPERTS: u32 = 512;

/// Most experts `route` chooses for a token.
pub const ROUTE_USED: u32 = 32;

#[cfg(test)]
mod tests {
    use crate::{Kernel, Tier};

    fn assert_size(kernel: &str, name: &str, value: u32) {
        let text = Kernel::named(kernel).unwrap().source(Tier::PORTABLE, None).unwrap();
        assert!(text.contains(&format!("const {name}: u32 = {value}u;")), "{kernel} {name}");
    }

    #[test]
    fn kernels_have_these_sizes() {
        assert_size("top_k", "SHARE", super::TOP_K_SHARE);
        assert_size("route", "MOST_EXPERTS", super::ROUTE_EXPERTS);
        assert_size("route", "MOST_USED", super::ROUTE_USED);
    }
}
