//! Limits of RAM that Linux sets for a group of processes (a container, a service), which the
//! figures of the machine do not show.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the system mounts the tree of groups.
const TREE: &str = "/sys/fs/cgroup";

/// A version of the interface: the names of its files.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Names of the figures in `memory.stat` whose sum is the cache of files.
    cached: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};
const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", usage: "memory.current", cached: ["active_file", "inactive_file"] };

/// Returns the smallest limit of the groups of this process. `None` without a limit.
pub fn limit() -> Option<u64> {
    groups().filter_map(|group| group.limit()).min()
}

/// Returns the bytes that the groups of this process leave free. The cache of files counts as
/// free. `None` without a limit.
pub fn free() -> Option<u64> {
    groups().filter_map(|group| group.free()).min()
}

/// A group with its own limit.
struct MemoryGroup {
    folder: PathBuf,
    files: &'static GroupFiles,
}

impl MemoryGroup {
    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }

    /// The limit. Version 1 writes the largest multiple of a page instead of none.
    fn limit(&self) -> Option<u64> {
        self.number(self.files.limit).filter(|bytes| *bytes < 1 << 60)
    }

    fn free(&self) -> Option<u64> {
        let (limit, usage) = (self.limit()?, self.number(self.files.usage)?);
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let cached = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            bytes.trim().parse::<u64>().ok().filter(|_| self.files.cached.contains(&name))
        };
        let cached: u64 = stat.lines().filter_map(cached).sum();
        Some(limit.saturating_sub(usage.saturating_sub(cached)))
    }
}

/// The groups of this process, from its own up to the root of the tree.
fn groups() -> impl Iterator<Item = MemoryGroup> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = memory_folder(&text);
    own.into_iter().flat_map(|(root, folder)| {
        let files = if root == Path::new(TREE) { &VERSION_2 } else { &VERSION_1 };
        let folders: Vec<PathBuf> =
            folder.ancestors().take_while(|it| it.starts_with(&root)).map(Path::to_owned).collect();
        folders.into_iter().map(move |folder| MemoryGroup { folder, files })
    })
}

/// The root of the tree that limits memory, and the folder of the group in `text`, the contents of
/// `/proc/self/cgroup`. Version 1 has a tree of its own for memory.
fn memory_folder(text: &str) -> Option<(PathBuf, PathBuf)> {
    let path = |controllers: fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let of = parts.next()?;
            controllers(of).then(|| parts.next().unwrap_or("/").trim_start_matches('/').to_owned())
        })
    };
    let below = |root: PathBuf, path: String| {
        let folder = root.join(path);
        // In a container, the path may belong to the machine outside.
        let folder = if folder.is_dir() { folder } else { root.clone() };
        (root, folder)
    };
    match path(|of| of.split(',').any(|it| it == "memory")) {
        Some(path) => Some(below(Path::new(TREE).join("memory"), path)),
        None => path(str::is_empty).map(|path| below(PathBuf::from(TREE), path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(folder: &Path, files: &'static GroupFiles, contents: &[(&str, &str)]) -> MemoryGroup {
        contents.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
        MemoryGroup { folder: folder.to_owned(), files }
    }

    #[test]
    fn free_memory_of_a_group_counts_cached_files() {
        let folder = tempfile::tempdir().unwrap();
        let one = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "900\n"),
            ("memory.stat", "cache 5\ntotal_active_file 300\ntotal_inactive_file 400\n"),
        ];
        let one = group(folder.path(), &VERSION_1, &one);
        assert_eq!((one.limit(), one.free()), (Some(1000), Some(800)));
        let two = [("memory.max", "2000\n"), ("memory.current", "1900"), ("memory.stat", "active_file 100\n")];
        let two = group(folder.path(), &VERSION_2, &two);
        assert_eq!((two.limit(), two.free()), (Some(2000), Some(200)));
        let open = group(folder.path(), &VERSION_2, &[("memory.max", "max\n")]);
        assert_eq!((open.limit(), open.free()), (None, None));
    }

    #[test]
    fn both_versions_name_the_group_of_a_process() {
        let of = |text: &str| memory_folder(text).map(|(root, _)| root);
        let tree = Path::new(TREE);
        assert_eq!(of("5:cpu,cpuacct:/a\n4:memory:/nowhere\n0::/b\n"), Some(tree.join("memory")));
        assert_eq!(of("0::/nowhere\n"), Some(tree.to_owned()));
        assert_eq!(of("5:cpu:/a\n"), None);
        assert_eq!(memory_folder("0::/nowhere\n").unwrap().1, tree, "a group outside is replaced by the root");
    }
}
