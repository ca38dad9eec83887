//! Zeros for matrices of which only the size is needed.

use super::{Bytes, anonymous};
use thermocline_base::error::Result;

/// Zeros that many matrices share. They occupy address space, but are never read and take no
/// memory.
#[derive(Debug, Default)]
pub struct Blank {
    longest: Option<Bytes>,
}

impl Blank {
    /// Returns `len` zeros. `what` names their purpose in errors.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is not enough address
    /// space.
    pub fn bytes(&mut self, len: usize, what: &'static str) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new(Vec::new()));
        }
        match self.longest.as_ref().and_then(|longest| longest.slice(0..len)) {
            Some(bytes) => Ok(bytes),
            None => Ok(self.longest.insert(Bytes::new(anonymous(len, what)?)).clone()),
        }
    }
}
