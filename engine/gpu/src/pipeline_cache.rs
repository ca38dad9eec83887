//! Cache of compiled kernels on disk, so that the second start need not compile them again. Used if
//! the backend allows it (Vulkan). Other backends keep such a cache themselves.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::raw;
use thermocline_base::files::keep;

/// The driver's cache, and the file that keeps it.
#[derive(Debug)]
pub(super) struct PipelineCache {
    raw: wgpu::PipelineCache,
    file: PathBuf,
}

/// Magic of a cache file. The checksum of the rest follows.
const MAGIC: &[u8; 8] = b"THERMPC1";

impl PipelineCache {
    /// Returns the features that a device with a cache needs, or none if the adapter does not
    /// support a cache.
    pub fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
        adapter.features() & wgpu::Features::PIPELINE_CACHE
    }

    /// Opens the cache of `adapter` in `folder`. The cache is empty if the file is missing, damaged
    /// or of another driver. `None` if the backend does not support a cache.
    pub fn open(device: &wgpu::Device, adapter: &wgpu::Adapter, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.join(wgpu::util::pipeline_cache_key(&adapter.get_info())?);
        let data = fs::read(&file).ok().and_then(|bytes| checked(&bytes).map(<[u8]>::to_vec));
        Some(PipelineCache { raw: raw::pipeline_cache(device, data.as_deref()), file })
    }

    /// Returns the cache for pipeline descriptors.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Writes the pipelines that the driver has compiled so far. A failure is only logged, because
    /// the next start then compiles them again.
    pub fn store(&self) {
        let Some(data) = self.raw.get_data() else { return };
        if let Err(error) = keep(&self.file, &sealed(&data)) {
            tracing::debug!(file = %self.file.display(), %error, "the pipeline cache was not written");
        }
    }
}

/// Returns the driver's bytes of a file, if the checksum matches.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, data) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

/// Computes the FNV-1a hash.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Returns the contents of a file that holds the driver's bytes.
fn sealed(data: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &checksum(data).to_le_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpu, GpuOptions};

    #[test]
    fn cache_ignores_a_damaged_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deeper/cache");
        keep(&file, &sealed(b"compiled")).unwrap();
        let whole = fs::read(&file).unwrap();
        assert_eq!(checked(&whole), Some(&b"compiled"[..]));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(checked(&damaged), None, "byte {at}");
            assert_eq!(checked(&whole[..at]), None, "truncated at {at}");
        }
    }

    #[test]
    fn cache_returns_kernels_and_survives_damage() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let pipeline_cache = Some(folder.path().to_owned());
            let gpu = Gpu::open(&GpuOptions { pipeline_cache, ..GpuOptions::first() });
            let gpu = gpu.unwrap();
            gpu.pipelines().get("add", None, 64, &[]).unwrap();
        };
        open();
        let files: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "the software driver the tests use has pipeline caches: {files:?}");
        let first = fs::read(&files[0]).unwrap();
        assert!(checked(&first).is_some_and(|data| !data.is_empty()));
        open();
        for damaged in [&first[..first.len() / 2], b"", b"THERMPC1"] {
            fs::write(&files[0], damaged).unwrap();
            open();
            assert!(checked(&fs::read(&files[0]).unwrap()).is_some(), "it was written anew");
        }
    }
}
