//! Checks the fuzz targets' properties on mutated fixtures and on random bytes, the same in every
//! run.

use thermocline_tests::{
    dice::Dice,
    fuzzed::{gguf, gpuidx, pictures, sidecar, tokenizer},
    mutations::{MUTATIONS, hold, seeds},
    picture_bombs::{FORMATS, bombs},
};

/// Returns random bytes behind `first`.
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
fn random_vocabularies_are_refused_or_stream_what_they_decode() {
    let mut dice = Dice(4);
    (0..MUTATIONS).for_each(|_| tokenizer::check(&noise(b"", &mut dice)));
}

#[test]
fn damaged_pictures_of_every_format_are_refused_or_decoded_whole() {
    for format in FORMATS {
        hold(&seeds("pictures/files", format), pictures::check);
        // The decoder reads past the header, to the end of the data.
        bombs(format, 900).iter().for_each(|file| pictures::check(file));
    }
}
