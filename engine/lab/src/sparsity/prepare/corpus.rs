//! Text files, divided into many short texts in random order.

use std::{io::Read, ops::Range, path::Path};

use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use thermocline_base::error::{Error, FileAction, Result};
use thermocline_text::{EncodeOptions, Tokenizer};

/// Separator of documents in training files.
const END: &str = "<|endoftext|>";
/// Most bytes to read from one file.
const LARGEST: u64 = 256 << 20;
/// Most bytes of text per token. A piece with this many bytes per requested token is long enough.
const BYTES_PER_TOKEN: usize = 8;

/// Pieces of documents in random order, so that held-out pieces resemble the other pieces.
#[derive(Debug)]
pub(super) struct TextFiles {
    files: Vec<String>,
    /// Index of a file and a range of its bytes.
    pieces: Vec<(usize, Range<usize>)>,
}

impl TextFiles {
    /// Reads `paths` and divides the documents into pieces. A piece has at least about `length`
    /// tokens if its document is long enough.
    pub fn open(paths: &[impl AsRef<Path>], length: usize, seed: u64) -> Result<Self> {
        let files = paths.iter().map(|path| read(path.as_ref())).collect::<Result<Vec<_>>>()?;
        let mut pieces = Vec::new();
        for (file, text) in files.iter().enumerate() {
            divide(text, length.saturating_mul(BYTES_PER_TOKEN), &mut |piece| pieces.push((file, piece)));
        }
        pieces.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        Ok(TextFiles { files, pieces })
    }

    /// Returns the tokens of piece `n`, at most `length`; `None` after the last piece.
    pub fn text(&self, n: usize, tokenizer: &Tokenizer, length: usize) -> Result<Option<Vec<u32>>> {
        let Some((file, piece)) = self.pieces.get(n) else { return Ok(None) };
        // Every piece is a separate text and begins with BOS, if the model uses it.
        let mut tokens = tokenizer.encode(&self.files[*file][piece.clone()], EncodeOptions::TEXT)?;
        tokens.truncate(length);
        Ok(Some(tokens))
    }
}

fn read(path: &Path) -> Result<String> {
    let failed = |source| Error::io(FileAction::Read, path, source);
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes)).map_err(failed)?;
    // A file truncated at the limit may end within a character.
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if error.utf8_error().error_len().is_none() => {
            let valid = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(valid);
            String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))
        }
        Err(error) => {
            let at = error.utf8_error().valid_up_to() as u64;
            Err(Error::malformed(
                path,
                thermocline_base::error::Location::Offset(at),
                "UTF-8 text",
                "bytes that are not UTF-8",
            ))
        }
    }
}

/// Divides `text` into documents, and documents into pieces of at most `most` bytes. A piece ends
/// after a line if possible, or else after a word, or else after a character. Skips blank pieces.
fn divide(text: &str, most: usize, each: &mut dyn FnMut(Range<usize>)) {
    let mut start = 0;
    for document in text.split(END) {
        let mut rest = document;
        while !rest.trim().is_empty() {
            let mut end = rest.len();
            if end > most {
                end = rest.floor_char_boundary(most);
                let space = |c: char| c == ' ';
                end = rest[..end].rfind('\n').or_else(|| rest[..end].rfind(space)).map_or(end, |at| at + 1).max(1);
                while !rest.is_char_boundary(end) {
                    end += 1;
                }
            }
            let piece = &rest[..end];
            if !piece.trim().is_empty() {
                let from = start + (document.len() - rest.len()) + (piece.len() - piece.trim_start().len());
                each(from..from + piece.trim().len());
            }
            rest = &rest[end..];
        }
        start += document.len() + END.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, most: usize) -> Vec<&str> {
        let mut pieces = Vec::new();
        divide(text, most, &mut |piece| pieces.push(&text[piece]));
        pieces
    }

    #[test]
    fn corpus_pieces_end_at_documents_lines_words_or_characters() {
        let text = "one two\n<|endoftext|>\nthree\nfour<|endoftext|> \n<|endoftext|>five";
        assert_eq!(pieces(text, 100), ["one two", "three\nfour", "five"]);
        assert_eq!(pieces(text, 8), ["one two", "three", "four", "five"]);
        assert_eq!(pieces("aaaa bbbb cccc", 7), ["aaaa", "bbbb", "cccc"]);
        assert_eq!(pieces("水水水水", 4), ["水", "水", "水", "水"]);
        assert_eq!(pieces("水水", 1), ["水", "水"]);
        assert_eq!(pieces("", 4), [""; 0]);
    }

    #[test]
    fn corpus_files_are_valid_utf8_up_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.txt");
        std::fs::write(&path, "abc水".as_bytes().split_last().unwrap().1).unwrap();
        assert_eq!(read(&path).unwrap(), "abc");
        std::fs::write(&path, b"ab\xff\xffcd").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("at byte 2"));
        assert!(matches!(read(&folder.path().join("absent")), Err(Error::Io { .. })));
    }
}
