//! Memory of a card, from the Linux kernel's folder of its PCI device. Each driver has its own file
//! names. amdgpu reports used bytes, and with unified memory also the usable part of the machine's
//! memory. i915 reports free bytes. xe reports only the size of each tile.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{VramReading, VramSource};

/// Returns the reading of the device at `pci` (`0000:03:00.0`). `root` is the mount point of sysfs.
/// With `unified` memory, the memory reserved for the device is the smaller part of what it may
/// use.
pub(super) fn read(root: &Path, pci: &str, unified: bool) -> Option<VramReading> {
    // Any other text is not a folder name and could lead outside of the folder.
    if pci.is_empty() || !pci.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.') || pci.contains("..") {
        return None;
    }
    let device = root.join("bus/pci/devices").join(pci.to_ascii_lowercase());
    let reading = VramReading::empty(VramSource::Sysfs);
    if let Some(total) = number(&device.join("mem_info_vram_total")) {
        let used = number(&device.join("mem_info_vram_used"));
        let own = VramReading { total: Some(total), used, ..reading };
        return Some(if unified { with_gtt(own, &device) } else { own });
    }
    for card in folders(&device.join("drm"), "card") {
        if let Some(total) = number(&card.join("lmem_total_bytes")) {
            let free = number(&card.join("lmem_avail_bytes"));
            return Some(VramReading {
                total: Some(total),
                used: free.map(|free| total.saturating_sub(free)),
                ..reading
            });
        }
    }
    let tiles = folders(&device, "tile");
    let sizes: Vec<u64> = tiles.iter().filter_map(|tile| number(&tile.join("physical_vram_size_bytes"))).collect();
    let total = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    (total > 0).then_some(VramReading { total: Some(total), ..reading })
}

/// Adds to the reading `own` of an amdgpu device the part of the machine's memory that it may use
/// (GTT). A tenth of the GTT is left to the driver for submissions, because a device without such
/// room is lost.
fn with_gtt(own: VramReading, device: &Path) -> VramReading {
    let Some(gtt) = number(&device.join("mem_info_gtt_total")) else { return own };
    let used = own.used.zip(number(&device.join("mem_info_gtt_used")));
    VramReading {
        total: own.total.map(|total| total.saturating_add(gtt - gtt / 10)),
        used: used.map(|(own, gtt)| own.saturating_add(gtt)),
        ..own
    }
}

/// Returns the folders in `folder` whose names begin with `prefix`.
fn folders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    wanted.map(|entry| entry.path()).collect()
}

/// Reads a number of bytes, decimal or with `0x`.
fn number(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a sysfs with these files, and returns total and used bytes of `0000:0a:00.0`.
    fn reading_of(unified: bool, files: &[(&str, &str)]) -> Option<(Option<u64>, Option<u64>)> {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("bus/pci/devices/0000:0a:00.0");
        for (name, text) in files {
            let file = device.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let reading = read(root.path(), "0000:0A:00.0", unified)?;
        assert_eq!((reading.source, reading.used_here, reading.budget), (VramSource::Sysfs, None, None));
        Some((reading.total, reading.used))
    }

    fn reading(files: &[(&str, &str)]) -> Option<(Option<u64>, Option<u64>)> {
        reading_of(false, files)
    }

    #[test]
    fn unified_memory_includes_the_machines_less_a_tenth() {
        let apu = [
            ("mem_info_vram_total", "536870912"),
            ("mem_info_vram_used", "400000000"),
            ("mem_info_gtt_total", "30000000000"),
            ("mem_info_gtt_used", "1000000000"),
        ];
        assert_eq!(reading_of(true, &apu), Some((Some(536_870_912 + 27_000_000_000), Some(1_400_000_000))));
        // A card uses only its own memory.
        assert_eq!(reading_of(false, &apu), Some((Some(536_870_912), Some(400_000_000))));
        assert_eq!(reading_of(true, &apu[..2]), Some((Some(536_870_912), Some(400_000_000))));
        assert_eq!(reading_of(true, &apu[..3]), Some((Some(536_870_912 + 27_000_000_000), None)));
    }

    #[test]
    fn read_knows_the_names_of_each_driver() {
        let amd = [("mem_info_vram_total", "17163091968\n"), ("mem_info_vram_used", "1048576\n")];
        assert_eq!(reading(&amd), Some((Some(17_163_091_968), Some(1_048_576))));
        assert_eq!(reading(&amd[..1]), Some((Some(17_163_091_968), None)));
        let i915 = [("drm/card1/lmem_total_bytes", "0x100000"), ("drm/card1/lmem_avail_bytes", "1024")];
        assert_eq!(reading(&i915), Some((Some(1 << 20), Some((1 << 20) - 1024))));
        let xe = [("tile0/physical_vram_size_bytes", "4096"), ("tile1/physical_vram_size_bytes", "4096")];
        assert_eq!(reading(&xe), Some((Some(8192), None)));
    }

    #[test]
    fn read_returns_none_for_anything_else() {
        assert_eq!(reading(&[]), None);
        assert_eq!(reading(&[("mem_info_vram_total", "many"), ("vendor", "0x1002")]), None);
        assert_eq!(reading(&[("mem_info_vram_total", "-1")]), None);
        assert_eq!(reading(&[("mem_info_vram_total", "99999999999999999999999")]), None);
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("bus/pci/devices")).unwrap();
        fs::write(root.path().join("mem_info_vram_total"), "1").unwrap();
        for hostile in ["", "..", "../../..", "/etc", "0000:00:00.0/../../../..", "\0"] {
            assert_eq!(read(root.path(), hostile, true), None, "{hostile:?}");
        }
    }
}
