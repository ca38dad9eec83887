//! Code blocks of list items that are not indented as Markdown requires. Models often write them
//! without indentation.

use std::borrow::Cow;

use thermocline_text::fence::Fence;

/// The last open list item.
#[derive(Debug, Clone, Copy)]
struct OpenItem {
    /// Number of spaces before its text.
    content: usize,
    /// True if a blank line follows it.
    parted: bool,
}

/// Indents the code of list items to the text of the item. Code without indentation after a blank
/// line ends the list.
pub fn indented(text: &str) -> Cow<'_, str> {
    if !text.contains("```") && !text.contains("~~~") {
        return Cow::Borrowed(text);
    }
    let (mut out, mut item) = (String::with_capacity(text.len()), None::<OpenItem>);
    // The open code block, and the number of spaces added to its lines.
    let mut code: Option<(Fence<'_>, usize)> = None;
    for line in text.split_inclusive('\n') {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        if let Some((fence, more)) = code {
            push(&mut out, line, more);
            code = code.filter(|_| !fence.closes(line));
            continue;
        }
        if let Some(fence) = Fence::opening(line) {
            let own = item.filter(|item| spaces < item.content && (spaces > 0 || !item.parted));
            let more = own.map_or(0, |item| item.content - spaces);
            push(&mut out, line, more);
            code = Some((fence, more));
            item = item.filter(|item| spaces + more >= item.content);
            continue;
        }
        out.push_str(line);
        item = match (content_of_item(line), item) {
            (Some(content), _) => Some(OpenItem { content, parted: false }),
            (None, Some(item)) if line.trim().is_empty() => Some(OpenItem { parted: true, ..item }),
            (None, item) => item.filter(|item| !item.parted || spaces >= item.content),
        };
    }
    Cow::Owned(out)
}

fn push(out: &mut String, line: &str, more: usize) {
    if !line.trim().is_empty() {
        out.extend(std::iter::repeat_n(' ', more));
    }
    out.push_str(line);
}

/// Number of spaces before the text of a list item, if this line begins an item.
fn content_of_item(line: &str) -> Option<usize> {
    let body = line.trim_start_matches(' ');
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match digits {
        0 => body.starts_with(['-', '*', '+']).then_some(1),
        1..=9 => body[digits..].starts_with(['.', ')']).then_some(digits + 1),
        _ => None,
    }?;
    let words = body[mark..].trim_start_matches(' ');
    let spaces = body.len() - mark - words.len();
    ((1..=4).contains(&spaces) && !words.trim().is_empty()).then_some(line.len() - body.len() + mark + spaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_items_begins_where_their_words_do() {
        for (text, want) in [
            ("1. a\n```js\nx\n\n y\n```\n2. b", "1. a\n   ```js\n   x\n\n    y\n   ```\n2. b"),
            ("1. a\n\n  ```\n  x\n  ```\n", "1. a\n\n   ```\n   x\n   ```\n"),
            ("- a\n  - b\n```\nx", "- a\n  - b\n    ```\n    x"),
        ] {
            assert_eq!(indented(text), want);
        }
        for text in
            ["1. a\n\n```\nx\n```", "a\n```\n1. x\n```\n b", "1. a\n\nb\n```\nx", "1. a\n   ```\n   x\n   ```\n"]
        {
            assert_eq!(indented(text), text);
        }
    }
}
