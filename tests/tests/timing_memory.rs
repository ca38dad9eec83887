//! Measures with a counting allocator how much memory a hostile file can make a reader allocate,
//! and how long it can keep the reader busy. The counter counts the whole program, so this test has
//! a program of its own.

use std::{path::Path, time::Duration};

use cpu_time::ThreadTime;
use peak_alloc::PeakAlloc;
use thermocline_engine::{
    Result,
    format::{Bytes, Checkpoint, gguf::from_bytes},
    pictures::Picture,
};
use thermocline_tests::{
    picture_bombs::{self, FORMATS},
    random_files::{RANDOM_FILES, random_file},
    raw_gguf::{RawGguf, array, pair, tensor},
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

/// Reads `bytes`. Also returns the maximum number of bytes allocated at one time.
fn read(bytes: Vec<u8>) -> (Result<Checkpoint>, usize) {
    let bytes = Bytes::new(bytes);
    let started = ThreadTime::now();
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let result = from_bytes(Path::new("test.gguf"), bytes);
    let peak = ALLOCATOR.peak_usage().saturating_sub(before);
    assert!(started.elapsed() < Duration::from_secs(1));
    (result, peak)
}

#[test]
fn allocations_stay_near_the_file_size_for_malformed_files() {
    bombs();
    every_truncation();
    every_flipped_bit();
    every_random_file();
    large_but_honest();
    large_pictures();
}

/// The reader refuses a file of a kilobyte that promises gigabytes before it allocates memory for
/// it.
fn bombs() {
    let bomb = |spoil: fn(&mut RawGguf)| {
        let mut file = RawGguf::tiny();
        spoil(&mut file);
        let (result, peak) = read(file.to_bytes());
        assert!(result.is_err());
        assert!(peak < MIB / 4, "{peak} bytes for {result:?}");
    };
    for ty in 0..=12 {
        let mut file = RawGguf::tiny();
        file.pairs.push(array("bomb", ty, 1 << 30, &[]));
        let (result, peak) = read(file.to_bytes());
        assert!(result.is_err() && peak < MIB / 4, "{peak} bytes for {result:?}");
    }
    bomb(|file| file.pairs.push(pair("bomb", 8, &(1u64 << 30).to_le_bytes())));
    bomb(|file| file.pairs[3].key_len = Some(1 << 30));
    bomb(|file| file.tensors[0].name_len = Some(1 << 30));
    bomb(|file| file.tensor_count = Some(1_000_000));
    bomb(|file| file.pair_count = Some(1_000_000));
    bomb(|file| file.tensors[2].ne = vec![1 << 40]);
    // The file's length allows these counts, but its contents contradict them.
    bomb(|file| {
        file.data = 1_000_000;
        file.tensor_count = Some(20_000);
    });
    bomb(|file| {
        file.data = 1_000_000;
        file.pair_count = Some(50_000);
    });
    let mut file = RawGguf { data: 4 * MIB, ..RawGguf::tiny() };
    file.pairs.insert(0, array("bomb", 8, (4 * MIB / 8) as u64, &[]));
    let (result, peak) = read(file.to_bytes());
    assert!(result.is_err() && peak <= 16 * MIB, "{peak} bytes for {result:?}");
}

fn every_truncation() {
    let file = RawGguf::tiny().to_bytes();
    for len in 0..file.len() {
        let (result, peak) = read(file[..len].to_vec());
        assert!(result.is_err(), "{len} of {} bytes", file.len());
        assert!(peak < MIB, "{peak} bytes");
    }
}

fn every_flipped_bit() {
    let head = RawGguf::tiny().head().len();
    let file = RawGguf::tiny().to_bytes();
    for bit in 0..head * 8 {
        let mut file = file.clone();
        file[bit / 8] ^= 1 << (bit % 8);
        let (_, peak) = read(file);
        assert!(peak < MIB, "{peak} bytes");
    }
}

fn every_random_file() {
    for seed in 0..RANDOM_FILES {
        let (_, peak) = read(random_file(seed));
        assert!(peak < MIB, "{peak} bytes, seed {seed}");
    }
}

/// Measures the worst valid file of a megabyte.
fn large_but_honest() {
    let count = 100_000u64;
    let mut strings = RawGguf::empty();
    strings.pairs.push(array("empty.strings", 8, count, &vec![0; count as usize * 8]));
    let mut arrays = RawGguf::empty();
    let nested = [&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat().repeat(count as usize);
    arrays.pairs.push(array("empty.arrays", 9, count, &nested));
    let mut pairs = RawGguf::empty();
    pairs.pairs = (0..40_000).map(|at| pair(&format!("{at:x}"), 7, &[0])).collect();
    let mut tensors = RawGguf::tiny();
    tensors.tensors = (0..20_000).map(|at| tensor(&format!("{at:x}"), &[1], 24, at * 32)).collect();
    tensors.data = 20_000 * 32;
    for file in [strings, arrays, pairs, tensors] {
        let bytes = file.to_bytes();
        let len = bytes.len();
        let (result, peak) = read(bytes);
        assert!(result.is_ok(), "{result:?}");
        println!("{:.1} bytes per byte of file", peak as f64 / len as f64);
        assert!(peak <= 2 * len + 16 * MIB, "{peak} bytes for a file of {len}");
    }
}

/// A picture of a few bytes that is too large is refused before pixels are decoded. A picture
/// within the limits takes memory by its pixels.
fn large_pictures() {
    for format in FORMATS {
        for (side, most) in [(60_000, MIB), (2000, 16 * 2000 * 2000)] {
            for file in picture_bombs::bombs(format, side) {
                let started = ThreadTime::now();
                let before = ALLOCATOR.current_usage();
                ALLOCATOR.reset_peak_usage();
                let decoded = Picture::decode(&file);
                let peak = ALLOCATOR.peak_usage().saturating_sub(before);
                assert!(peak < most, "{format}, {side} pixels: {peak} bytes for {decoded:?}");
                assert!(decoded.is_err() || side < 60_000, "{format}: {decoded:?}");
                assert!(started.elapsed() < Duration::from_secs(10), "{format}: {:?}", started.elapsed());
            }
        }
    }
}
