//! How unequally neurons fire: "26 % of the neurons make 80 % of the firings".

/// The fewest neurons that make at least `fraction` (0 to 1) of all firings. 0 if no neuron fires.
pub fn neurons_for(counts: &[u32], fraction: f64) -> usize {
    let sorted = descending(counts);
    let wanted = fraction * total(counts);
    let mut sum = 0.0;
    let reached = sorted.iter().position(|count| {
        sum += f64::from(*count);
        sum >= wanted
    });
    match reached {
        Some(at) if wanted > 0.0 => at + 1,
        _ => 0,
    }
}

/// The Lorenz curve at no more than `points` evenly spaced points: the fraction of the neurons,
/// most frequent first, and the fraction of all firings they make. It runs from (0, 0) to (1, 1),
/// and is empty if no neuron fires.
pub fn lorenz(counts: &[u32], points: usize) -> Vec<(f64, f64)> {
    let (sorted, total) = (descending(counts), total(counts));
    if total == 0.0 {
        return Vec::new();
    }
    let (n, steps) = (sorted.len(), points.saturating_sub(1).clamp(1, sorted.len()));
    let (mut sum, mut at) = (0.0, 0);
    let mut curve = vec![(0.0, 0.0)];
    for step in 1..=steps {
        let end = n * step / steps;
        sum += sorted[at..end].iter().map(|count| f64::from(*count)).sum::<f64>();
        at = end;
        curve.push((end as f64 / n as f64, sum / total));
    }
    curve
}

fn descending(counts: &[u32]) -> Vec<u32> {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted
}

fn total(counts: &[u32]) -> f64 {
    counts.iter().map(|count| f64::from(*count)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_curves_begin_with_the_most_frequent_neurons() {
        let counts = [1, 0, 60, 10, 29, 0, 0, 0];
        assert_eq!(
            [0.5, 0.6, 0.61, 0.89, 0.99, 1.0].map(|fraction| neurons_for(&counts, fraction)),
            [1, 1, 2, 2, 3, 4]
        );
        assert_eq!(lorenz(&counts, 5), [(0.0, 0.0), (0.25, 0.89), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0)]);
        assert_eq!(lorenz(&counts, 100).len(), 9);
        assert_eq!(lorenz(&[5], 1), [(0.0, 0.0), (1.0, 1.0)]);
        for nothing in [&[][..], &[0, 0]] {
            assert_eq!((neurons_for(nothing, 0.8), lorenz(nothing, 9).len()), (0, 0));
        }
    }
}
