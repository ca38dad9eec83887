//! Products whose results are added to the residual stream.

use super::{
    super::{elementwise::Elementwise, norm::NormOp},
    buffers::PictureBuffers,
    part::TowerLoader,
    products::TowerProducts,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{BufferRows, Recorder};
use thermocline_model::{Norm, TowerLinear};

/// A map whose result is added to the residual stream, perhaps after a norm.
#[derive(Debug)]
pub(super) struct AddedProducts {
    products: TowerProducts,
    norm: Option<NormOp>,
    add: Elementwise,
}

impl AddedProducts {
    /// Uploads `map`, whose inputs are `x`.
    pub fn new(
        loader: &mut TowerLoader<'_, '_>,
        buffers: &PictureBuffers,
        map: &TowerLinear,
        x: BufferRows<'_>,
    ) -> Result<Self> {
        let (width, out) = (loader.config.width, buffers.out());
        let products = TowerProducts::new(loader, buffers, &[map], x, out)?;
        let rows = [&buffers.stream.part, out.buffer];
        let add = Elementwise::new(loader.gpu, "add", &[("DELTA_SCALE", 1.0)], &rows, width, width)?;
        Ok(AddedProducts { products, norm: None, add })
    }

    /// Adds the norm of the result, if there is one.
    pub fn normed(
        self,
        loader: &mut TowerLoader<'_, '_>,
        buffers: &PictureBuffers,
        norm: Option<&Norm>,
    ) -> Result<Self> {
        let out = buffers.out().buffer;
        let width = loader.config.width;
        let norm = norm.map(|norm| Ok::<_, Error>(loader.norm(norm, out, out)?.with_pitch(width)));
        Ok(AddedProducts { norm: norm.transpose()?, ..self })
    }

    /// Multiply-adds per row.
    pub fn work(&self) -> u64 {
        self.products.work
    }

    /// Records the sums of the first `rows` rows.
    pub fn record(&self, recorder: &mut Recorder, rows: usize) {
        self.products.record(recorder, rows);
        if let Some(norm) = &self.norm {
            norm.record(recorder, rows, false);
        }
        self.add.record(recorder, rows);
    }
}
