//! The identity of a picture.

use std::fmt;

use sha2::{Digest, Sha256};

/// SHA-256 of a picture's size and pixels. Two files with the same pixels have the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PictureHash(pub [u8; 32]);

impl PictureHash {
    /// Hashes a picture of this size.
    pub(super) fn of(width: usize, height: usize, rgb: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for side in [width, height] {
            hash.update((side as u64).to_le_bytes());
        }
        hash.update(rgb);
        PictureHash(hash.finalize().into())
    }
}

impl fmt::Display for PictureHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
