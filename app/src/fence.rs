//! Code fences: the lines that open and close code blocks in Markdown (CommonMark 0.31, section 4.5).

/// A line that opens a code block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence<'a> {
    /// The backticks or tildes.
    pub mark: &'a str,
    /// Language of the code; empty if not given.
    pub language: &'a str,
}

impl<'a> Fence<'a> {
    /// The fence in `line`, if it can open a code block.
    pub fn opening(line: &'a str) -> Option<Self> {
        let body = outdented(line)?.trim_end();
        let first = body.chars().next().filter(|c| "`~".contains(*c))?;
        let info = body.trim_start_matches(first);
        let mark = &body[..body.len() - info.len()];
        let language = info.split_whitespace().next().unwrap_or_default();
        (mark.len() >= 3 && !(first == '`' && info.contains('`'))).then_some(Fence { mark, language })
    }

    /// `true` if `line` closes the block that this fence opened.
    pub fn closes(&self, line: &str) -> bool {
        let line = outdented(line).unwrap_or_default().trim_end();
        line.starts_with(self.mark) && line.chars().all(|c| self.mark.starts_with(c))
    }

    /// The fence that `text` opens and does not close.
    pub fn left_open(text: &'a str) -> Option<Self> {
        text.lines().fold(None, |open: Option<Self>, line| match open {
            None => Fence::opening(line),
            Some(fence) => Some(fence).filter(|fence| !fence.closes(line)),
        })
    }
}

/// A line without its indentation; `None` if the indentation makes it code.
fn outdented(line: &str) -> Option<&str> {
    let body = line.trim_start_matches(' ');
    (line.len() - body.len() < 4).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_open_and_close_as_specified() {
        let fence = |mark, language| Some(Fence { mark, language });
        assert_eq!(Fence::opening("```rust ignore"), fence("```", "rust"));
        assert_eq!(Fence::opening("   ~~~~ a`b\r"), fence("~~~~", "a`b"));
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
}
