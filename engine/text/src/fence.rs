//! Code fences: lines that open and close code blocks in Markdown (CommonMark 0.31, section 4.5).

use std::borrow::Cow;

/// A line that opens a code block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence<'a> {
    /// The run of backticks or tildes.
    pub mark: &'a str,
    /// Language of the code; empty if not given.
    pub language: &'a str,
    /// Number of spaces before the mark, up to 3. They are also removed from the lines of the code.
    pub indent: usize,
}

impl<'a> Fence<'a> {
    /// The fence in `line`, if it can open a code block.
    pub fn opening(line: &'a str) -> Option<Self> {
        let line = line.trim_end();
        let body = outdented(line)?;
        let first = body.chars().next().filter(|c| "`~".contains(*c))?;
        let info = body.trim_start_matches(first);
        let mark = &body[..body.len() - info.len()];
        let language = info.split_whitespace().next().unwrap_or_default();
        (mark.len() >= 3 && !(first == '`' && info.contains('`'))).then_some(Fence {
            mark,
            language,
            indent: line.len() - body.len(),
        })
    }

    /// The lines of the block that this fence opened, each with up to `indent` leading spaces
    /// removed.
    pub fn code<'c>(&self, lines: &'c str) -> Cow<'c, str> {
        if self.indent == 0 {
            return Cow::Borrowed(lines);
        }
        let spaces = |line: &str| line.bytes().take(self.indent).take_while(|byte| *byte == b' ').count();
        Cow::Owned(lines.split_inclusive('\n').map(|line| &line[spaces(line)..]).collect())
    }

    /// `true` if `line` closes the block that this fence opened.
    pub fn closes(&self, line: &str) -> bool {
        let line = outdented(line).unwrap_or_default().trim_end();
        line.starts_with(self.mark) && line.chars().all(|c| self.mark.starts_with(c))
    }

    /// The fence that `text` opens but does not close.
    pub fn left_open(text: &'a str) -> Option<Self> {
        text.lines().fold(None, |open: Option<Self>, line| match open {
            None => Fence::opening(line),
            Some(fence) => Some(fence).filter(|fence| !fence.closes(line)),
        })
    }
}

/// The line without its indentation; `None` if the indentation makes it code.
fn outdented(line: &str) -> Option<&str> {
    let body = line.trim_start_matches(' ');
    (line.len() - body.len() < 4).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_open_and_close_as_specified() {
        let fence = |mark, language, indent| Some(Fence { mark, language, indent });
        assert_eq!(Fence::opening("```rust ignore"), fence("```", "rust", 0));
        assert_eq!(Fence::opening("   ~~~~ a`b\r"), fence("~~~~", "a`b", 3));
        for line in ["``", "    ```", "``` a`b", "text ```", "", "é```"] {
            assert_eq!(Fence::opening(line), None, "{line:?}");
        }
        for (text, open) in [
            ("```\ncode\n```", None),
            ("```\ncode\n`````  \nmore", None),
            ("````\n```\n~~~~\n```` no", Some("````")),
            ("~~~\n```", Some("~~~")),
            ("```\n    ```", Some("```")),
            ("```\r\ncode\r\n```\r\n", None),
            ("```\n```\n```c", Some("```")),
        ] {
            assert_eq!(Fence::left_open(text).map(|fence| fence.mark), open, "{text:?}");
        }
    }

    #[test]
    fn code_has_no_more_indentation_than_its_fence() {
        let code = |fence, lines| Fence::opening(fence).unwrap().code(lines).into_owned();
        assert_eq!(code("```", "  a\n"), "  a\n");
        assert_eq!(code("   ```", "   a {\n       b\n\n c\n  é\n   }"), "a {\n    b\n\nc\né\n}");
        assert_eq!(code("  ```", ""), "");
    }
}
