//! Fixtures with small random changes, the same in every run.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::dice::Dice;

/// Number of mutations of all seeds together.
pub const MUTATIONS: usize = 400;
/// Maximum number of bytes that a mutation changes, removes or repeats.
const MOST: usize = 12;

/// Reads the files of a fixture folder whose names end in `suffix`, up to a megabyte each.
///
/// # Panics
/// If there is no such file.
pub fn seeds(folder: &str, suffix: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
    let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(suffix)).collect();
    paths.sort();
    let files = paths.iter().map(|path| fs::read(path).unwrap());
    let files: Vec<Vec<u8>> = files.filter(|file| file.len() <= 1 << 20).collect();
    assert!(!files.is_empty(), "no {suffix} in {}", folder.display());
    files
}

/// Returns the chat templates of the fixtures.
///
/// # Panics
/// If there are fewer than two.
pub fn templates() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for file in seeds("chat_templates", "cases.json") {
        collect_templates(&serde_json::from_slice(&file).unwrap(), &mut found);
    }
    assert!(found.len() > 3, "only {} templates found", found.len());
    found
}

/// Collects every string in `value` that contains template tags.
fn collect_templates(value: &serde_json::Value, found: &mut Vec<Vec<u8>>) {
    match value {
        serde_json::Value::String(text) if text.contains("{%") => found.push(text.clone().into_bytes()),
        serde_json::Value::Array(list) => list.iter().for_each(|it| collect_templates(it, found)),
        serde_json::Value::Object(map) => map.values().for_each(|it| collect_templates(it, found)),
        _ => {}
    }
}

/// Changes some bytes, or removes or repeats a piece. Most changes are in the first kilobyte, which
/// holds headers.
fn mutated(mut bytes: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    let place = |dice: &mut Dice, len: usize| match dice.below(4) {
        0 => dice.below(len),
        _ => dice.below(len.min(1024)),
    };
    for _ in 0..=dice.below(MOST) {
        let at = place(dice, bytes.len());
        let end = (at + 1 + dice.below(MOST)).min(bytes.len());
        match dice.below(6) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            2 => bytes.truncate(at + 1),
            _ if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0xff, dice.below(256) as u8][dice.below(5)],
            _ => {}
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Calls `check` with the seeds and with [`MUTATIONS`] mutations of them.
pub fn hold(seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| check(seed));
    let mut dice = Dice(1);
    for round in 0..MUTATIONS {
        check(&mutated(seeds[round % seeds.len()].clone(), &mut dice));
    }
}
