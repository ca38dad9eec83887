//! The file that llama.cpp's `llama-perplexity --kl-divergence-base` writes. It holds the base
//! model's probabilities at every scored token, in 16 bits each. All numbers are little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `_logits_` |
//! | 4 | u32 tokens of a window |
//! | 4 | i32 vocabulary |
//! | 4 | i32 windows |
//! | 4 * windows * tokens of a window | i32 ids, before BOS replaced each window's first |
//! | 2 * (2 * ((vocabulary + 1) / 2) + 4) | per scored token: f32 scale, f32 least log-probability, u16 codes |
//!
//! A log-probability is `scale * code + least`. Probabilities more than 16 nats below the greatest
//! have the code 0. [`Corpus::windows`](super::Corpus::windows) defines the scored tokens of a
//! window.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    path::{Path, PathBuf},
};

use thermocline_base::error::{Error, FileAction, Location, Result};

const MAGIC: &[u8; 8] = b"_logits_";

/// Range of stored log-probabilities below the greatest, in nats.
const RANGE: f32 = 16.0;

/// Returns the bytes per scored token.
fn row_bytes(n_vocab: usize) -> usize {
    (2 * n_vocab.div_ceil(2) + 4) * 2
}

/// Returns the scored tokens per window.
fn scored(context: usize) -> usize {
    context - 1 - context / 2
}

/// Writes a base file row by row.
#[derive(Debug)]
pub struct BaseWriter<W: Write> {
    to: W,
    path: PathBuf,
    row: Vec<u8>,
}

impl<W: Write> BaseWriter<W> {
    /// Starts a file of windows of `context` tokens. `raw` holds the tokens of all windows, one
    /// after another. `to` can be any writer; `path` is only for errors.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(mut to: W, path: &Path, context: usize, n_vocab: usize, raw: &[u32]) -> Result<Self> {
        let mut header = MAGIC.to_vec();
        for number in [context, n_vocab, raw.len() / context.max(1)] {
            header.extend((number as u32).to_le_bytes());
        }
        header.extend(raw.iter().flat_map(|id| id.to_le_bytes()));
        to.write_all(&header).map_err(|error| Error::io(FileAction::Write, path, error))?;
        Ok(BaseWriter { to, path: path.to_owned(), row: Vec::new() })
    }

    /// Writes the logits of one scored token.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn row(&mut self, logits: &[f32]) -> Result<()> {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = logits.iter().copied().fold(f32::INFINITY, f32::min).max(greatest - RANGE);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - greatest).exp()).sum();
        let scale = (greatest - least) / f32::from(u16::MAX);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        self.row.clear();
        self.row.extend(scale.to_le_bytes());
        self.row.extend((least - greatest - sum.ln() as f32).to_le_bytes());
        for logit in logits {
            // Casts saturate, so values below `least` become 0.
            let code = (inverse * (logit - least)).round_ties_even() as u16;
            self.row.extend(code.to_le_bytes());
        }
        self.row.resize(row_bytes(logits.len()), 0);
        self.to.write_all(&self.row).map_err(|error| Error::io(FileAction::Write, &self.path, error))
    }

    /// Must be called after the last row.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        self.to.flush().map_err(|error| Error::io(FileAction::Write, &self.path, error))?;
        Ok(self.to)
    }
}

/// Reads a base file row by row.
#[derive(Debug)]
pub struct BaseFile<R: Read = BufReader<File>> {
    from: R,
    path: PathBuf,
    /// Tokens per window.
    pub context: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Tokens of the windows, `[windows, context]`.
    pub raw: Vec<u32>,
    row: Vec<u8>,
    /// Rows read so far.
    rows: u64,
}

impl BaseFile<BufReader<File>> {
    /// Opens a base file and checks its length.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io(FileAction::Open, path, error))?;
        let bytes = file.metadata().map_err(|error| Error::io(FileAction::Read, path, error))?.len();
        BaseFile::new(BufReader::new(file), bytes, path)
    }
}

