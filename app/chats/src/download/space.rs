//! Free disk space.

use std::path::Path;

use sysinfo::Disks;

/// Free bytes on the disk of `folder`, which must exist; `None` if unknown.
pub(super) fn free(folder: &Path) -> Option<u64> {
    let folder = folder.canonicalize().ok()?;
    let disks = Disks::new_with_refreshed_list().ok()?;
    let above = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    above.max_by_key(|disk| disk.mount_point().as_os_str().len()).map(sysinfo::Disk::available_space)
}
