//! Computes a picture with a tower on a device.

use bytemuck::{cast_slice, pod_collect_to_vec};

use super::{
    super::segment::{RingBytes, Segment},
    buffers::{PictureBuffers, PictureSize},
    part::{TowerPart, each_part, tower_bytes},
};
use crate::{
    device::GpuLoad,
    runtime::{PatchOrder, Probe, check_finite, rope_table},
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::Gpu;
use thermocline_model::{Tower, TowerConfig};

/// The results of a picture on a device.
#[derive(Debug)]
pub(crate) struct TowerOutputs {
    /// The embeddings, `[tokens, d_model]`. `None` if the CPU computes the tower's head.
    pub embeddings: Option<Vec<f32>>,
    /// Additions to the first layers of the text model, `[tokens, d_model]` each.
    pub deepstack: Vec<Vec<f32>>,
}

/// Bytes of the rings for the rows of a chunk and for its results.
pub(super) fn ring_bytes(config: &TowerConfig, size: PictureSize) -> RingBytes {
    let rows = size.chunk * config.width;
    let bytes = |floats: usize| (floats * size_of::<f32>()) as u64;
    RingBytes { up: bytes(rows), down: bytes(rows.max(size.tokens() * config.d_model)) }
}

/// Computes the layers of `tower`, and its head if that merges patches. `stream` is the residual
/// stream, `[patches, width]`. If the CPU computes the head, the stream becomes the output of the
/// last layer. After an error it is unchanged. All memory is free again at the end. `probe` may end
/// the computation between two layers.
///
/// # Errors
/// [`Error::Memory`] if the tower does not fit the rest of the budget or the device's limits,
/// [`Error::Unsupported`] for a variant without kernels, [`Error::Cancelled`] if `probe` says so,
/// [`Error::NotFinite`] if numbers overflow, [`Error::Gpu`] if the device is lost.
pub(crate) fn compute_tower(
    gpu: &Gpu,
    tower: &Tower,
    order: &PatchOrder,
    stream: &mut [f32],
    probe: &mut dyn Probe,
) -> Result<TowerOutputs> {
    let (wanted, available) = (tower_bytes(gpu.caps(), tower, order.len())?, gpu.arena().available());
    if wanted > available {
        return Err(Error::memory(ScarceMemory::Gpu, "a vision tower in GPU memory", wanted, available));
    }
    let config = &tower.config;
    let size = PictureSize::new(config, order.len());
    let buffers = PictureBuffers::new(gpu, tower, size)?;
    let mut segment = Segment::new(gpu, ring_bytes(config, size), 0, GpuLoad::default().submission)?;
    segment.start_chunk(size.chunk);
    upload(&mut segment, &buffers, config, order, stream)?;
    let mut merged = Vec::new();
    each_part(gpu, tower, &buffers, &mut |part| {
        if probe.cancelled() {
            return Err(Error::Cancelled);
        }
        merged.extend(compute_part(part, &mut segment, &buffers, order)?);
        Ok(())
    })?;
    for rows in &merged {
        check_finite("vision tower", rows)?;
    }
    let mut merged: Vec<Vec<f32>> = merged.into_iter().map(|rows| order.in_grid_order(rows, config.d_model)).collect();
    let embeddings = if tower.merger().is_some() { merged.pop() } else { None };
    if embeddings.is_none() {
        download(&mut segment, &buffers, stream)?;
    }
    Ok(TowerOutputs { embeddings, deepstack: merged })
}

/// Uploads the residual stream and the rotations.
fn upload(
    segment: &mut Segment,
    buffers: &PictureBuffers,
    config: &TowerConfig,
    order: &PatchOrder,
    stream: &[f32],
) -> Result<()> {
    let mut rotations = Vec::new();
    if let Some(rope) = config.rope {
        rope_table(config.heads.head_dim, rope).extend_rotations(order.positions(), &mut rotations);
    }
    let rows = [(stream, Some(&buffers.stream)), (&rotations[..], buffers.rotations.as_ref())];
    for (values, into) in rows.into_iter().filter_map(|(values, into)| Some((values, into?))) {
        let cols = values.len() / order.len();
        for chunk in buffers.size.chunks() {
            let (buffer, at, _) = into.place(&chunk);
            let values = &values[chunk.start * cols..chunk.end * cols];
            segment.begin(&[(cast_slice(values), buffer, at)])?;
            segment.submit()?;
        }
    }
    Ok(())
}

/// Computes a part. Returns the rows of its merger's tokens, in the order of `order`.
fn compute_part(
    part: &TowerPart,
    segment: &mut Segment,
    buffers: &PictureBuffers,
    order: &PatchOrder,
) -> Result<Option<Vec<f32>>> {
    if let Some(layer) = &part.layer {
        for chunk in part.size.chunks() {
            layer.record_inputs(segment, buffers, &chunk)?;
            segment.worked()?;
        }
        for chunk in part.size.chunks() {
            layer.record_outputs(segment, buffers, &chunk, part.size.patches, &order.windows)?;
            segment.worked()?;
        }
    }
    let merged = part.merger.as_ref().map(|merger| {
        let mut rows = Vec::new();
        part.size.chunks().try_for_each(|chunk| merger.read(segment, buffers, &chunk, &mut rows))?;
        Ok(rows)
    });
    if let Some(join) = &part.join {
        join.record(segment, buffers, part.size)?;
    }
    // The device computes while the next part is uploaded.
    segment.submit()?;
    merged.transpose()
}

/// Reads the residual stream back.
fn download(segment: &mut Segment, buffers: &PictureBuffers, stream: &mut [f32]) -> Result<()> {
    let cols = stream.len() / buffers.size.patches;
    let mut read_back = Vec::with_capacity(stream.len());
    for chunk in buffers.size.chunks() {
        let (buffer, at, bytes) = buffers.stream.place(&chunk);
        segment.read(&[(buffer, at, bytes)], |read| read_back.extend(pod_collect_to_vec::<u8, f32>(read)))?;
    }
    check_finite("vision tower", &read_back)?;
    stream[..buffers.size.patches * cols].copy_from_slice(&read_back);
    Ok(())
}
