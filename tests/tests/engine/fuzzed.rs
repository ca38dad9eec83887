//! The fuzz targets' properties on mutated fixtures and on bytes of no structure, the same each time.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, path::PathBuf};

use thermocline_tests::{
    dice::Dice,
    fuzzed::{gguf, gpuidx, sidecar, template, tokenizer},
};

use super::models::fixtures;

/// Number of mutations of all seeds together.
const MUTATIONS: usize = 400;
/// Greatest number of changed bytes, removed bytes or repeated bytes of a mutation.
const MOST: usize = 12;

/// The files of a folder of the fixtures that end in `suffix`, of no more than a megabyte.
fn seeds(folder: &str, suffix: &str) -> Vec<Vec<u8>> {
    let paths = fs::read_dir(fixtures().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(suffix)).collect();
    paths.sort();
    let files = paths.iter().map(|path| fs::read(path).unwrap());
    let files: Vec<Vec<u8>> = files.filter(|file| file.len() <= 1 << 20).collect();
    assert!(!files.is_empty(), "no {suffix} in {folder}");
    files
}

/// `bytes` with some of them changed, or a piece of them removed or repeated. Most places are in the first kilobyte, where headers are.
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

/// `check` on the seeds, and on [`MUTATIONS`] mutations of them.
fn hold(seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    seeds.iter().for_each(|seed| check(seed));
    let mut dice = Dice(1);
    for round in 0..MUTATIONS {
        check(&mutated(seeds[round % seeds.len()].clone(), &mut dice));
    }
}

/// Bytes of no structure, `first` before them.
fn noise(first: &[u8], dice: &mut Dice) -> Vec<u8> {
    let len = dice.below(2048);
    first.iter().copied().chain((0..len).map(|_| dice.below(256) as u8)).collect()
}

#[test]
fn mutated_gguf_files_are_refused_or_read_and_written_unchanged() {
    hold(&seeds("malformed", ".gguf"), gguf::check);
    let mut dice = Dice(2);
    (0..MUTATIONS).for_each(|_| gguf::check(&noise(b"S", &mut dice)));
}

#[test]
fn mutated_indices_of_powerinfer_are_refused_or_agree_with_themselves() {
    hold(&seeds("powerinfer", ".gpuidx"), gpuidx::check);
}

#[test]
fn damaged_sidecars_are_refused_or_read_and_written_unchanged() {
    let mut dice = Dice(3);
    for _ in 0..MUTATIONS {
        let mut damage = noise(b"D", &mut dice);
        damage.truncate(1 + dice.below(64));
        sidecar::check(&damage);
    }
    sidecar::check(b"D");
    hold(&seeds("malformed", ".gguf")[..2], sidecar::check);
}

#[test]
fn mutated_chat_templates_render_or_fail_soon() {
    let cases: serde_json::Value =
        serde_json::from_slice(&fs::read(fixtures().join("chat_templates/cases.json")).unwrap()).unwrap();
    let mut seeds = Vec::new();
    collect_templates(&cases, &mut seeds);
    assert!(seeds.len() > 3, "only {} templates found", seeds.len());
    hold(&seeds, |bytes| template::check(&String::from_utf8_lossy(bytes)));
}

/// Every text in `value` that has the marks of a template.
fn collect_templates(value: &serde_json::Value, found: &mut Vec<Vec<u8>>) {
    match value {
        serde_json::Value::String(text) if text.contains("{%") => found.push(text.clone().into_bytes()),
        serde_json::Value::Array(list) => list.iter().for_each(|it| collect_templates(it, found)),
        serde_json::Value::Object(map) => map.values().for_each(|it| collect_templates(it, found)),
        _ => {}
    }
}

#[test]
fn random_vocabularies_are_refused_or_stream_what_they_decode() {
    let mut dice = Dice(4);
    (0..MUTATIONS).for_each(|_| tokenizer::check(&noise(b"", &mut dice)));
}
