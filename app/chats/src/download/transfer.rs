//! The transfer of one file.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DownloadError, space};

/// Bytes per read. Progress is reported after each read.
const PIECE: usize = 256 << 10;
/// Extensions that are appended to the file name for the part and for its record.
pub(super) const PART_FILES: [&str; 2] = ["part", "part.json"];
/// Bytes left free on the disk.
const MARGIN: u64 = 64 << 20;

/// Address of a file, and its listed length and checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadSource {
    /// Address.
    pub url: String,
    /// Length in bytes.
    pub bytes: Option<u64>,
    /// SHA-256 in hexadecimal.
    pub sha256: Option<String>,
}

/// Progress of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadProgress {
    /// Bytes on disk.
    pub done: u64,
    /// Length of the file, once known from the server.
    pub total: Option<u64>,
}

/// A complete file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedFile {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// `true` if the checksum matches the listed one; `false` if no checksum was listed.
    pub verified: bool,
}

/// Record beside a partial file: its address, and the validator that detects a change of the file
/// on the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ResumeRecord {
    url: String,
    validator: String,
    total: Option<u64>,
}

/// Downloads `source` into the new file `to`, by way of `to.part`. An existing part is resumed if
/// the server still has the same file. `progress` is called after each read and may stop the
/// transfer. The part is then kept.
///
/// # Errors
/// [`DownloadError`]; its variants say whether the part is kept.
pub fn fetch(
    agent: &ureq::Agent,
    source: &DownloadSource,
    to: &Path,
    progress: &mut dyn FnMut(DownloadProgress) -> ControlFlow<()>,
) -> Result<FetchedFile, DownloadError> {
    if to.exists() {
        return Err(DownloadError::Exists(to.to_owned()));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed("creating the folder", folder))?;
    let part = PartFile::open(source, to)?;
    let (file, sum) = part.receive(agent, source, folder, progress)?;
    let got = hex(&sum.finalize());
    if let Some(wanted) = source.sha256.as_ref().filter(|wanted| !wanted.eq_ignore_ascii_case(&got)) {
        file.remove();
        return Err(DownloadError::Checksum { url: source.url.clone(), wanted: wanted.clone(), got });
    }
    let bytes = file.done;
    file.finish(to)?;
    Ok(FetchedFile { bytes, sha256: got, verified: source.sha256.is_some() })
}

/// The received part of a file.
struct PartFile {
    path: PathBuf,
    record_path: PathBuf,
    file: File,
    /// Origin of the part; `None` if it cannot be resumed.
    record: Option<ResumeRecord>,
    done: u64,
}

impl PartFile {
    fn open(source: &DownloadSource, to: &Path) -> Result<Self, DownloadError> {
        let [path, record_path] = PART_FILES.map(|extension| to.with_added_extension(extension));
        let record = fs::read(&record_path).ok().and_then(|json| serde_json::from_slice::<ResumeRecord>(&json).ok());
        let record = record.filter(|record| record.url == source.url && path.exists());
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(&path);
        let file = file.map_err(failed("opening", &path))?;
        if record.is_none() {
            file.set_len(0).map_err(failed("emptying", &path))?;
        }
        let done = file.metadata().map_err(failed("looking at", &path))?.len();
        Ok(PartFile { path, record_path, file, record, done })
    }

