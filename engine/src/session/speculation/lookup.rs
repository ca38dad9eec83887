//! Prompt lookup: drafts from an earlier occurrence of the latest tokens.

use std::collections::HashMap;

use super::MOST_DRAFTS;
use crate::session::picture_ids::ConversationPictures;

/// Number of consecutive tokens that must have occurred before.
const GRAM: usize = 3;

/// Finds the tokens that followed an earlier occurrence of the latest tokens.
#[derive(Debug, Default)]
pub(in crate::session) struct PromptLookup {
    /// The prompt and all tokens since.
    history: Vec<u32>,
    /// The position after each gram's latest occurrence, without the gram that ends the history.
    behind: HashMap<[u32; GRAM], usize>,
}

impl PromptLookup {
    /// Creates a lookup for a generation from `prompt`.
    pub fn new(prompt: &[u32]) -> Self {
        let mut lookup = PromptLookup::default();
        prompt.iter().for_each(|id| lookup.push(*id));
        lookup
    }

    /// Appends `id` to the history.
    pub fn push(&mut self, id: u32) {
        if let Some(gram) = self.history.last_chunk() {
            self.behind.insert(*gram, self.history.len());
        }
        self.history.push(id);
    }

    /// Appends the tokens that followed the latest tokens before to `found`, at most as many as a
    /// pass drafts. Appends none if the latest tokens did not occur before.
    pub fn find(&self, found: &mut Vec<u32>) {
        let Some(gram) = self.history.last_chunk() else { return };
        let Some(from) = self.behind.get(gram).copied() else { return };
        for at in from..from + MOST_DRAFTS {
            // A repeat that overlaps its own beginning continues with itself.
            let id = match self.history.get(at) {
                Some(id) => *id,
                None => found[found.len() - (self.history.len() - from)],
            };
            // The model generates no pictures.
            if ConversationPictures::is_picture(id) {
                break;
            }
            found.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lookup: &PromptLookup, most: usize) -> Vec<u32> {
        let mut found = Vec::new();
        lookup.find(&mut found);
        found.truncate(most);
        found
    }

    #[test]
    fn drafts_follow_the_latest_occurrence_of_the_last_tokens() {
        let mut lookup = PromptLookup::new(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3]);
        assert_eq!(found(&lookup, 3), [5, 6, 7]);
        lookup.push(8);
        assert!(found(&lookup, 8).is_empty());
        (1..=3).for_each(|id| lookup.push(id));
        assert_eq!(found(&lookup, 3), [8, 1, 2]);
    }

    #[test]
    fn drafts_of_a_short_period_go_on_with_themselves() {
        assert_eq!(found(&PromptLookup::new(&[7, 7, 7, 7]), usize::MAX), [7; MOST_DRAFTS]);
        assert_eq!(found(&PromptLookup::new(&[1, 2, 1, 2, 1, 2]), 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn drafts_go_on_behind_tokens_that_are_there_already() {
        let mut drafts = vec![9];
        PromptLookup::new(&[1, 2, 3, 1, 2, 3]).find(&mut drafts);
        assert_eq!(drafts[..5], [9, 1, 2, 3, 1]);
    }

    #[test]
    fn short_histories_have_no_drafts() {
        assert!(found(&PromptLookup::new(&[]), 8).is_empty());
        assert!(found(&PromptLookup::new(&[1, 1]), 8).is_empty());
        assert!(found(&PromptLookup::new(&[1, 1, 1]), 8).is_empty());
    }
}
