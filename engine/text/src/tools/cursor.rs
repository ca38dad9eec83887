//! Reads a text that may continue.

/// The reason why nothing was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// The text ends too early to decide.
    More,
    /// The text does not match, whatever follows.
    Other,
}

/// The result of reading.
pub type Read<T> = Result<T, Unread>;

/// Longest name of a tool, in bytes.
const LONGEST_NAME: usize = 256;

/// A position in a text.
#[derive(Debug, Clone, Copy)]
pub struct TextCursor<'t> {
    text: &'t str,
    /// Number of bytes read.
    pub at: usize,
}

impl<'t> TextCursor<'t> {
    /// Starts at the beginning of `text`.
    pub fn new(text: &'t str) -> Self {
        TextCursor { text, at: 0 }
    }

    /// Starts at byte `at` of `text`.
    pub fn at(text: &'t str, at: usize) -> Self {
        TextCursor { text, at }
    }

    /// The unread text.
    pub fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Skips white space.
    pub fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Returns the next character without reading it.
    pub fn peek(&self) -> Read<char> {
        self.rest().chars().next().ok_or(Unread::More)
    }

    /// Skips white space and returns the next character without reading it.
    pub fn peek_word(&mut self) -> Read<char> {
        self.skip_space();
        self.peek()
    }

    /// Reads the non-empty `text`; false if the text does not follow.
    pub fn take(&mut self, text: &str) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(text) {
            self.at += text.len();
            return Ok(true);
        }
        if text.starts_with(rest) { Err(Unread::More) } else { Ok(false) }
    }

    /// Reads the first of `texts` that follows; none may be empty. Returns its index, or `None` if
    /// none follows.
    pub fn take_any<'s>(&mut self, texts: impl IntoIterator<Item = &'s String>) -> Read<Option<usize>> {
        let mut more = false;
        for (at, text) in texts.into_iter().enumerate() {
            match self.take(text) {
                Ok(true) => return Ok(Some(at)),
                Ok(false) => {}
                Err(_) => more = true,
            }
        }
        if more { Err(Unread::More) } else { Ok(None) }
    }

    /// Reads `text`, which must follow.
    pub fn expect(&mut self, text: &str) -> Read<()> {
        if self.take(text)? { Ok(()) } else { Err(Unread::Other) }
    }

    /// Reads a name of letters, digits and the characters that join words.
    pub fn name(&mut self) -> Read<&'t str> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_-./:".contains(c));
        match end {
            Some(0) => Err(Unread::Other),
            _ if end.unwrap_or(rest.len()) > LONGEST_NAME => Err(Unread::Other),
            Some(end) => {
                self.at += end;
                Ok(&rest[..end])
            }
            None => Err(Unread::More),
        }
    }

    /// Reads up to and including `text`; returns what precedes it.
    pub fn until(&mut self, text: &str) -> Read<&'t str> {
        let (before, behind) = self.rest().split_once(text).ok_or(Unread::More)?;
        self.at = self.text.len() - behind.len();
        Ok(before)
    }
}
