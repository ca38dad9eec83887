//! Counts of drafted and accepted tokens.

use super::DraftSource;

/// Drafted and accepted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Number of drafted tokens.
    pub drafted: usize,
    /// Number of drafted tokens that the sampler also chose.
    pub accepted: usize,
}

impl std::ops::AddAssign for DraftCounts {
    fn add_assign(&mut self, other: DraftCounts) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

/// Drafted and accepted tokens of each source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftsBySource {
    counts: [DraftCounts; DraftSource::ALL.len()],
}

impl DraftsBySource {
    /// Counts of `source`.
    pub fn of(&self, source: DraftSource) -> DraftCounts {
        self.counts[source as usize]
    }

    /// Adds `counts` to those of `source`.
    pub fn add(&mut self, source: DraftSource, counts: DraftCounts) {
        self.counts[source as usize] += counts;
    }

    /// Sum over all sources.
    pub fn total(&self) -> DraftCounts {
        let mut total = DraftCounts::default();
        self.counts.into_iter().for_each(|counts| total += counts);
        total
    }
}

impl std::ops::AddAssign for DraftsBySource {
    fn add_assign(&mut self, other: DraftsBySource) {
        DraftSource::ALL.into_iter().for_each(|source| self.add(source, other.of(source)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_sources_are_summed_apart() {
        let mut drafts = DraftsBySource::default();
        drafts.add(DraftSource::Lookup, DraftCounts { drafted: 5, accepted: 2 });
        drafts.add(DraftSource::Head, DraftCounts { drafted: 3, accepted: 3 });
        let mut twice = drafts;
        twice += drafts;
        assert_eq!(twice.of(DraftSource::Lookup), DraftCounts { drafted: 10, accepted: 4 });
        assert_eq!(twice.of(DraftSource::Model), DraftCounts::default());
        assert_eq!(twice.total(), DraftCounts { drafted: 16, accepted: 10 });
    }
}
