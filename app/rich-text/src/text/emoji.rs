//! Emoji inside text, which have a font of their own.

use std::ops::Range;

use egui::epaint::text::has_emoji_presentation;
use unicode_segmentation::UnicodeSegmentation;

/// Splits a text into parts, each with `true` if it is emoji. Joined sequences stay in one part.
pub fn parts(text: &str) -> Vec<(&str, bool)> {
    if text.is_ascii() {
        return vec![(text, false)];
    }
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (at, cluster) in text.grapheme_indices(true) {
        let (emoji, end) = (has_emoji_presentation(cluster), at + cluster.len());
        match parts.last_mut() {
            Some((range, last)) if *last == emoji => range.end = end,
            _ => parts.push((at..end, emoji)),
        }
    }
    parts.into_iter().map(|(range, emoji)| (&text[range], emoji)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_sequences_stay_together() {
        assert_eq!(parts("plain"), [("plain", false)]);
        assert_eq!(
            parts("naïve 👩‍🚀🇸🇪 ok ❤️, ✔ 1"),
            [("naïve ", false), ("👩‍🚀🇸🇪", true), (" ok ", false), ("❤️", true), (", ✔ 1", false)]
        );
    }
}