    /// Receives the missing bytes and returns the checksum of the whole file.
    fn receive(
        mut self,
        agent: &ureq::Agent,
        source: &DownloadSource,
        folder: &Path,
        progress: &mut dyn FnMut(DownloadProgress) -> ControlFlow<()>,
    ) -> Result<(Self, Sha256), DownloadError> {
        let url = &source.url;
        let network = |error| DownloadError::Network { url: url.clone(), source: Box::new(error) };
        let mut request = agent.get(url).header("Accept-Encoding", "identity");
        if let Some(record) = self.record.as_ref().filter(|_| self.done > 0) {
            request = request.header("Range", format!("bytes={}-", self.done)).header("If-Range", &record.validator);
        }
        let mut response = request.call().map_err(network)?;
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let total = match status {
            206 => match header("content-range").as_deref().and_then(content_range) {
                Some((first, total)) if first == self.done => total,
                other => {
                    let got = other.map_or("no range".to_owned(), |(first, _)| format!("bytes from {first}"));
                    return Err(self.unexpected(url, "the rest of the file", got));
                }
            },
            200 => {
                self.restart()?;
                header("content-length").and_then(|length| length.parse().ok())
            }
            // The part is complete, or the file became shorter.
            416 if self.done > 0 => {
                let of = header("content-range").and_then(|range| range.strip_prefix("bytes */")?.parse::<u64>().ok());
                if of != Some(self.done) {
                    return Err(self.unexpected(url, "the rest of the file", "another file".to_owned()));
                }
                of
            }
            status => return Err(DownloadError::Status { url: url.clone(), status, hint: hint(status) }),
        };
        if let (Some(wanted), Some(total)) = (source.bytes, total)
            && wanted != total
        {
            let got = format!("{total} bytes instead of {wanted}");
            return Err(self.unexpected(url, "the file that was listed", got));
        }
        let total = total.or(source.bytes);
        let missing = total.map_or(0, |total| total.saturating_sub(self.done));
        if let Some(free) = space::free(folder).filter(|free| *free < missing.saturating_add(MARGIN)) {
            return Err(DownloadError::Space { folder: folder.to_owned(), wanted: missing, free });
        }
        // Weak validators do not guarantee identical bytes.
        let validator = header("etag").filter(|etag| !etag.starts_with("W/")).or_else(|| header("last-modified"));
        if let Some(validator) = validator {
            self.save_record(ResumeRecord { url: url.clone(), validator, total })?;
        }

        let mut sum = self.checksum(progress, total)?;
        if status != 416 {
            let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
            let mut piece = vec![0; PIECE];
            loop {
                let n = match body.read(&mut piece) {
                    Ok(0) => break,
                    Ok(n) => n,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(network(ureq::Error::from(error))),
                };
                self.file.write_all(&piece[..n]).map_err(failed("writing", &self.path))?;
                sum.update(&piece[..n]);
                self.done += n as u64;
                if progress(DownloadProgress { done: self.done, total }).is_break() {
                    return Err(DownloadError::Stopped);
                }
            }
        }
        match total {
            Some(wanted) if wanted != self.done => {
                Err(DownloadError::Short { url: url.clone(), wanted, got: self.done })
            }
            _ => Ok((self, sum)),
        }
    }

    /// The checksum of the part on disk.
    fn checksum(
        &self,
        progress: &mut dyn FnMut(DownloadProgress) -> ControlFlow<()>,
        total: Option<u64>,
    ) -> Result<Sha256, DownloadError> {
        let mut sum = Sha256::new();
        if self.done == 0 {
            return Ok(sum);
        }
        let mut file = File::open(&self.path).map_err(failed("reading", &self.path))?;
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece).map_err(failed("reading", &self.path))? {
                0 => return Ok(sum),
                n => sum.update(&piece[..n]),
            }
            if progress(DownloadProgress { done: self.done, total }).is_break() {
                return Err(DownloadError::Stopped);
            }
        }
    }

    fn restart(&mut self) -> Result<(), DownloadError> {
        (self.done, self.record) = (0, None);
        self.file.set_len(0).map_err(failed("emptying", &self.path))
    }

    fn save_record(&mut self, record: ResumeRecord) -> Result<(), DownloadError> {
        let json = serde_json::to_vec(&record).unwrap_or_default();
        self.record = Some(record);
        fs::write(&self.record_path, json).map_err(failed("writing", &self.record_path))
    }

    /// Removes a part that does not match the server's response.
    fn unexpected(self, url: &str, expected: &'static str, got: String) -> DownloadError {
        self.remove();
        DownloadError::Answer { url: url.to_owned(), expected, got }
    }

    /// Removes an unusable part. If that fails, the next attempt detects it again.
    fn remove(self) {
        let _ = fs::remove_file(&self.record_path);
        let _ = fs::remove_file(&self.path);
    }

    fn finish(self, to: &Path) -> Result<(), DownloadError> {
        self.file.sync_all().map_err(failed("writing", &self.path))?;
        if to.exists() {
            return Err(DownloadError::Exists(to.to_owned()));
        }
        fs::rename(&self.path, to).map_err(failed("naming", to))?;
        let _ = fs::remove_file(&self.record_path);
        Ok(())
    }
}

/// First byte and length of a range such as `bytes 5-9/10`. The length is `None` if unknown.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
}

const fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            ": access is restricted. Accept the licence in a browser first; a private repository cannot be downloaded"
        }
        404 => ": the file does not exist",
        429 => ": too many requests. Thermocline will retry later",
        500..=599 => ": the server has an error. Thermocline will retry later",
        _ => "",
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DownloadError {
    let path = path.to_owned();
    move |source| DownloadError::File { operation, path, source }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
