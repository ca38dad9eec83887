//! Machines by their published figures (`assets/machines`), for planning without the machine.

use std::path::Path;

use thermocline_engine::{Error, placement::PublishedMachine};

/// Names and contents of the files.
const FILES: [(&str, &str); 16] = [
    ("a100-80g", include_str!("../../assets/machines/a100-80g.json")),
    ("apple-m2", include_str!("../../assets/machines/apple-m2.json")),
    ("arc-a770-i5", include_str!("../../assets/machines/arc-a770-i5.json")),
    ("arc-b580-i5", include_str!("../../assets/machines/arc-b580-i5.json")),
    ("i5-10400", include_str!("../../assets/machines/i5-10400.json")),
    ("rtx2080ti-i7", include_str!("../../assets/machines/rtx2080ti-i7.json")),
    ("rtx3060-r5", include_str!("../../assets/machines/rtx3060-r5.json")),
    ("rtx3090-r9", include_str!("../../assets/machines/rtx3090-r9.json")),
    ("rtx4060-laptop", include_str!("../../assets/machines/rtx4060-laptop.json")),
    ("rtx4070s-r7", include_str!("../../assets/machines/rtx4070s-r7.json")),
    ("rtx4090-i9", include_str!("../../assets/machines/rtx4090-i9.json")),
    ("rtx5090-r9", include_str!("../../assets/machines/rtx5090-r9.json")),
    ("rx6700xt-r5", include_str!("../../assets/machines/rx6700xt-r5.json")),
    ("rx7900xtx-r7", include_str!("../../assets/machines/rx7900xtx-r7.json")),
    ("rx9070xt-r7", include_str!("../../assets/machines/rx9070xt-r7.json")),
    ("ryzen-8700g", include_str!("../../assets/machines/ryzen-8700g.json")),
];

/// Names of the machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Returns the machine called `name`. `None` if no machine has this name, which may be a file then.
///
/// # Errors
/// The error of [`PublishedMachine::from_json`].
pub fn named(name: &Path) -> Result<Option<PublishedMachine>, Error> {
    let known = FILES.iter().find(|(known, _)| Path::new(known) == name);
    known.map(|(name, text)| PublishedMachine::from_json(name, text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_their_files_names_and_speeds() {
        for name in names() {
            let machine = named(Path::new(name)).unwrap().unwrap();
            assert_eq!(machine.name, name);
            assert!(machine.about.contains(machine.cpu.name.rsplit(' ').next().unwrap()), "{}", machine.about);
            assert_eq!(machine.machine().gpu.is_some(), machine.machine().memory.vram.is_some(), "{name}");
        }
        assert!(named(Path::new("pc.json")).unwrap().is_none());
    }
}
