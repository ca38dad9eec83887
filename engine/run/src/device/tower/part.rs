//! Loads the parts of a tower on a device, one after another.

use std::ops::ControlFlow;

use super::{
    super::{
        norm::{NormForm, NormOp, NormWeights},
        segment::Segment,
    },
    buffers::{PictureBuffers, PictureSize},
    join::JoinOps,
    layer::LayerOps,
    merger::MergerOps,
    picture::ring_bytes,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Caps, Gpu, Purpose, Uploader};
use thermocline_model::{Merger, Norm, Tower, TowerConfig, TowerLayer};

/// Bytes of a load. Two loads have staging buffers at a time.
const LOAD: u64 = 2 << 20;

/// Uploads the weights of a tower.
#[derive(Debug)]
pub(super) struct TowerLoader<'a, 'p> {
    pub gpu: &'a Gpu,
    pub config: &'a TowerConfig,
    /// The patches of the picture that the next part computes.
    pub size: PictureSize,
    pub uploader: Uploader<'p>,
}

/// A layer of a tower with the merger of its output and the join behind it, or the merger behind
/// the last layer.
#[derive(Debug)]
pub(super) struct TowerPart {
    pub layer: Option<LayerOps>,
    pub merger: Option<MergerOps>,
    pub join: Option<JoinOps>,
    /// The patches that it computes.
    pub size: PictureSize,
}

/// The weights of a [`TowerPart`].
#[derive(Debug, Clone, Copy)]
struct PartWeights<'a> {
    layer: Option<&'a TowerLayer>,
    merger: Option<&'a Merger>,
}

impl TowerLoader<'_, '_> {
    /// Prepares a norm of rows of `from`.
    pub fn norm(&mut self, norm: &Norm, from: &Buffer, into: &Buffer) -> Result<NormOp> {
        let form = NormForm { kind: self.config.norm, residual_scale: 1.0 };
        let weights = NormWeights::upload(&mut self.uploader, norm, self.config.norm_eps)?;
        NormOp::of(self.gpu, form, &weights, from, None, into)
    }

    /// Uploads a vector.
    pub fn vector(&mut self, values: &[f32]) -> Result<Buffer> {
        self.uploader.vector(Purpose::Vectors, "a norm of heads", values)
    }
}

/// Loads the parts of `tower` that a device computes, one after another, and calls `use_part` with
/// each. During the call the device is idle, and the previous part is still loaded. The previous
/// part is released after the call.
///
/// # Errors
/// [`Error::Memory`] if a part does not fit the budget, and the errors of `use_part`.
pub(super) fn each_part(
    gpu: &Gpu,
    tower: &Tower,
    buffers: &PictureBuffers,
    use_part: &mut dyn FnMut(&TowerPart) -> Result<()>,
) -> Result<()> {
    let mut go_on = |_, _| ControlFlow::Continue(());
    let uploader = Uploader::with_loads(gpu, LOAD, &mut go_on)?;
    let mut loader = TowerLoader { gpu, config: &tower.config, size: buffers.size, uploader };
    let layers = tower.weights.layers.iter();
    let layers = layers.map(|layer| PartWeights { layer: Some(layer), merger: layer.deepstack.as_ref() });
    let head = tower.merger().map(|merger| PartWeights { layer: None, merger: Some(merger) });
    let mut before = None;
    let load_all = || {
        for PartWeights { layer, merger } in layers.chain(head) {
            let join = layer.and_then(|layer| layer.join.as_ref());
            let layer = layer.map(|layer| LayerOps::new(&mut loader, buffers, layer)).transpose()?;
            let merger = merger.map(|merger| MergerOps::new(&mut loader, buffers, merger)).transpose()?;
            let join = join.map(|join| JoinOps::new(&mut loader, buffers, join)).transpose()?;
            loader.uploader.arrive()?;
            let part = TowerPart { layer, merger, join, size: loader.size };
            if part.join.is_some() {
                loader.size = loader.size.joined(tower.config.first_merge.pow(2));
            }
            use_part(&part)?;
            before = Some(part);
        }
        Ok(())
    };
    let loaded = load_all();
    // Bytes that the device still uses must not be given back.
    loader.uploader.finish()?;
    drop(before);
    loaded
}

/// True if a device can compute a part of `tower`, which needs layers.
pub(crate) fn has_device_form(tower: &Tower) -> bool {
    !tower.weights.layers.is_empty()
}

/// Bytes that `tower` takes at most on a device with the limits of `caps` while it computes a
/// picture of `patches` patches: buffers, and the two largest parts that follow each other. They
/// are counted by loading the tower on a device that only counts.
///
/// # Errors
/// [`Error::Memory`] if a buffer exceeds the limits, [`Error::Unsupported`] for a tower that no
/// device computes, [`Error::Gpu`] if the limits are too small for the kernels.
pub fn tower_bytes(caps: &Caps, tower: &Tower, patches: usize) -> Result<u64> {
    if !has_device_form(tower) {
        return Err(Error::unsupported("vision tower on the GPU", "no layers", "layers"));
    }
    let gpu = Gpu::counting(*caps, None)?;
    let before = gpu.arena().used();
    let size = PictureSize::new(&tower.config, patches);
    let buffers = PictureBuffers::new(&gpu, tower, size)?;
    let _segment = Segment::new(&gpu, ring_bytes(&tower.config, size), 0, 0)?;
    let mut most = 0;
    each_part(&gpu, tower, &buffers, &mut |_| {
        most = gpu.arena().used().max(most);
        Ok(())
    })?;
    Ok(most.saturating_sub(before))
}
