//! Zeros for matrices that only have sizes.

use super::{Bytes, anonymous};
use thermocline_base::error::Result;

/// Zeros that many matrices share: address space that is never read and takes no memory.
#[derive(Debug, Default)]
pub struct Blank {
    longest: Option<Bytes>,
}

impl Blank {
    /// `len` zeros for `what`.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is no address space.
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
