//! The passages of long files that fit a question best, ranked by meaning or by words.

use super::Measure;
use crate::{
    attachment::prompt::with_lines,
    chat::meaning::QuestionMeaning,
    store::{AttachmentId, FoundPassage, PassageRanking, Store, StoreError},
};

/// Largest number of passages in one message.
const MOST_PASSAGES: usize = 16;

/// Passages in the order of their ranks.
#[derive(Debug, Default)]
pub struct RankedPassages {
    pub found: Vec<FoundPassage>,
    pub ranking: PassageRanking,
}

impl RankedPassages {
    /// The passages of `files` that fit `question` best and fit into half of `room` tokens. The
    /// first passage may use all of `room`. `None` while vectors are being computed.
    pub fn that_fit(
        store: &Store,
        files: &[AttachmentId],
        question: &str,
        room: usize,
        measure: &Measure<'_>,
    ) -> Result<Option<Self>, StoreError> {
        if files.is_empty() {
            return Ok(Some(RankedPassages::default()));
        }
        let Some(mut ranked) = Self::of(store, files, question, measure)? else { return Ok(None) };
        let (mut left, mut first) = (room / 2, true);
        ranked.found.retain(|found| {
            let tokens = with_lines((measure.count)(&found.passage.text));
            let fits = tokens <= left || (first && tokens <= room);
            if fits {
                (left, first) = (left.saturating_sub(tokens), false);
            }
            fits
        });
        Ok(Some(ranked))
    }

    /// Ranks the passages of `files` by meaning, or else by words. `None` while vectors are being
    /// computed.
    fn of(
        store: &Store,
        files: &[AttachmentId],
        question: &str,
        measure: &Measure<'_>,
    ) -> Result<Option<Self>, StoreError> {
        let known = measure.meaning.map(|meaning| meaning.question(store, files, question, measure.may_wait));
        let ranking = match known {
            None => PassageRanking::default(),
            Some(QuestionMeaning::Waits) => return Ok(None),
            Some(QuestionMeaning::Words(ranking)) => ranking,
            Some(QuestionMeaning::Known { key, ranking, vector }) => {
                match store.find_passages_by_meaning(files, &key, &vector, MOST_PASSAGES)? {
                    Some(found) => return Ok(Some(RankedPassages { found, ranking })),
                    None => PassageRanking { model: None, failure: Some("their vectors are damaged".to_owned()) },
                }
            }
        };
        Ok(Some(RankedPassages { found: store.find_passages(files, question, MOST_PASSAGES)?, ranking }))
    }
}
