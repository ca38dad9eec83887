//! Fit of a model's files in the memory of a computer, before they are downloaded.

/// Memory that the system and other programs need, in bytes.
const OTHERS: f64 = 2e9;

/// Memory a model takes beside its file, as a fraction of that: cache and buffers.
const BESIDE: f64 = 0.15;

/// Fraction of the VRAM that a model may take beside RAM: hot weights in VRAM stay mapped in RAM as well, but need not stay in
/// its cache.
const OF_VRAM: f64 = 0.8;

/// Place that has room for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFit {
    /// The memory of the graphics card has room for all of it.
    Card,
    /// RAM, with that of the card, has room for it.
    Memory,
    /// None: it would be read from disk all the time.
    TooLarge,
}

impl MemoryFit {
    /// The fit of a model of so many `bytes` on a computer with so many bytes of RAM and VRAM.
    pub fn of(bytes: f64, ram: u64, vram: u64) -> Self {
        let needed = bytes * (1.0 + BESIDE);
        if needed <= vram as f64 {
            MemoryFit::Card
        } else if needed + OTHERS <= ram as f64 + vram as f64 * OF_VRAM {
            MemoryFit::Memory
        } else {
            MemoryFit::TooLarge
        }
    }

    /// It in words.
    pub fn words(self) -> &'static str {
        match self {
            MemoryFit::Card => "fits into the card",
            MemoryFit::Memory => "fits into memory",
            MemoryFit::TooLarge => "larger than this computer's memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_leaves_room_for_the_cache_and_for_other_programs() {
        const GB: u64 = 1_000_000_000;
        let fit = |gigabytes: f64, ram: u64, vram: u64| MemoryFit::of(gigabytes * 1e9, ram * GB, vram * GB);
        assert_eq!(fit(6.0, 16, 8), MemoryFit::Card);
        assert_eq!(fit(7.5, 16, 8), MemoryFit::Memory, "no room for its cache");
        assert_eq!(fit(12.0, 16, 0), MemoryFit::Memory);
        assert_eq!(fit(13.0, 16, 0), MemoryFit::TooLarge);
        assert_eq!(fit(0.5, 0, 0), MemoryFit::TooLarge);
    }
}
