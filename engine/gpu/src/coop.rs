//! Trial of matrix products in hardware. The extension is experimental in wgpu, and drivers differ.
//! The products are used if their sums are right and they are faster than the plain kernel.

use std::time::Duration;

use super::{
    FallbackPart, Gpu, GpuFeature, LargestError, ProductSample, RiskyStep, SampleSize, WeightType,
    tune::{KernelShape, shortest_time},
};
use thermocline_base::error::Result;
use thermocline_formats::quant::TensorType;

/// Size of the sample. No dimension is a multiple of a tile.
const SIZE: SampleSize = SampleSize { rows: 1000, cols: 1056, tokens: 100, outliers: false };
/// Products per measurement.
const PRODUCTS: usize = 4;

/// True if the kernel for the device's tiles is correct and faster than `gemm`. Any failure except
/// the loss of the device returns false.
pub(super) fn usable(gpu: &Gpu) -> Result<bool> {
    let Some(tile) = KernelShape::tiles(gpu.caps()) else { return Ok(false) };
    let what = FallbackPart::Feature(GpuFeature::CooperativeMatrices);
    let sentinel = gpu.guard(RiskyStep::Trial, what, "during a trial of cooperative matrices");
    let outcome = compare(gpu);
    drop(sentinel);
    gpu.check_trial(tile.kernel(), Some(WeightType::Q8_0))?;
    let (usable, why) = match outcome {
        Ok(found) if !found.difference.is_right() => {
            let why = "cooperative matrices computed wrong sums";
            gpu.give_up(GpuFeature::CooperativeMatrices, why);
            (false, why.to_owned())
        }
        Ok(ProductTrial { plain, cooperative, .. }) => {
            (cooperative < plain, format!("they take {cooperative:?}, and the plain kernel takes {plain:?}"))
        }
        Err(error) => (false, error.to_string()),
    };
    tracing::info!(adapter = gpu.report().name, usable, why, "cooperative matrices were tried");
    Ok(usable)
}

/// Returns the error of the hardware products and the times of both kernels.
#[derive(Debug)]
struct ProductTrial {
    difference: LargestError,
    plain: Duration,
    cooperative: Duration,
}

fn compare(gpu: &Gpu) -> Result<ProductTrial> {
    let sample = ProductSample::new(gpu, TensorType::Q8_0, SIZE)?;
    let plain = sample.product(gpu, KernelShape::DEFAULT)?;
    let cooperative = sample.product(gpu, KernelShape { cooperative: true, ..KernelShape::DEFAULT })?;
    let difference = sample.difference(gpu, &cooperative, SIZE.tokens, true)?;
    let time = |product| shortest_time(gpu, product, SIZE.tokens, PRODUCTS);
    Ok(ProductTrial { difference, plain: time(&plain)?, cooperative: time(&cooperative)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuOptions;
    use thermocline_base::error::Error;

    #[test]
    fn usable_is_false_where_the_kernel_does_not_compile() {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        assert!(gpu.caps().cooperative.is_none(), "the tests' driver has none");
        assert!(!usable(&gpu).unwrap());
        // The kernel needs a feature that the device does not have.
        assert!(matches!(compare(&gpu), Err(Error::Gpu { reason, .. }) if reason.contains("gemm_coop")));
        assert!(gpu.lost().is_none());
        let sample = ProductSample::new(&gpu, TensorType::Q8_0, SIZE).unwrap();
        assert!(sample.check(&gpu, KernelShape::DEFAULT, SIZE.tokens).unwrap().is_right());
    }
}
