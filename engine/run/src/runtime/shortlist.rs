//! The most likely next tokens.

/// Most tokens of a [`Shortlist`].
pub const MAX_SHORTLIST: usize = 64;

/// The largest logits of one token with their token ids, in descending order. Among equals the
/// smaller id is first; NaN is last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shortlist<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Logits of the ids.
    pub logits: &'a [f32],
}

/// Writes the largest values of `all` into `values` and their indices into `ids`. Both have the
/// same length, at most the length of `all`.
pub(super) fn largest(all: &[f32], ids: &mut [u32], values: &mut [f32]) {
    let room = ids.len();
    let mut held = 0;
    let before = |a: f32, b: f32| a > b || (b.is_nan() && !a.is_nan());
    for (id, value) in (0..).zip(all) {
        if held == room && !values.last().is_some_and(|least| before(*value, *least)) {
            continue;
        }
        let at = values[..held].partition_point(|other| !before(*value, *other));
        held = (held + 1).min(room);
        values[at..held].rotate_right(1);
        ids[at..held].rotate_right(1);
        (values[at], ids[at]) = (*value, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_returns_the_top_k_in_order() {
        let all: Vec<f32> = (0..500_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 28) as f32 - 8.0).collect();
        let mut all = all;
        (all[7], all[300]) = (f32::NAN, f32::NEG_INFINITY);
        let key = |id: u32| if all[id as usize].is_nan() { None } else { Some(all[id as usize]) };
        let mut order: Vec<u32> = (0..500).collect();
        order.sort_by(|a, b| key(*b).partial_cmp(&key(*a)).unwrap());
        for k in [0, 1, 2, 63, 64, 500] {
            let (mut ids, mut values) = (vec![0; k], vec![0.0; k]);
            largest(&all, &mut ids, &mut values);
            assert_eq!(ids, order[..k], "{k}");
            assert!(ids.iter().zip(&values).all(|(id, value)| all[*id as usize].to_bits() == value.to_bits()));
        }
    }
}
