//! Code blocks that belong to an item of a list and are not written as far to the right as its
//! words, which Markdown asks for: models often begin them at the left.

use std::borrow::Cow;

use thermocline_text::fence::Fence;

/// The last item of a list that is open.
#[derive(Debug, Clone, Copy)]
struct OpenItem {
    /// Spaces before its words.
    content: usize,
    /// True if a blank line followed.
    parted: bool,
}

/// `text` with the code of items where their words begin. Code without spaces before it ends a list
/// if a blank line is between.
pub fn indented(text: &str) -> Cow<'_, str> {
    if !text.contains("```") && !text.contains("~~~") {
        return Cow::Borrowed(text);
    }
    let (mut out, mut item) = (String::with_capacity(text.len()), None::<OpenItem>);
    // The code block that is open, and spaces that its lines are given.
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

/// Spaces before the words of an item that this line begins.
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
