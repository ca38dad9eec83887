//! Where the forward pass keeps its activations.

use super::{elementwise::Elementwise, loader::Loader};
use crate::{
    error::Result,
    gpu::{Buffer, pitch},
    model::Register,
};

/// By [`Register`], `[chunk, pitch]`.
#[derive(Debug)]
pub(super) struct Registers {
    buffers: [Buffer; 4],
    /// `Residual += Out`
    pub add: Elementwise,
    /// Width.
    pub d_model: usize,
    /// Elements from one row to the next.
    pub pitch: usize,
}

impl Registers {
    pub fn new(loader: &Loader<'_, '_>) -> Result<Self> {
        let (d_model, pitch) = (loader.config.d_model, pitch(loader.config.d_model));
        let register = || loader.scratch("a register", loader.chunk * pitch);
        let buffers = [register()?, register()?, register()?, register()?];
        let [residual, .., out] = &buffers;
        let add = Elementwise::new(loader.gpu, "add", &[], &[residual, out], (d_model, pitch))?;
        Ok(Registers { buffers, add, d_model, pitch })
    }

    pub fn get(&self, register: Register) -> &Buffer {
        &self.buffers[register as usize]
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.pitch as u64 * 4
    }
}
