//! Linear maps, the building blocks of all parts.

use crate::load::Loader;
use thermocline_base::error::Result;
use thermocline_cpu::MatmulJob;
use thermocline_formats::format::Matrix;

/// A linear map, `y = W x + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: Matrix,
    /// `[outputs]`
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// Returns the job that computes the product into `out`.
    pub fn job<'a>(&'a self, out: &'a mut [f32]) -> MatmulJob<'a> {
        MatmulJob { weight: &self.weight, bias: self.bias.as_deref(), out }
    }

    /// Splits `{stem}.weight` into linear maps of `rows[i]` rows each, which share its data.
    pub(crate) fn split<const N: usize>(
        loader: &Loader<'_>,
        stem: &str,
        cols: usize,
        rows: [usize; N],
    ) -> Result<[Self; N]> {
        let name = format!("{stem}.weight");
        let Linear { weight, bias } = loader.linear(stem, rows.iter().sum(), cols)?;
        let mut start = 0;
        let mut parts = Vec::with_capacity(N);
        for len in rows {
            let bias = bias.as_ref().map(|bias| bias[start..start + len].to_vec());
            parts.push(Linear { weight: loader.slice(&weight, &name, start, len)?, bias });
            start += len;
        }
        parts.try_into().map_err(|_| loader.missing_tensor(&name, format!("{N} parts")))
    }
}
