//! Belady's bound: no policy can have more hits in the same number of slots (Belady 1966). A policy
//! need not admit a missing expert, because the CPU can compute it.

use super::Routes;

/// The next use of an expert that no later token chooses.
const NEVER: usize = usize::MAX;

/// Hits and admitted experts of one layer, token by token.
pub(super) struct BoundedHits {
    /// Chosen experts that were in slots.
    pub hits: Vec<usize>,
    /// Missing experts that were admitted.
    pub admitted: Vec<usize>,
}

/// Replays layer `at` of `routes` through `slots` slots that keep the experts whose next use is
/// nearest.
pub(super) fn bounded_hits(routes: &Routes, at: usize, slots: usize) -> BoundedHits {
    let tokens = routes.tokens();
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); routes.layers[at].experts];
    // Descending, so that the next use is the last element.
    for token in (0..tokens).rev() {
        routes.chosen(at, token).iter().for_each(|expert| uses[usize::from(*expert)].push(token));
    }
    let next_use = |uses: &[Vec<usize>], expert: u16| uses[usize::from(expert)].last().copied().unwrap_or(NEVER);
    let mut held: Vec<u16> = Vec::new();
    let mut result = BoundedHits { hits: Vec::with_capacity(tokens), admitted: Vec::with_capacity(tokens) };
    for token in 0..tokens {
        let chosen = routes.chosen(at, token);
        let missing: Vec<u16> = chosen.iter().filter(|expert| !held.contains(expert)).copied().collect();
        result.hits.push(chosen.len() - missing.len());
        for expert in chosen {
            uses[usize::from(*expert)].pop();
        }
        held.extend(&missing);
        // Of equal uses the expert that is already there stays, because sorting is stable.
        held.sort_by_key(|expert| next_use(&uses, *expert));
        held.truncate(slots);
        result.admitted.push(missing.iter().filter(|expert| held.contains(expert)).count());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::RouteLayer;
    use super::*;

    fn routes(tokens: &[[usize; 2]]) -> Routes {
        let layer = RouteLayer { layer: 0, experts: 6, used: 2, bytes: 1 };
        let mut routes = Routes::new("some", vec![layer], 0).unwrap();
        tokens.iter().for_each(|chosen| routes.push(0, chosen));
        routes
    }

    #[test]
    fn experts_with_the_nearest_next_use_stay() {
        let routes = routes(&[[0, 1], [2, 3], [0, 2], [1, 0], [4, 5], [0, 1]]);
        let of = |slots| bounded_hits(&routes, 0, slots);
        // With one slot, expert 0 stays for tokens 2, 3 and 5.
        assert_eq!((of(1).hits, of(1).admitted), (vec![0, 0, 1, 1, 0, 1], vec![1, 0, 0, 0, 0, 0]));
        assert_eq!(of(2).hits.iter().sum::<usize>(), 5);
        assert_eq!(of(6).hits, [0, 0, 2, 2, 0, 2]);
        assert_eq!(of(0).hits, [0; 6]);
    }
}
