//! Compiled kernels on disk, where the backend lets us have them (Vulkan; the others keep such a cache by themselves): the
//! second start need not compile what the first has.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::raw;
use thermocline_base::files::keep;

/// The driver's cache, and the file it came from and goes to.
#[derive(Debug)]
pub(super) struct PipelineCache {
    raw: wgpu::PipelineCache,
    file: PathBuf,
}

/// Magic of a cache file; the checksum of the rest follows.
const MAGIC: &[u8; 8] = b"THERMPC1";

impl PipelineCache {
    /// Features of a device with a cache; none where the adapter has no such thing.
    pub fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
        adapter.features() & wgpu::Features::PIPELINE_CACHE
    }

    /// The cache of `adapter` in `folder`. Empty if there is no file, or one that is damaged or another driver's; none if the
    /// backend has no such thing.
    pub fn open(device: &wgpu::Device, adapter: &wgpu::Adapter, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.join(wgpu::util::pipeline_cache_key(&adapter.get_info())?);
        let data = fs::read(&file).ok().and_then(|bytes| checked(&bytes).map(<[u8]>::to_vec));
        Some(PipelineCache { raw: raw::pipeline_cache(device, data.as_deref()), file })
    }

    /// The cache, for pipeline descriptors.
    pub fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Writes the pipelines that the driver has compiled so far. A failure is only logged: without the file they are compiled
    /// again.
    pub fn store(&self) {
        let Some(data) = self.raw.get_data() else { return };
        if let Err(error) = keep(&self.file, &sealed(&data)) {
            tracing::debug!(file = %self.file.display(), %error, "pipeline cache not written");
        }
    }
}

/// The driver's bytes of a file, if they are what was once written.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, data) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Contents of a file with the driver's bytes.
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