impl<R: Read> BaseFile<R> {
    /// Reads the header from `from`, which holds `bytes` bytes. `path` is only for errors.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn new(mut from: R, bytes: u64, path: &Path) -> Result<Self> {
        let malformed = |name: &str, offset, expected: String, got: String| {
            Error::malformed(path, Location::Field { name: name.to_owned(), offset }, expected, got)
        };
        let mut read =
            |into: &mut [u8]| from.read_exact(into).map_err(|error| Error::io(FileAction::Read, path, error));
        if bytes < 20 {
            return Err(malformed("header", 0, "20 bytes".to_owned(), bytes.to_string()));
        }
        let mut header = [0; 20];
        read(&mut header)?;
        if &header[..8] != MAGIC {
            let got = String::from_utf8_lossy(&header[..8]).into_owned();
            return Err(malformed("magic", 0, "`_logits_`".to_owned(), format!("`{got}`")));
        }
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let [context, n_vocab, windows] = [8, 12, 16].map(number);
        for (name, offset, value, least) in
            [("tokens of a window", 8, context, 4), ("vocabulary", 12, n_vocab, 1), ("windows", 16, windows, 1)]
        {
            if value < least || i32::try_from(value).is_err() {
                return Err(malformed(name, offset, format!("{least} to {}", i32::MAX), value.to_string()));
            }
        }
        let (context, n_vocab, windows) = (context as usize, n_vocab as usize, windows as usize);
        let expected = 20
            + 4 * context as u128 * windows as u128
            + windows as u128 * scored(context) as u128 * row_bytes(n_vocab) as u128;
        if u128::from(bytes) != expected {
            let wanted =
                format!("{expected} bytes for {windows} windows of {context} tokens and a vocabulary of {n_vocab}");
            let malformed = Error::malformed(path, Location::File, wanted, format!("{bytes} bytes"));
            return Err(if u128::from(bytes) < expected { malformed.of_truncated_file() } else { malformed });
        }
        let mut raw = Vec::new();
        let mut window = vec![0; 4 * context];
        for at in 0..windows {
            read(&mut window)?;
            for (t, id) in window.as_chunks::<4>().0.iter().enumerate() {
                let id = u32::from_le_bytes(*id);
                if id as usize >= n_vocab {
                    let offset = 20 + 4 * (at * context + t) as u64;
                    return Err(malformed("a token id", offset, format!("an id below {n_vocab}"), id.to_string()));
                }
                raw.push(id);
            }
        }
        Ok(BaseFile { from, path: path.to_owned(), context, n_vocab, raw, row: vec![0; row_bytes(n_vocab)], rows: 0 })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the log-probabilities at the next scored token into `log_p` `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::Io`] at the end, [`Error::Malformed`] for numbers that no logits produce.
    pub fn row(&mut self, log_p: &mut Vec<f64>) -> Result<()> {
        self.from.read_exact(&mut self.row).map_err(|error| Error::io(FileAction::Read, &self.path, error))?;
        let words = self.row.as_chunks::<4>().0;
        let [scale, least] = [f32::from_le_bytes(words[0]), f32::from_le_bytes(words[1])];
        if !(scale >= 0.0 && scale.is_finite() && least.is_finite()) {
            let expected = format!("a finite scale and a finite offset in scored token {}", self.rows);
            let got = format!("the scale {scale} and the offset {least}");
            return Err(Error::malformed(&self.path, Location::File, expected, got));
        }
        self.rows += 1;
        let (scale, least) = (f64::from(scale), f64::from(least));
        log_p.clear();
        let codes = self.row[8..].as_chunks::<2>().0.iter().take(self.n_vocab);
        log_p.extend(codes.map(|code| scale * f64::from(u16::from_le_bytes(*code)) + least));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::score::LogSoftmax;

    fn file(context: usize, n_vocab: usize, raw: &[u32], rows: &[Vec<f32>]) -> Vec<u8> {
        let mut writer = BaseWriter::new(Vec::new(), Path::new("base"), context, n_vocab, raw).unwrap();
        rows.iter().for_each(|row| writer.row(row).unwrap());
        writer.finish().unwrap()
    }

    fn open(bytes: &[u8]) -> Result<BaseFile<&[u8]>> {
        BaseFile::new(bytes, bytes.len() as u64, Path::new("base"))
    }

    #[test]
    fn base_file_rows_round_trip_to_sixteen_bits() {
        let logit = |r: usize, i: usize| ((i * 37 + r * 11) % 23) as f32 - if i == 6 { 60.0 } else { 0.0 };
        let rows: Vec<Vec<f32>> = (0..4).map(|r| (0..7).map(|i| logit(r, i)).collect()).collect();
        let bytes = file(5, 7, &[0, 1, 2, 3, 4, 6, 5, 4, 3, 2], &rows);
        assert_eq!(bytes.len(), 20 + 40 + 4 * 24);
        let mut base = open(&bytes).unwrap();
        assert_eq!((base.context, base.n_vocab, base.raw[5]), (5, 7, 6));
        let (mut softmax, mut log_p) = (LogSoftmax::default(), Vec::new());
        for row in &rows {
            softmax.fill(row);
            base.row(&mut log_p).unwrap();
            let greatest = softmax.log_p.iter().copied().fold(f64::MIN, f64::max);
            for (got, want) in log_p.iter().zip(&softmax.log_p) {
                let want = want.max(greatest - 16.0);
                assert!((got - want).abs() < 16.0 / 65535.0, "{got} {want}");
            }
        }
        assert!(matches!(base.row(&mut log_p), Err(Error::Io { .. })));
        // Equal logits have no range at all.
        let bytes = file(4, 2, &[0, 1, 0, 1], &[vec![3.0, 3.0]]);
        let mut base = open(&bytes).unwrap();
        base.row(&mut log_p).unwrap();
        assert!(log_p.iter().all(|log_p| (log_p + 2f64.ln()).abs() < 1e-6), "{log_p:?}");
    }

    #[test]
    fn malformed_base_files_are_errors_that_name_the_field() {
        let good = file(4, 3, &[0, 1, 2, 0], &[vec![1.0, 2.0, 3.0]]);
        assert!(open(&good).is_ok());
        for length in 0..good.len() {
            assert!(open(&good[..length]).is_err(), "{length} bytes");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut wrong = good.clone();
            wrong[at..at + bytes.len()].copy_from_slice(bytes);
            open(&wrong).map(drop).unwrap_err().to_string()
        };
        assert!(with(0, b"_LOGITS_").contains("magic"));
        for (at, name) in [(8, "tokens of a window"), (12, "vocabulary"), (16, "windows")] {
            for value in [0u32, u32::MAX] {
                assert!(with(at, &value.to_le_bytes()).contains(name), "{name} {value}");
            }
            // Reading must not allocate more memory than the file's length.
            let large = with(at, &(i32::MAX as u32).to_le_bytes());
            assert!(large.contains("bytes"), "{large}");
        }
        assert!(with(24, &9u32.to_le_bytes()).contains("a token id at byte 24"));
        let mut wrong = good.clone();
        wrong[36..40].copy_from_slice(&f32::NAN.to_le_bytes());
        let error = open(&wrong).unwrap().row(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("scored token 0"), "{error}");
    }
}
