//! The rate of large reads from a disk, which limits models that are larger than the RAM.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Instant,
};

use thermocline_base::error::Result;
use thermocline_formats::format::{UncachedFile, anonymous};

/// Bytes of a read, as the pager of a model reads them.
const READ: u64 = 256 << 10;
/// Consecutive reads.
const RUN: u64 = 16;
/// Most bytes to read. Usual disks take 0.05 to 0.7 seconds.
const MOST: u64 = 96 << 20;
/// Threads that read at the same time, as many as the pager has.
const THREADS: u64 = 8;

/// Measures large reads from the disk of the file at `path`, in bytes per second. `None` if the
/// file is too small, or if this system cannot read past its cache.
///
/// # Errors
/// Errors of reading the file.
pub fn disk_rate(path: &Path) -> Result<Option<f64>> {
    let Some(file) = UncachedFile::open(path)? else { return Ok(None) };
    let runs = file.bytes().min(MOST) / (READ * RUN);
    if runs < THREADS {
        return Ok(None);
    }
    // The runs are spread over the file, because parts of a disk may be faster than others.
    let apart = file.bytes() / runs;
    let next = AtomicU64::new(0);
    let read = || -> Result<()> {
        // Reads past the system's cache need memory that begins at a page.
        let mut part = anonymous(READ as usize, "a buffer for reads")?;
        loop {
            let run = next.fetch_add(1, Relaxed);
            if run >= runs {
                return Ok(());
            }
            for at in 0..RUN {
                file.read(&mut part, run * apart / READ * READ + at * READ)?;
            }
        }
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(read)).collect();
        // A thread that has panicked has read nothing, and the others read its runs.
        others.into_iter().fold(read(), |done, other| done.and(other.join().unwrap_or(Ok(()))))
    })?;
    Ok(Some((runs * RUN * READ) as f64 / started.elapsed().as_secs_f64().max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_files_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; (THREADS * RUN * READ) as usize]).unwrap();
        let rate = disk_rate(&path).unwrap();
        assert_eq!(rate.is_some(), cfg!(target_os = "linux"));
        assert!(rate.is_none_or(|rate| rate.is_finite() && rate > 1e5), "{rate:?}");
        std::fs::write(&path, vec![7; (THREADS * RUN * READ - 1) as usize]).unwrap();
        assert_eq!(disk_rate(&path).unwrap(), None);
        assert!(disk_rate(folder.path()).is_err() && disk_rate(&folder.path().join("absent")).is_err());
    }
}
