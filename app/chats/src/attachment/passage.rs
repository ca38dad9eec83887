//! Passages of a file, each with its place in the file. A passage is about as long as a question
//! needs.

/// Approximate length of a passage in bytes. A file is cut between lines if possible.
const LONG: usize = 800;

/// Longest run of headings, in bytes, that moves from the end of a passage to the next one.
const MOST_HEADINGS: usize = LONG / 4;

/// A piece of a file. The passages of a file, in order, are its whole text.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Passage {
    /// Place in the file: `page 3`, `lines 12–40`.
    pub place: String,
    /// Text, with the line ends of the file.
    pub text: String,
}

/// A part of a file, such as a page or a paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePart {
    /// Number, from 1.
    pub number: usize,
    /// Text.
    pub text: String,
}

/// Cuts a text into passages. Their places are line numbers.
pub(super) fn of_lines(text: &str) -> Vec<Passage> {
    let parts =
        text.split_inclusive('\n').enumerate().map(|(at, line)| SourcePart { number: at + 1, text: line.to_owned() });
    joined(parts, "line", "lines")
}

/// Cuts paragraphs into passages. Their places are paragraph numbers.
pub(super) fn of_paragraphs(parts: impl IntoIterator<Item = SourcePart>) -> Vec<Passage> {
    joined(parts, "paragraph", "paragraphs")
}

/// Cuts pages into passages. No passage spans two pages.
pub(super) fn of_pages(pages: impl IntoIterator<Item = SourcePart>) -> Vec<Passage> {
    let pages = pages.into_iter().flat_map(|page| {
        let place = format!("page {}", page.number);
        let lines =
            page.text.split_inclusive('\n').map(|line| SourcePart { number: page.number, text: line.to_owned() });
        joined(lines, "page", "page").into_iter().map(move |passage| Passage { place: place.clone(), ..passage })
    });
    pages.collect()
}

/// Parts that do not form a passage yet.
#[derive(Debug, Default)]
struct OpenPassage {
    parts: Vec<SourcePart>,
    /// Length of their text in bytes.
    len: usize,
}

impl OpenPassage {
    fn push(&mut self, number: usize, text: &str) {
        self.len += text.len();
        self.parts.push(SourcePart { number, text: text.to_owned() });
    }

    /// Takes all parts except headings at the end, which stay with the text below them.
    fn take(&mut self) -> Vec<SourcePart> {
        let is_blank = |part: &SourcePart| part.text.trim().is_empty();
        let words =
            self.parts.iter().rposition(|part| !is_blank(part) && !is_heading(&part.text)).map_or(0, |at| at + 1);
        let blank = self.parts[words..].iter().take_while(|part| is_blank(part)).count();
        let headings: usize = self.parts[words + blank..].iter().map(|part| part.text.len()).sum();
        if headings > MOST_HEADINGS {
            return std::mem::take(self).parts;
        }
        self.len = headings;
        let headings = self.parts.split_off(words + blank);
        std::mem::replace(&mut self.parts, headings)
    }
}

/// True for a Markdown heading.
fn is_heading(line: &str) -> bool {
    let marks = line.len() - line.trim_start_matches('#').len();
    (1..=6).contains(&marks) && line[marks..].starts_with(' ')
}

/// Joins small parts and cuts large ones into passages of about [`LONG`] bytes.
fn joined(parts: impl IntoIterator<Item = SourcePart>, one: &str, many: &str) -> Vec<Passage> {
    let close = |parts: Vec<SourcePart>| {
        let (first, last) = (parts.first()?.number, parts.last()?.number);
        let place = if first == last { format!("{one} {first}") } else { format!("{many} {first}–{last}") };
        Some(Passage { place, text: parts.into_iter().map(|part| part.text).collect() })
    };
    let (mut passages, mut open) = (Vec::new(), OpenPassage::default());
    for part in parts {
        if open.len + part.text.len() > LONG {
            passages.extend(close(open.take()));
        }
        let mut rest = part.text.as_str();
        while open.len + rest.len() > LONG {
            let (piece, more) = split_text(rest, LONG - open.len);
            open.push(part.number, piece);
            passages.extend(close(std::mem::take(&mut open).parts));
            rest = more;
        }
        open.push(part.number, rest);
    }
    passages.extend(close(open.parts));
    passages
}

/// Cuts a text after at most `most` bytes: between words, or between letters if it has no spaces.
fn split_text(text: &str, most: usize) -> (&str, &str) {
    let most = text.floor_char_boundary(most);
    let space = text[..most].rfind(char::is_whitespace).filter(|at| *at > most / 2);
    let end = space.map_or(most, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    text.split_at(end)
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
    fn headings_go_with_the_text_below_them() {
        let part = |n: usize| format!("## Part {n}\n\n{}\n\n", format!("Lighthouse {n} stands on a rock. ").repeat(11));
        let long = format!("# Rules\n### Of the sea\n\n{}\n", "word ".repeat(400));
        let text = (1..=30).map(part).collect::<String>() + &long + "# Last\n";
        let passages = of_lines(&text);
        assert_eq!(passages.iter().map(|passage| &*passage.text).collect::<String>(), text);
        for passage in &passages[..passages.len() - 1] {
            let last = passage.text.lines().rfind(|line| !line.is_empty()).unwrap();
            assert!(!last.starts_with('#') && passage.text.len() <= LONG, "{passage:?}");
        }
        let rules = passages.iter().find(|passage| passage.text.starts_with("# Rules")).unwrap();
        assert!(rules.text.contains("word") && rules.place == "lines 121–124", "{rules:?}");
        // Many lines of comments are not headings.
        let comments = of_lines(&"# a comment of a program\n".repeat(100));
        assert!(comments.len() > 2 && comments.iter().all(|passage| passage.text.len() <= LONG));
    }

    #[test]
    fn passages_of_pages_stay_on_their_page() {
        let page = |number, text: &str| SourcePart { number, text: text.to_owned() };
        let passages = of_pages([page(1, "a\nb\n"), page(2, ""), page(3, &"long line\n".repeat(100))]);
        let places: Vec<&str> = passages.iter().map(|passage| &*passage.place).collect();
        assert_eq!(places, ["page 1", "page 3", "page 3"]);
    }
}
