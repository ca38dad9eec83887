//! Lines of texts with right-to-left letters (Unicode's bidirectional algorithm, UAX #9). egui
//! shapes each word correctly but puts all words from left to right. Such a text is therefore
//! wrapped into lines here, and each line is divided into pieces in visual order.

use std::ops::Range;

use unicode_bidi::{BidiClass, BidiInfo, Direction, bidi_class};
use unicode_segmentation::UnicodeSegmentation;

/// Pairs of mirrored characters (Unicode's `BidiMirroring.txt`).
const MIRRORED: &str = "()<>[]{}«»༺༻༼༽᚛᚜‹›⁅⁆⁽⁾₍₎∈∋∉∌∊∍∕⧵∟⯾∠⦣∡⦛∢⦠∤⫮∼∽≃⋍≅≌≒≓≔≕≤≥≦≧≨≩≪≫≮≯≰≱≲≳≴≵≶≷≸≹≺≻≼≽≾≿⊀⊁⊂⊃⊄⊅⊆⊇⊈⊉⊊⊋⊏⊐⊑⊒⊘⦸⊢⊣⊦⫞⊨⫤⊩⫣⊫⫥⊰⊱⊲⊳⊴⊵\
    ⊶⊷⊸⟜⋉⋊⋋⋌⋐⋑⋖⋗⋘⋙⋚⋛⋜⋝⋞⋟⋠⋡⋢⋣⋤⋥⋦⋧⋨⋩⋪⋫⋬⋭⋰⋱⋲⋺⋳⋻⋴⋼⋶⋽⋷⋾⌈⌉⌊⌋〈〉❨❩❪❫❬❭❮❯❰❱❲❳❴❵⟃⟄⟅⟆⟈⟉⟋⟍⟕⟖⟝⟞⟢⟣⟤⟥⟦⟧⟨⟩⟪⟫⟬⟭⟮⟯⦃⦄⦅⦆⦇⦈⦉⦊⦋⦌⦍⦐⦎⦏⦑⦒⦓⦔⦕⦖\
    ⦗⦘⦤⦥⦨⦩⦪⦫⦬⦭⦮⦯⧀⧁⧄⧅⧏⧐⧑⧒⧔⧕⧘⧙⧚⧛⧨⧩⧸⧹⧼⧽⨫⨬⨭⨮⨴⨵⨼⨽⩤⩥⩹⩺⩻⩼⩽⩾⩿⪀⪁⪂⪃⪄⪅⪆⪇⪈⪉⪊⪋⪌⪍⪎⪏⪐⪑⪒⪓⪔⪕⪖⪗⪘⪙⪚⪛⪜⪝⪞⪟⪠⪡⪢⪦⪧⪨⪩⪪⪫⪬⪭⪯⪰⪱⪲⪳⪴⪵⪶⪷⪸⪹⪺⪻⪼⪽⪾⪿⫀⫁⫂\
    ⫃⫄⫅⫆⫇⫈⫉⫊⫋⫌⫍⫎⫏⫐⫑⫒⫓⫔⫕⫖⫬⫭⫷⫸⫹⫺⸂⸃⸄⸅⸉⸊⸌⸍⸜⸝⸠⸡⸢⸣⸤⸥⸦⸧⸨⸩⹕⹖⹗⹘⹙⹚⹛⹜〈〉《》「」『』【】〔〕〖〗〘〙〚〛﹙﹚﹛﹜﹝﹞﹤﹥（）＜＞［］｛｝｟｠｢｣";

/// A piece of a line: characters that are adjacent both in logical and in visual order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePiece {
    /// Byte range in the text.
    pub range: Range<usize>,
    /// True if brackets are shown mirrored.
    pub mirrored: bool,
    /// True for a word whose first letter is on its right.
    pub to_the_left: bool,
}

impl LinePiece {
    /// A left-to-right piece.
    pub fn to_the_right(range: Range<usize>) -> Self {
        LinePiece { range, mirrored: false, to_the_left: false }
    }

