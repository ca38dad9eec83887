//! Pieces of a file, each with its place in it: as long as a question about the file may need, and no longer.

/// A passage has about so many bytes; a file is cut between lines where it can be.
const LONG: usize = 800;

/// A piece of a file. All of them, one after the other, are the file's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// Where it is: `page 3`, `lines 12–40`.
    pub place: String,
    /// Its text, with the line ends it has in the file.
    pub text: String,
}

/// A part of a file, as a reader of it gives it: a page, or a paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePart {
    /// Number, from 1.
    pub number: usize,
    /// Text.
    pub text: String,
}

/// Cuts lines into passages whose places are numbers of lines.
pub(super) fn of_lines(text: &str) -> Vec<Passage> {
    let parts =
        text.split_inclusive('\n').enumerate().map(|(at, line)| SourcePart { number: at + 1, text: line.to_owned() });
    joined(parts, "line", "lines")
}

/// Cuts paragraphs into passages whose places are numbers of paragraphs.
pub(super) fn of_paragraphs(parts: impl IntoIterator<Item = SourcePart>) -> Vec<Passage> {
    joined(parts, "paragraph", "paragraphs")
}

/// Cuts pages into passages; none has text of two pages.
pub(super) fn of_pages(pages: impl IntoIterator<Item = SourcePart>) -> Vec<Passage> {
    let pages = pages.into_iter().flat_map(|page| {
        let place = format!("page {}", page.number);
        let lines =
            page.text.split_inclusive('\n').map(|line| SourcePart { number: page.number, text: line.to_owned() });
        joined(lines, "page", "page").into_iter().map(move |passage| Passage { place: place.clone(), ..passage })
    });
    pages.collect()
}

/// Joins small parts, and cuts large ones, until each passage has about [`LONG`] bytes.
fn joined(parts: impl IntoIterator<Item = SourcePart>, one: &str, many: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    let close = |(first, last, text): (usize, usize, String)| {
        let place = if first == last { format!("{one} {first}") } else { format!("{many} {first}–{last}") };
        Passage { place, text }
    };
    for part in parts {
        if let Some(passage) = open.take_if(|(_, _, text)| text.len() + part.text.len() > LONG) {
            passages.push(close(passage));
        }
        let pieces = split_text(&part.text);
        let (last, whole) = pieces.split_last().map_or(("", &[][..]), |(last, whole)| (*last, whole));
        for piece in whole {
            passages.extend(open.take().map(close));
            passages.push(close((part.number, part.number, (*piece).to_owned())));
        }
        let (_, end, text) = open.get_or_insert_with(|| (part.number, part.number, String::new()));
        text.push_str(last);
        *end = part.number;
    }
    passages.extend(open.map(close));
    passages
}

/// Cuts a text that is too long between words, or where there are none, between letters.
fn split_text(text: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while rest.len() > LONG {
        let most = rest.floor_char_boundary(LONG);
        let space = rest[..most].rfind(char::is_whitespace).filter(|at| *at > LONG / 2);
        let end = space.map_or(most, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
        let (piece, more) = rest.split_at(end);
        pieces.push(piece);
        rest = more;
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_all_of_the_text_and_know_their_lines() {
        let lines: Vec<String> = (1..=100).map(|line| format!("This is line number {line} of the file.\n")).collect();
        let text = lines.concat() + &"word ".repeat(500) + &"語".repeat(700) + "\nend";
        let passages = of_lines(&text);
        assert_eq!(passages.iter().map(|passage| &*passage.text).collect::<String>(), text);
        assert!(passages.iter().all(|passage| passage.text.len() <= LONG), "{passages:?}");
        let with = |word: &str| &passages.iter().find(|passage| passage.text.contains(word)).unwrap().place;
        assert_eq!((&**with("number 1 of"), &**with("number 100 of")), ("lines 1–22", "lines 89–100"));
        assert_eq!((&**with("word"), &**with("end")), ("line 101", "lines 101–102"));
        assert!(passages.iter().filter(|passage| passage.place == "line 101").count() >= 4);
        assert!(of_lines("").is_empty());
    }

    #[test]
    fn passages_of_pages_stay_on_their_page() {
        let page = |number, text: &str| SourcePart { number, text: text.to_owned() };
        let passages = of_pages([page(1, "a\nb\n"), page(2, ""), page(3, &"long line\n".repeat(100))]);
        let places: Vec<&str> = passages.iter().map(|passage| &*passage.place).collect();
        assert_eq!(places, ["page 1", "page 3", "page 3"]);
    }
}
