//! The sizes of a model with neuron-major down projections, before these exist. Plans need them for
//! models that are not open.

use std::ops::ControlFlow;

use super::{
    Model,
    neuron_major::{cheapest, no_matrix},
};
use thermocline_base::error::Result;
use thermocline_cpu::ThreadPool;
use thermocline_formats::{
    format::{Blank, Matrix},
    quant::TensorType,
};

/// Approximate number of values from which a type is selected.
const SAMPLE: usize = 8192;

impl Model {
    /// Returns the expected result of [`Model::neuron_major`], for plans that need its sizes, and
    /// the bytes of memory of its new matrices. The new matrices have the right shapes, and types
    /// that suit normally distributed weights, but no content. The weights are not read.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is no address space for a
    /// matrix.
    pub fn neuron_major_outline(&self) -> Result<(Model, u64)> {
        let mut outline = BlankDowns::default();
        let mut bytes = 0;
        let mut transpose = |down: &Matrix| {
            let blank = outline.transposed(down)?;
            bytes += blank.data().len() as u64;
            Ok(blank)
        };
        let model = self.with_downs(&mut transpose, &mut |_, _| ControlFlow::Continue(()))?;
        Ok((model, bytes))
    }
}

/// Blank matrices of the expected types.
#[derive(Debug, Default)]
struct BlankDowns {
    blank: Blank,
    /// Selected types by file type and row length.
    types: Vec<((TensorType, usize), TensorType)>,
}

impl BlankDowns {
    /// Returns a blank `[n_ff, d]` matrix for `down` `[d, n_ff]`.
    fn transposed(&mut self, down: &Matrix) -> Result<Matrix> {
        let (d, n_ff) = (down.rows(), down.cols());
        let ty = self.selected_type(down.ty(), d)?;
        let no_matrix = || no_matrix(ty, n_ff, d);
        let bytes = ty.row_bytes(d).and_then(|row| row.checked_mul(n_ff)).ok_or_else(no_matrix)?;
        let data = self.blank.bytes(bytes, "outline of a down projection")?;
        Matrix::new(ty, n_ff, d, data).ok_or_else(no_matrix)
    }

    fn selected_type(&mut self, own: TensorType, d: usize) -> Result<TensorType> {
        if own.block_len() == 1 {
            return Ok(own);
        }
        let known = self.types.iter().find(|(of, _)| *of == (own, d));
        if let Some((_, ty)) = known {
            return Ok(*ty);
        }
        let sample = normal(SAMPLE.div_ceil(d.max(1)) * d);
        let ty = cheapest(&ThreadPool::new(Some(1)), own, d, &sample)?;
        self.types.push(((own, d), ty));
        Ok(ty)
    }
}

/// Returns `n` nearly normal values, as weights are. Every call returns the same values.
pub(crate) fn normal(n: usize) -> Vec<f32> {
    let mut seed = 4_u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..n).map(|_| (0..6).map(|_| uniform()).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neuron_major;
    use thermocline_formats::{format::Bytes, quant};

    #[test]
    fn outlines_have_the_types_and_shapes_of_transposed_matrices() {
        let pool = ThreadPool::new(Some(2));
        let mut outline = BlankDowns::default();
        for (ty, d, n_ff) in [
            (TensorType::F32, 33, 300),
            (TensorType::F16, 1, 0),
            (TensorType::BF16, 17, 3),
            (TensorType::Q4_0, 512, 768),
            (TensorType::Q4_0, 256, 2048),
            (TensorType::Q4_K, 512, 768),
            (TensorType::Q5_K, 512, 768),
            (TensorType::Q6_K, 512, 768),
            (TensorType::Q8_0, 512, 768),
            (TensorType::Q8_0, 24, 64),
        ] {
            let mut bytes = Vec::new();
            quant::quantise(ty, &normal(d * n_ff), &mut bytes).unwrap();
            let down = Matrix::new(ty, d, n_ff, Bytes::new(bytes)).unwrap();
            let (made, _) = neuron_major(&pool, &down).unwrap();
            let blank = outline.transposed(&down).unwrap();
            let of = |matrix: &Matrix| (matrix.ty(), matrix.rows(), matrix.cols(), matrix.data().len());
            assert_eq!(of(&blank), of(&made), "{ty} [{d}, {n_ff}]");
        }
    }
}