    /// True if the first character is on the right: a right-to-left word, or a sign between such
    /// words.
    pub fn begins_right(&self) -> bool {
        self.mirrored || self.to_the_left
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BidiLine {
    /// Pieces in visual order, from left to right.
    pub pieces: Vec<LinePiece>,
    /// Byte range in the text, without the line end.
    pub range: Range<usize>,
    /// True if the line begins on the right. An empty line has the direction of the line before it,
    /// where writing continues.
    pub to_the_left: bool,
    /// Byte of the line end before it; `None` for a wrapped line.
    pub after: Option<usize>,
}

/// True for characters that can change the order of a text: right-to-left letters, Arabic digits
/// and controls.
fn orders(c: char) -> bool {
    use BidiClass::{AL, AN, R, RLE, RLI, RLO};
    matches!(bidi_class(c), R | AL | AN | RLE | RLI | RLO)
}

/// True if a text begins on the right because its first letter is right-to-left.
pub fn begins_right(text: &str) -> bool {
    !text.is_ascii() && unicode_bidi::get_base_direction(text) == Direction::Rtl
}

/// True for right-to-left letters.
pub fn runs_left(c: char) -> bool {
    matches!(bidi_class(c), BidiClass::R | BidiClass::AL)
}

/// True for characters of a right-to-left word: letters, marks and joiners.
pub fn joins_left(c: char) -> bool {
    runs_left(c) || matches!(bidi_class(c), BidiClass::NSM | BidiClass::BN)
}

/// The mirrored bracket, or the character itself.
pub fn mirrored(c: char) -> char {
    let Some(at) = MIRRORED.chars().position(|other| other == c) else { return c };
    MIRRORED.chars().nth(at ^ 1).unwrap_or(c)
}

/// Wraps `text` into lines of at most `width`. `measure` returns the width of a range. Returns
/// `None` for purely left-to-right text, which egui wraps itself.
pub fn lines(text: &str, mut measure: impl FnMut(Range<usize>) -> f32, width: f32) -> Option<Vec<BidiLine>> {
    if text.is_ascii() || !text.chars().any(orders) {
        return None;
    }
    let info = BidiInfo::new(text, None);
    if !info.has_rtl() {
        return None;
    }
    let mut lines = Vec::new();
    for paragraph in &info.paragraphs {
        let whole = paragraph.range.clone();
        let end = whole.start + text[whole.clone()].trim_end_matches(['\n', '\r']).len();
        let before = text[..whole.start].char_indices().next_back().map(|(at, _)| at);
        for (nth, line) in wrap(text, whole.start..end, &mut measure, width).into_iter().enumerate() {
            let pieces = if line.is_empty() {
                Vec::new()
            } else {
                let (levels, runs) = info.visual_runs(paragraph, line.clone());
                let pieces = |run: Range<usize>| match levels[run.start].is_rtl() {
                    true => pieces_to_the_left(text, run),
                    false => vec![LinePiece::to_the_right(run)],
                };
                runs.into_iter().flat_map(pieces).collect()
            };
            let to_the_left = if line.is_empty() { goes_on(&lines) } else { paragraph.level.is_rtl() };
            lines.push(BidiLine { pieces, range: line, to_the_left, after: before.filter(|_| nth == 0) });
        }
    }
    if text.ends_with('\n') {
        let (end, to_the_left) = (text.len(), goes_on(&lines));
        lines.push(BidiLine { pieces: Vec::new(), range: end..end, to_the_left, after: Some(end - 1) });
    }
    Some(lines)
}

/// The direction of a line without letters that follows `lines`.
fn goes_on(lines: &[BidiLine]) -> bool {
    lines.last().is_some_and(|line| line.to_the_left)
}

/// Wraps a paragraph between words, or inside a word that is wider than a line.
fn wrap(
    text: &str,
    range: Range<usize>,
    measure: &mut impl FnMut(Range<usize>) -> f32,
    width: f32,
) -> Vec<Range<usize>> {
    let (mut lines, mut start, mut used) = (Vec::new(), range.start, 0.0);
    let mut at = range.start;
    for word in text[range.clone()].split_inclusive(' ') {
        let (mut from, to) = (at, at + word.len());
        at = to;
        let letters = from + word.trim_end().len();
        let mut wide = measure(from..letters);
        if used + wide > width && from > start {
            lines.push(start..from);
            (start, used) = (from, 0.0);
        }
        while wide > width {
            let count = text[from..letters].chars().count();
            let fitting = (count as f32 * width / wide).floor().max(1.0) as usize;
            let Some((offset, _)) = text[from..letters].char_indices().nth(fitting) else { break };
            lines.push(from..from + offset);
            from += offset;
            start = from;
            wide = measure(from..letters);
        }
        used += measure(from..to);
    }
    lines.push(start..range.end);
    lines
}

/// The pieces of a right-to-left run, from left to right. Words keep the order of their letters,
/// because egui begins them on the right.
fn pieces_to_the_left(text: &str, run: Range<usize>) -> Vec<LinePiece> {
    let mut pieces: Vec<LinePiece> = Vec::new();
    // Joined emoji stay joined.
    for (at, cluster) in text[run.clone()].grapheme_indices(true) {
        let (from, to) = (run.start + at, run.start + at + cluster.len());
        let joins = cluster.chars().next().is_some_and(joins_left);
        match pieces.last_mut() {
            Some(piece) if piece.to_the_left && joins => piece.range.end = to,
            _ => pieces.push(LinePiece { range: from..to, mirrored: !joins, to_the_left: joins }),
        }
    }
    pieces.reverse();
    pieces
}

/// The words of a range in logical order, for measuring. Joined letters stay together in either
/// direction.
pub fn words(text: &str, range: Range<usize>) -> Vec<LinePiece> {
    let mut words: Vec<LinePiece> = Vec::new();
    for (at, c) in text[range.clone()].char_indices() {
        let (from, to) = (range.start + at, range.start + at + c.len_utf8());
        let to_the_left = runs_left(c) || (joins_left(c) && words.last().is_some_and(|word| word.to_the_left));
        match words.last_mut() {
            Some(word) if word.to_the_left == to_the_left => word.range.end = to,
            _ => words.push(LinePiece { range: from..to, mirrored: false, to_the_left }),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines as shown, if all letters have the same width.
    fn seen(text: &str, width: f32) -> Option<Vec<(String, bool)>> {
        let measure = |range: Range<usize>| text[range].chars().count() as f32;
        let piece = |piece: &LinePiece| {
            let words = text[piece.range.clone()].chars().map(|c| if piece.mirrored { mirrored(c) } else { c });
            if piece.to_the_left { words.rev().collect() } else { words.collect::<String>() }
        };
        let lines = lines(text, measure, width)?;
        Some(lines.iter().map(|line| (line.pieces.iter().map(piece).collect(), line.to_the_left)).collect())
    }

    #[test]
    fn lines_are_divided_and_ordered_as_they_are_read() {
        assert_eq!(seen("plain text, naïve", 9.0), None);
        let line = |text: &str, left| (text.to_owned(), left);
        // The first word is on the right.
        assert_eq!(seen("אבג דהו.", 99.0).unwrap(), [line(".והד גבא", true)]);
        assert_eq!(seen("אבג 123 דהו", 99.0).unwrap(), [line("והד 123 גבא", true)]);
        assert_eq!(seen("he said אבג דהו, twice", 99.0).unwrap(), [line("he said והד גבא, twice", false)]);
        assert_eq!(seen("אבג דהו זחט", 8.0).unwrap(), [line(" והד גבא", true), line("טחז", true)]);
        assert_eq!(seen("אב\n\nab", 9.0).unwrap(), [line("בא", true), line("", true), line("ab", false)]);
        assert_eq!(seen("אב\n", 9.0).unwrap(), [line("בא", true), line("", true)], "a line end begins a line");
        assert_eq!(seen("אב 👩‍🚀 גד", 99.0).unwrap(), [line("דג 👩‍🚀 בא", true)], "joined emoji are one sign");
        assert_eq!(seen("אב (גד) הו", 99.0).unwrap(), [line("וה (דג) בא", true)], "brackets are mirrored");
        assert_eq!(seen("אב「גד」", 99.0).unwrap(), [line("「דג」בא", true)], "all brackets are");
    }

    #[test]
    fn numbers_are_read_to_the_right() {
        let line = |text: &str, left| (text.to_owned(), left);
        assert_eq!(seen("אב ٢٥ גד", 99.0).unwrap(), [line("דג ٢٥ בא", true)]);
        assert_eq!(seen("אב ۱۴۰۴ גד", 99.0).unwrap(), [line("דג ۱۴۰۴ בא", true)]);
        assert_eq!(seen("ab אב ٢٥", 99.0).unwrap(), [line("ab ٢٥ בא", false)]);
        assert_eq!(seen("٢٥ and ۱۴", 99.0), None, "the painter's order");
        assert_eq!(seen("٢٥ - ٣٠", 99.0).unwrap(), [line("٣٠ - ٢٥", false)], "a range of Arabic numbers");
    }

    /// Indices of the characters of a line from left to right.
    fn order(text: &str) -> (Vec<usize>, bool) {
        let number = |at: usize| text[..at].chars().count();
        let Some(lines) = lines(text, |_| 0.0, f32::INFINITY) else {
            return ((0..text.chars().count()).collect(), false);
        };
        let of_piece = |piece: &LinePiece| {
            let numbers = number(piece.range.start)..number(piece.range.end);
            if piece.begins_right() { numbers.rev().collect() } else { numbers.collect::<Vec<_>>() }
        };
        (lines[0].pieces.iter().flat_map(of_piece).collect(), lines[0].to_the_left)
    }

    /// Unicode's own test cases. Characters that the algorithm removes have no position.
    #[test]
    fn the_order_is_that_of_unicodes_conformance_tests() {
        let cases = include_str!("../../tests/bidi/character-test.txt");
        let (mut count, mut wrong) = (0, Vec::new());
        for case in cases.lines().filter(|line| !line.starts_with('#')) {
            let [codes, level, levels, expected] = case.split(';').collect::<Vec<_>>()[..] else { panic!("{case}") };
            let letter = |code: &str| u32::from_str_radix(code, 16).ok().and_then(char::from_u32).unwrap();
            let text: String = codes.split(' ').map(letter).collect();
            let removed: Vec<bool> = levels.split(' ').map(|level| level == "x").collect();
            let expected: Vec<usize> = expected.split_whitespace().map(|at| at.parse().unwrap()).collect();
            let (mut found, to_the_left) = order(&text);
            found.retain(|at| !removed[*at]);
            count += 1;
            if found != expected || (level == "1") != to_the_left && !expected.is_empty() {
                wrong.push(format!("{case}: {found:?}"));
            }
        }
        assert!(count > 700 && wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn words_wider_than_a_line_are_divided_within() {
        let found = seen("אבגדהוזחט ab", 4.0).unwrap();
        assert_eq!(found.iter().map(|(line, _)| line.chars().count()).collect::<Vec<_>>(), [4, 4, 4]);
        assert!(seen("א", 0.5).is_some_and(|lines| lines.len() == 1));
    }

    #[test]
    fn lines_know_the_line_ends_they_begin_after() {
        let text = "אב גד\nהו";
        let found = lines(text, |range| text[range].chars().count() as f32, 3.0).unwrap();
        assert_eq!(found.iter().map(|line| line.after).collect::<Vec<_>>(), [None, None, Some(9)]);
        assert_eq!(found.iter().map(|line| line.range.clone()).collect::<Vec<_>>(), [0..5, 5..9, 10..14]);
        // A paragraph separator is a character of three bytes.
        let found = lines("אב\u{2029}גד", |_| 0.0, 3.0).unwrap();
        assert_eq!((found[1].after, found[1].range.clone()), (Some(4), 7..11));
    }
}
