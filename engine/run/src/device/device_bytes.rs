//! Counts the bytes that a model takes on a device. The model is loaded piece by piece on a device
//! that only counts, and the account is read before and after each piece. Only a buffer's
//! constructor decides how large it is.

use std::{collections::HashSet, ops::ControlFlow};

use super::{
    GpuLoader,
    device_ffn::DeviceFfn,
    device_model::DeviceModel,
    expert_matrices::expert_matrices,
    load::{FfnPart, GpuLoad},
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    resident_experts::ResidentExperts,
    resident_neurons::ResidentNeurons,
    slot_table::MOST_BLOCKS,
    streaming_buffer::{BufferSize, StreamingBuffer},
};
use crate::{
    placement::{DeviceBytes, LayerBytes},
    runtime::KvType,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Caps, Gpu, Purpose, Uploader};
use thermocline_model::{ExpertWeights, Ffn, Model};

/// Bytes that `model` takes on a device with the limits of `caps`, for chunks of `chunk` tokens and
/// caches of `kv_type`. If the limits allow only smaller chunks, the largest chunk that fits is
/// counted. If a device can choose between kernels, the count takes the kernel that needs more
/// memory. No load therefore takes more than the parts of its plan.
///
/// # Errors
/// [`Error::Memory`] if a single row is larger than the limits allow. [`Error::Unsupported`] for a
/// model that no device computes. [`Error::Gpu`] if the limits are too small for the kernels.
pub fn device_bytes(caps: &Caps, model: &Model, chunk: usize, kv_type: KvType) -> Result<DeviceBytes> {
    let chunk = chunk.max(1);
    match count(caps, model, chunk, kv_type) {
        Err(Error::Memory { .. }) if chunk > 1 => {}
        counted => return counted,
    }
    let (mut fits, mut above) = (count(caps, model, 1, kv_type)?, chunk);
    while above - fits.chunk > 1 {
        let middle = fits.chunk.midpoint(above);
        match count(caps, model, middle, kv_type) {
            Err(Error::Memory { .. }) => above = middle,
            counted => fits = counted?,
        }
    }
    Ok(fits)
}

/// Bytes in use, by purpose.
#[derive(Debug, Clone, Copy)]
struct BytesByPurpose([u64; Purpose::ALL.len()]);

impl BytesByPurpose {
    fn on(gpu: &Gpu) -> Self {
        BytesByPurpose(Purpose::ALL.map(|purpose| gpu.arena().used_for(purpose)))
    }

    fn of(&self, purpose: Purpose) -> u64 {
        self.0[purpose as usize]
    }

    fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counts the bytes that `make` adds to those in use on `gpu`, then drops its result.
fn added<R>(gpu: &Gpu, make: impl FnOnce() -> Result<R>) -> Result<BytesByPurpose> {
    let before = BytesByPurpose::on(gpu);
    let made = make()?;
    let after = BytesByPurpose::on(gpu);
    drop(made);
    Ok(BytesByPurpose(Purpose::ALL.map(|purpose| after.of(purpose).saturating_sub(before.of(purpose)))))
}

/// Counts the bytes for chunks of exactly `chunk` tokens. Returns [`Error::Memory`] if a buffer
/// would exceed the limits.
fn count(caps: &Caps, model: &Model, chunk: usize, kv_type: KvType) -> Result<DeviceBytes> {
    let gpu = Gpu::counting(*caps, None)?;
    let mut go_on = |_, _| ControlFlow::Continue(());
    let uploader = Uploader::new(&gpu, &mut go_on)?;
    let load = GpuLoad::default();
    let threshold_ratio = load.threshold_ratio;
    let mut loader = GpuLoader { gpu: &gpu, config: &model.config, chunk, threshold_ratio, uploader };
    let mut device = DeviceModel::new(&mut loader, 0, load.submission)?;
    let mut layers = Vec::with_capacity(model.config.n_layer());
    for _ in 0..model.config.n_layer() {
        layers.push(count_layer(&mut device, &mut loader, model)?);
    }
    // All layers are split at this point, so no hand-over can be larger.
    device.fit_buffers(model)?;
    for (layer, bytes) in layers.iter_mut().enumerate() {
        count_cache(&device, model, layer, kv_type, bytes)?;
        bytes.predictor = count_predictor(&mut device, &mut loader, model, layer)?;
        let UnitBytes { unit, padding } = count_units(&mut device, &mut loader, model, layer)?;
        bytes.unit = unit;
        bytes.split_tables += padding;
    }
    // FFNs that are only resident as a whole are on the device now, and they log more.
    device.fit_buffers(model)?;
    let head = added(&gpu, || device.layers.add_head(&mut loader, &model.weights))?;
    device.fit_buffers(model)?;
    let least = BufferSize::least(caps, model, chunk).map_or(0, |least| least.total());
    // Large experts need a larger buffer than small ones and neurons.
    let streamed = BufferSize::within(caps, model, chunk, load.streaming_buffer.max(least));
    let streaming_buffer = added(&gpu, || streamed.map(|size| StreamingBuffer::new(&gpu, &size)).transpose())?;
    // Counts the smallest staging of an uploader too, because every move allocates it again.
    let all = BytesByPurpose::on(&gpu);
    Ok(DeviceBytes {
        chunk,
        scratch: all.of(Purpose::Scratch) - head.of(Purpose::Scratch),
        staging: all.of(Purpose::Staging),
        streaming_buffer: streaming_buffer.total(),
        least_streaming_buffer: least,
        layers,
        head: head.of(Purpose::Head),
        head_vectors: head.of(Purpose::Vectors),
        head_scratch: head.of(Purpose::Scratch),
    })
}

/// Adds the next layer without any unit and counts its bytes. The layer stays loaded, and its
/// shared buffers are counted with all others.
fn count_layer(device: &mut DeviceModel, loader: &mut GpuLoader<'_, '_>, model: &Model) -> Result<LayerBytes> {
    let gpu = loader.gpu;
    let bytes = added(gpu, || device.push(loader, model, FfnPart::None, false))?;
    let ffn = bytes.of(Purpose::Ffn);
    let (routing, split_tables) = match device.ffns.last() {
        Some(DeviceFfn::Neurons(_)) => (0, ffn),
        _ => (ffn, 0),
    };
    let weights = &model.weights.layers[device.ffns.len() - 1];
    Ok(LayerBytes {
        attention: bytes.of(Purpose::Attention),
        vectors: bytes.of(Purpose::Vectors),
        routing,
        split_tables,
        by_unit: DeviceFfn::places_units(weights),
        ..LayerBytes::default()
    })
}

/// Counts keys and values of one token, and the recurrent state. Keys and values that several
/// layers read are counted with the last of these layers: from then on the device holds them or a
/// copy.
fn count_cache(
    device: &DeviceModel,
    model: &Model,
    layer: usize,
    kv_type: KvType,
    bytes: &mut LayerBytes,
) -> Result<()> {
    let (gpu, config) = (&device.layers.gpu, &model.config);
    let source = config.kv_source(layer);
    if !(layer + 1..config.n_layer()).any(|later| config.kv_source(later) == source) {
        // One token is the upper bound, because rounding adds less per token to larger buffers.
        bytes.kv_token = added(gpu, || device.layers.new_kv(model, layer, 1, kv_type))?.total();
    }
    bytes.state = added(gpu, || device.layers.new_state(layer))?.total();
    Ok(())
}

/// Counts the predictor with its buffers, if the layer's neurons are placed one by one.
fn count_predictor(
    device: &mut DeviceModel,
    loader: &mut GpuLoader<'_, '_>,
    model: &Model,
    layer: usize,
) -> Result<u64> {
    let of = (model.config.layers[layer].ffn_input(), &model.weights.layers[layer].predictor);
    let ((Some(from), Some(predictor)), DeviceFfn::Neurons(neurons)) = (of, &mut device.ffns[layer]) else {
        return Ok(0);
    };
    let gpu = loader.gpu;
    let bytes = added(gpu, || neurons.add_predictor(loader, predictor, &device.layers.registers, from))?;
    neurons.predictor = None;
    Ok(bytes.total())
}

/// Bytes of the units of a layer.
#[derive(Debug, Clone, Copy, Default)]
struct UnitBytes {
    /// Bytes of one unit (for neurons, of a slot).
    unit: u64,
    /// Largest number of padding bytes, with as many blocks as a layer may have.
    padding: u64,
}

/// Counts the units of a layer. An FFN that is resident only as a whole stays loaded, because its
/// buffers are counted later.
fn count_units(
    device: &mut DeviceModel,
    loader: &mut GpuLoader<'_, '_>,
    model: &Model,
    layer: usize,
) -> Result<UnitBytes> {
    let ffn = &model.weights.layers[layer].ffn;
    match (&mut device.ffns[layer], ffn) {
        (DeviceFfn::Neurons(neurons), _) => count_neurons(neurons, loader, NeuronWeights::of_ffn(ffn)?),
        (DeviceFfn::Experts(experts), Ffn::Experts(weights)) => count_experts(experts, loader, weights),
        (DeviceFfn::Cold, Ffn::Dense(_)) => {
            let gpu = loader.gpu;
            let whole = added(gpu, || {
                device.ffns[layer] = device.upload_ffn(loader, model, layer, FfnPart::All, false)?;
                Ok(())
            })?;
            let bytes = whole.of(Purpose::Ffn) + whole.of(Purpose::Vectors);
            Ok(UnitBytes { unit: bytes.div_ceil(ffn.units().max(1) as u64), padding: 0 })
        }
        // A load refuses experts that cannot be resident one by one.
        _ => Ok(UnitBytes::default()),
    }
}

fn count_neurons(
    neurons: &mut ResidentNeurons,
    loader: &mut GpuLoader<'_, '_>,
    weights: NeuronWeights<'_>,
) -> Result<UnitBytes> {
    let gpu = loader.gpu;
    let mut bytes_of = |blocks: &[&[u32]]| {
        let bytes = added(gpu, || blocks.iter().try_for_each(|block| neurons.append(loader, weights, block, false)))?;
        neurons.drop_to(0);
        Ok::<_, Error>(bytes.total())
    };
    let some: Vec<u32> = (0..weights.neurons().min(MOST_BLOCKS * SLOT_MULTIPLE) as u32).collect();
    let blocks: Vec<&[u32]> = some.chunks(SLOT_MULTIPLE).collect();
    let Some(first) = blocks.first() else { return Ok(UnitBytes::default()) };
    // The kernels' code books are uploaded with the first units and stay.
    bytes_of(&[first])?;
    let (one, several, slots) = (bytes_of(&[first])?, bytes_of(&blocks)?, SLOT_MULTIPLE as u64);
    let unit = match some.get(..2 * SLOT_MULTIPLE) {
        Some(twice) => (bytes_of(&[twice])? - one) / slots,
        None => one / slots,
    };
    Ok(UnitBytes { unit, padding: several.saturating_sub(blocks.len() as u64 * slots * unit) })
}

fn count_experts(
    experts: &mut ResidentExperts,
    loader: &mut GpuLoader<'_, '_>,
    weights: &ExpertWeights,
) -> Result<UnitBytes> {
    let (gpu, matrices, none) = (loader.gpu, expert_matrices(loader.gpu, weights)?, HashSet::new());
    let mut one = || {
        let bytes = added(gpu, || experts.bring(loader, &matrices, &[0], &none, u64::MAX))?;
        experts.drop_to(0);
        Ok::<_, Error>(bytes.total())
    };
    // The kernels' code books are uploaded with the first units and stay. A larger block wastes
    // less per unit on rounding.
    one()?;
    Ok(UnitBytes { unit: one()?, padding: 0 })
}

#[cfg(test)]
mod tests;
