//! Softmax and selection over short rows (a router's experts).

/// `x = e^x / sum(e^x)`, in place.
pub fn softmax_in_place(x: &mut [f32]) {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - top).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

/// Indices of the `out.len()` largest elements of `x`, largest first. Among equals the lower index
/// comes first.
pub fn top_k(x: &[f32], out: &mut [usize]) {
    for k in 0..out.len() {
        let (taken, rest) = out.split_at_mut(k);
        let mut best: Option<usize> = None;
        for i in 0..x.len() {
            if !taken.contains(&i) && best.is_none_or(|b| x[i].total_cmp(&x[b]).is_gt()) {
                best = Some(i);
            }
        }
        rest[0] = best.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_sums_to_one_and_survives_large_inputs() {
        let mut x = [1000.0, 1001.0, 999.0];
        softmax_in_place(&mut x);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((x[1] / x[0] - std::f32::consts::E).abs() < 1e-5);
    }

    #[test]
    fn top_k_is_sorted_and_stable() {
        let mut out = [0; 3];
        top_k(&[0.1, 0.5, 0.5, 0.2, 0.9], &mut out);
        assert_eq!(out, [4, 1, 2]);
        top_k(&[f32::NAN, 1.0, 2.0], &mut out);
        assert_eq!(out, [0, 2, 1]);
    }
}
