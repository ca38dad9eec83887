//! Files in the prompt: above the text of their message, each between two lines that name it.

use super::Passage;

/// Approximate tokens of the two lines around a file.
const AROUND: usize = 24;

/// Tokens that files leave free for the answer, and the fraction of the context that suffices.
const ANSWER: usize = 1024;
const ANSWER_FRACTION: usize = 4;

/// Tokens that a context of `context` tokens keeps free for the answer.
pub fn kept_for_answer(context: usize) -> usize {
    ANSWER.min(context / ANSWER_FRACTION)
}

/// Which files fit whole into `room` tokens. Files are taken in order, and a file is whole if the
/// remaining room suffices.
pub fn whole(tokens: impl IntoIterator<Item = usize>, mut room: usize) -> Vec<bool> {
    let fits = |tokens: usize| match room.checked_sub(tokens + AROUND) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    tokens.into_iter().map(fits).collect()
}

/// Tokens of a file including the lines around it.
pub fn with_lines(tokens: usize) -> usize {
    tokens + AROUND
}

/// The prompt text of a whole file.
pub fn file(name: &str, text: &str) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("<file name=\"{}\">\n{text}{end}</file>\n\n", quoted(name))
}

/// The prompt text of a passage, if the file is too long to be given whole.
pub fn excerpt(name: &str, passage: &Passage) -> String {
    let end = if passage.text.ends_with('\n') { "" } else { "\n" };
    let (name, place) = (quoted(name), quoted(&passage.place));
    format!("<excerpt file=\"{name}\" place=\"{place}\">\n{}{end}</excerpt>\n\n", passage.text)
}

/// The prompt text of a file whose contents are left out.
pub fn left_out(name: &str) -> String {
    format!("<file name=\"{}\" omitted=\"too long\"/>\n\n", quoted(name))
}

/// The prompt text of a file whose pictures the model is not shown.
pub fn unseen(name: &str) -> String {
    format!("<file name=\"{}\" omitted=\"pictures, which are not shown\"/>\n\n", quoted(name))
}

fn quoted(text: &str) -> String {
    text.replace(['"', '<', '>', '\n', '\r'], "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_while_there_is_room() {
        assert_eq!(whole([100, 5000, 200], 1000), [true, false, true]);
        assert_eq!(whole([1000 - AROUND, 0], 1000), [true, false]);
        assert_eq!(whole([1000 - AROUND + 1], 1000), [false]);
        assert_eq!((kept_for_answer(512), kept_for_answer(8192)), (128, 1024));
    }

    #[test]
    fn names_cannot_end_the_line_they_stand_in() {
        let passage = Passage { place: "page 2".to_owned(), text: "words".to_owned() };
        assert_eq!(file("a\"><b.md", "x\n"), "<file name=\"a'''b.md\">\nx\n</file>\n\n");
        assert_eq!(excerpt("r.pdf", &passage), "<excerpt file=\"r.pdf\" place=\"page 2\">\nwords\n</excerpt>\n\n");
    }
}
