//! The budgets that a plan compares.

/// Memory sizes of graphics cards, in GiB.
const CARDS: [u64; 12] = [2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 80];

/// Budgets to compare: 0, sizes of cards, `most` and `budget`. A model that is small for the cards
/// gets eighths of `everything` in place of card sizes.
pub fn rungs(everything: u64, budget: u64, most: u64) -> Vec<u64> {
    let cards: Vec<u64> = CARDS.into_iter().map(|gib| gib << 30).filter(|bytes| *bytes < everything).collect();
    let eighths = (1..8).map(|n| everything / 8 * n).collect();
    let mut all: Vec<u64> = if cards.len() < 3 { eighths } else { cards };
    all.extend([0, most, budget]);
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_cover_budgets_from_zero_to_everything() {
        let large = rungs(20 << 30, 5 << 30, 23 << 30);
        assert_eq!(large[..5], [0, 2 << 30, 3 << 30, 4 << 30, 5 << 30]);
        assert!(large[large.len() - 1] == 23 << 30 && large.is_sorted());
        assert_eq!(rungs(800, 300, 1000), [0, 100, 200, 300, 400, 500, 600, 700, 1000]);
    }
}
