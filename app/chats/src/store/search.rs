//! Full-text search in all chats.

use super::{
    ChatId, MessageId, Store,
    error::{OperationContext, StoreError},
};

/// Largest number of results of a search.
const MOST: usize = 200;
/// Characters of context on either side of the match.
const AROUND: usize = 40;

/// A message or title that contains every word of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchHit {
    /// Row id of the chat.
    pub chat: ChatId,
    /// Title of the chat.
    pub title: String,
    /// The message; `None` if the title matches.
    pub message: Option<MessageId>,
    /// One line of text around the first match.
    pub excerpt: String,
    /// Byte range of the match in the excerpt.
    pub found: std::ops::Range<usize>,
}

impl Store {
    /// Finds titles and messages that contain every word of `query`, ignoring case. Parts of words
    /// match, too. Titles come first, then messages, latest first.
    pub fn search(&self, query: &str) -> Result<Vec<SearchHit>, StoreError> {
        const OPERATION: &str = "searching";
        let words: Vec<&str> = query.split_whitespace().collect();
        let Some(first) = words.first() else { return Ok(Vec::new()) };
        let mut hits = Vec::new();
        for chat in self.chats()? {
            if words.iter().all(|word| find(&chat.title, word).is_some()) {
                let (excerpt, found) = excerpt(&chat.title, first);
                hits.push(SearchHit { chat: chat.id, title: chat.title, message: None, excerpt, found });
            }
        }
        // The index holds words of three characters and more. Shorter words are searched in its
        // results.
        let long: Vec<String> = words
            .iter()
            .filter(|word| word.chars().count() >= 3)
            .map(|word| format!("\"{}\"", word.replace('"', "\"\"")))
            .collect();
        let (filter, parameter) = match long.is_empty() {
            true => ("?1 = '' AND", String::new()),
            false => ("message_text MATCH ?1 AND", long.join(" ")),
        };
        let sql = format!(
            "SELECT message.id, chat.id, chat.title, message.content
            FROM message_text JOIN message ON message.id = message_text.rowid JOIN chat ON chat.id = message.chat
            WHERE {filter} chat.deleted IS NULL ORDER BY message.created DESC, message.id DESC"
        );
        let mut query = self.db.prepare_cached(&sql).during(OPERATION)?;
        let mut rows = query.query([parameter]).during(OPERATION)?;
        while let Some(row) = rows.next().during(OPERATION)? {
            let content = row.get_ref(3).and_then(|value| Ok(value.as_str()?)).during(OPERATION)?;
            if !words.iter().all(|word| find(content, word).is_some()) {
                continue;
            }
            let (excerpt, found) = excerpt(content, first);
            hits.push(SearchHit {
                chat: ChatId(row.get(1).during(OPERATION)?),
                title: row.get(2).during(OPERATION)?,
                message: Some(MessageId(row.get(0).during(OPERATION)?)),
                excerpt,
                found,
            });
            if hits.len() >= MOST {
                break;
            }
        }
        Ok(hits)
    }
}

/// Byte range of the first case-insensitive occurrence of `word` in `text`.
fn find(text: &str, word: &str) -> Option<std::ops::Range<usize>> {
    let lower = |c: char| c.to_lowercase();
    let wanted: Vec<char> = word.chars().flat_map(lower).collect();
    text.char_indices().find_map(|(start, _)| {
        let mut left = wanted.iter();
        let mut rest = text[start..].char_indices();
        while left.len() > 0 {
            let (_, c) = rest.next()?;
            for c in lower(c) {
                if left.next() != Some(&c) {
                    return None;
                }
            }
        }
        Some(start..start + rest.next().map_or(text.len() - start, |(end, _)| end))
    })
}

/// One line of text around `word`, and the byte range of `word` in it.
fn excerpt(text: &str, word: &str) -> (String, std::ops::Range<usize>) {
    let at = find(text, word).unwrap_or(0..0);
    let start = text[..at.start].char_indices().rev().nth(AROUND - 1).map_or(0, |(start, _)| start);
    let end = text[at.end..].char_indices().nth(AROUND).map_or(text.len(), |(end, _)| at.end + end);
    let line = |part: &str| part.replace(['\n', '\r', '\t'], " ");
    let mut excerpt = if start > 0 { "…".to_owned() } else { String::new() };
    excerpt.push_str(&line(&text[start..at.start]));
    let found = excerpt.len();
    excerpt.push_str(&line(&text[at.clone()]));
    let found = found..excerpt.len();
    excerpt.push_str(&line(&text[at.end..end]));
    if end < text.len() {
        excerpt.push('…');
    }
    (excerpt, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NewMessage;

    #[test]
    fn search_matches_every_word_in_any_script_and_length() {
        let (mut store, chat) = Store::with_chat();
        store.rename_chat(chat, "Notes on \"llamas\"").unwrap();
        let texts = [
            "The Llama\nis a woolly animal of the Andes, and it spits at people who come too near to it.",
            "大規模言語モデルは面白い",
            "İstanbul is large; 100 % of it",
            "it's a <b>test</b> -- NOT OR AND NEAR(x) * ^ \"quoted\"",
        ];
        let ids = texts.map(|text| store.add_message(chat, None, &NewMessage::user(text)).unwrap());
        let found =
            |query: &str| store.search(query).unwrap().into_iter().filter_map(|hit| hit.message).collect::<Vec<_>>();
        assert_eq!(found("woolly LLAMA"), [ids[0]]);
        assert_eq!(found("言語"), [ids[1]]);
        assert_eq!(found("言語モデル"), [ids[1]]);
        assert_eq!(found("istanbul").len(), 0, "a dotted capital is another letter");
        assert_eq!(found("100 %"), [ids[2]]);
        assert_eq!(found("near(x) * ^"), [ids[3]]);
        assert_eq!(found("\"quoted\""), [ids[3]]);
        assert_eq!(found("is"), [ids[2], ids[0]]);
        assert!(found("llama spits zebra").is_empty() && found("   ").is_empty());

        let hits = store.search("llama").unwrap();
        assert_eq!((hits[0].message, &hits[0].excerpt[hits[0].found.clone()]), (None, "llama"));
        let hit = &store.search("near to").unwrap()[0];
        assert_eq!(&hit.excerpt[hit.found.clone()], "near");
        assert!(hit.excerpt.starts_with('…') && hit.excerpt.ends_with("near to it."), "{}", hit.excerpt);
    }
}
