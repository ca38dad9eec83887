//! Scripts by their characters.

use super::bidi::runs_left;

/// True for letters and signs of Chinese, Japanese and Korean, which are as wide as high.
pub fn is_cjk(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{11ff}'
        | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{a4cf}'
        | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe10}'..='\u{fe1f}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff01}'..='\u{ffef}'
        | '\u{16fe0}'..='\u{18d08}'
        | '\u{1aff0}'..='\u{1b2ff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// True for letters that adjoin other words without a space: letters of scripts without spaces
/// between words, and right-to-left letters, whose short words are joined to the next word.
pub fn joins_words(c: char) -> bool {
    // Thai, Lao, Tibetan, Burmese and Khmer.
    is_cjk(c) || runs_left(c) || matches!(c, '\u{e00}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_known_by_their_letters() {
        assert!("漢字かなカナ한글「」，。：".chars().all(is_cjk));
        assert!(!"aéя “”…1 עع".chars().any(is_cjk));
        assert!("漢ไคမعש".chars().all(joins_words) && !"aéя “”1:".chars().any(joins_words));
    }
}
