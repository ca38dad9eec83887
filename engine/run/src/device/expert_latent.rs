//! The latent in which an MoE layer's routed experts work.

use super::{
    GpuLoader, elementwise::Elementwise, expert_buffers::ExpertBuffers, product::Product, registers::Registers,
    resident_experts::WHAT,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, BufferRows, Epilogue, Matmul, MatmulOutput};
use thermocline_model::{ExpertWeights, Register};

/// The maps of routed experts into the latent and out of it.
#[derive(Debug)]
pub(crate) struct ExpertLatentOps {
    pub down: Product,
    /// `Out = up(sum)`, and `Out += up(sum)`.
    pub up: Product,
    pub up_added: Vec<Matmul>,
    /// `Out +=` the shared expert's output.
    pub add_shared: Option<Elementwise>,
}

impl ExpertLatentOps {
    /// Uploads both maps. The map into the latent reads `from`, the map out of it writes to
    /// `registers`' `Out`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &ExpertBuffers,
        weights: &ExpertWeights,
        registers: &Registers,
        from: &Buffer,
    ) -> Result<Option<Self>> {
        let (Some(latent), Some(own)) = (&weights.latent, &buffers.latent) else { return Ok(None) };
        if buffers.shared.as_ref().is_some_and(|shared| shared.gate.is_some()) {
            return Err(Error::unsupported(
                "experts on the GPU",
                "a latent beside a shared expert with a gate",
                "a shared expert without a gate",
            ));
        }
        let (out, pitch) = (registers.get(Register::Out), registers.pitch);
        let x = BufferRows { buffer: &own.x, pitch: buffers.row };
        let down = Product::new(loader, WHAT, &[&latent.down], from, x)?;
        let up = Product::new(loader, WHAT, &[&latent.up], &own.sum, registers.rows(Register::Out))?;
        let into = MatmulOutput { buffer: out, pitch, offset: 0, epilogue: Epilogue::Accumulate };
        let up_added = up.matrices.iter().map(|matrix| Matmul::with(loader.gpu, matrix, &own.sum, None, &into));
        let up_added = up_added.collect::<Result<_>>()?;
        let add_shared = buffers
            .shared
            .as_ref()
            .map(|shared| Elementwise::new(loader.gpu, "add", &[], &[out, &shared.output], registers.d_model, pitch));
        Ok(Some(ExpertLatentOps { down, up, up_added, add_shared: add_shared.transpose()? }))
    }
}
