//! GGUF files of random structure, the same in every run.

use arbitrary::Unstructured;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::raw_gguf::arbitrary_file;

/// Number of random files that tests read.
pub const RANDOM_FILES: u64 = 20_000;

/// Returns random file `number`. Many files are nearly valid.
///
/// # Panics
/// If the random bytes do not suffice for a file.
pub fn random_file(number: u64) -> Vec<u8> {
    let mut seed = vec![0; 1024];
    ChaCha8Rng::seed_from_u64(number).fill_bytes(&mut seed);
    arbitrary_file(&mut Unstructured::new(&seed)).unwrap_or_else(|error| panic!("{error}"))
}
