//! Bytes that a model takes on a device, reckoned before anything is there from the sizes of the buffers that a load makes.

use std::collections::BTreeSet;

use thermocline_shaders::WeightType;

use super::{
    altup::AltupBuffers,
    attention::AttentionBuffers,
    device_ffn::{DeviceFfn, units},
    expert_buffers::ExpertShape,
    ffn::FfnBuffers,
    fired::FiredMask,
    hand_over::expert_choice_bytes,
    head::{self, Head},
    layers::upload_bytes,
    load::{GpuLoad, chunk_within},
    neuron_buffers::NeuronBuffers,
    neuron_rows::PartialSumBuffer,
    per_layer::PerLayerBuffers,
    recurrent::{self, RecurrentBuffers},
    resident_experts::logged_words as expert_words,
    segment::timestamp_bytes,
    state::{GpuState, StateCopies},
    streaming_buffer::streaming_buffer_bytes,
};
use crate::{
    error::Result,
    gpu::{Caps, ExpertPairs, GpuMatrix, pitch},
    model::{
        AttentionConfig, Down, ExpertWeights, Ffn, FfnWeights, LayerWeights, Linear, Model, ModelConfig, Norm,
        PerLayerWeights, Predictor, PredictorKind,
    },
    placement::{DeviceBytes, LayerBytes},
    quant::{device_row_bytes, device_type},
    runtime::KvType,
};

/// Buffers are multiples of this.
const ROUNDED: u64 = 16;
/// Bytes that splitting one layer's neurons into blocks may cost in padding.
const PIECES: u64 = 16 << 10;

/// Bytes that `model` takes on a device with the limits of `caps`, computing `chunk` tokens at once, with caches of `kv_type`.
///
/// # Errors
/// [`crate::Error::Memory`] if a single row is larger than the limits allow.
pub fn device_bytes(caps: &Caps, model: &Model, chunk: usize, kv_type: KvType) -> Result<DeviceBytes> {
    let (config, weights) = (&model.config, &model.weights);
    let chunk = chunk_within(caps, config, weights, chunk);
    let row = pitch(config.d_model);
    let registers = 4 * floats(chunk * row);
    let attention = AttentionBuffers::scratch_floats(caps, config, chunk).into_iter().map(floats).sum::<u64>();
    let mixers = RecurrentBuffers::scratch_floats(config, chunk).into_iter().map(floats).sum::<u64>();
    let mut ffn = 0;
    for (at, layer) in weights.layers.iter().enumerate() {
        let shared = at > 0 && same_scratch(&weights.layers[at - 1], layer);
        if !shared {
            ffn += ffn_scratch(caps, config, &layer.ffn, chunk);
        }
    }
    // Layers reuse the buffers of dense FFNs beside experts.
    let beside = weights.layers.iter().filter_map(|layer| layer.beside_experts.as_ref());
    ffn += beside.map(|ffn| dense_scratch(caps, config, ffn, chunk)).max().unwrap_or(0);
    let neurons = weights.layers.iter().map(|layer| units(&layer.ffn)).max().unwrap_or(0);
    // Scores, masks and lists of one token, and the firing log: one token's in every layer, or a chunk's in one.
    let words = weights.layers.iter().map(|layer| logged_words(config, &layer.ffn)).max().unwrap_or(0);
    let logged = floats(words * config.n_layer().max(chunk));
    let sparse = 4 * floats(pitch(neurons)) + logged + PIECES;
    let quantised = quantised_bytes(model) + code_book_bytes(model);
    let logits = floats(Head::logits_floats(caps, config, chunk));
    let shortlists = 4 * floats(head::shortlist_floats(config.n_vocab));
    let up = upload_bytes(config, chunk);
    // Two uploads in flight, results, timestamps, and hand-overs: the FFN's input down, the CPU's partial sum up.
    let pairs = config.experts.map_or(0, |experts| expert_choice_bytes(chunk, experts.used));
    let handed = 3 * floats(chunk * row) + pairs;
    let inputs = PerLayerBuffers::scratch_floats(config, chunk).map(floats).iter().sum::<u64>();
    let inputs = if config.per_layer_input.is_some() { inputs } else { 0 };
    let streams = AltupBuffers::scratch_floats(config, chunk).map(floats);
    let streams_back = streams[0];
    let streams = if config.altup.is_some() { streams.iter().sum::<u64>() } else { 0 };
    let layers = weights.layers.iter().enumerate();
    let layers = layers.map(|(at, layer)| layer_bytes(caps, config, at, layer, kv_type));
    Ok(DeviceBytes {
        chunk,
        scratch: registers + attention + mixers + inputs + streams + ffn + sparse + quantised + ROUNDED,
        staging: 2 * (up + StateCopies::ring_bytes(config))
            + logits
            + streams_back
            + handed
            + logged
            + 2 * timestamp_bytes(caps.timestamps, config.n_layer()),
        streaming_buffer: streaming_buffer_bytes(caps, &weights.layers, GpuLoad::default().streaming_buffer),
        layers: layers.collect::<Result<_>>()?,
        head: matrix(caps, &[&weights.output])?,
        head_vectors: norm_bytes(&weights.output_norm) + bias_bytes(&weights.output),
        // A tied head also has the tokens' ids.
        head_scratch: logits + shortlists + floats(chunk),
    })
}

/// Bytes of `layer`, resident.
fn layer_bytes(
    caps: &Caps,
    config: &ModelConfig,
    at: usize,
    layer: &LayerWeights,
    kv_type: KvType,
) -> Result<LayerBytes> {
    let shape = &config.layers[at];
    let element = if kv_type == KvType::F32 { 4 } else { 2 };
    let head = |of: &AttentionConfig| u64::from(thermocline_shaders::head_pitch(of.head_dim as u32));
    // Keys and values that several layers read are there, as themselves or as a copy, as soon as the last of these layers is.
    let source = config.kv_source(at);
    let is_last = !(at + 1..config.n_layer()).any(|later| config.kv_source(later) == source);
    let kv = shape.attention.as_ref().filter(|_| is_last).map_or(0, |of| head(of) * of.cached_rows() as u64 * element);
    let norms = layer.norms.iter().map(|(_, norm)| norm);
    let of_heads = layer.attention.iter().flat_map(|attention| attention.q_norm.iter().chain(&attention.k_norm));
    let of_latent = layer.attention.iter().filter_map(|attention| attention.latent.as_deref());
    let of_latent = of_latent.flat_map(|latent| latent.low_q.iter().map(|(_, norm)| norm).chain([&latent.norm]));
    let norms = norms.chain(of_heads).chain(of_latent).map(norm_bytes).sum::<u64>();
    let biases = layer.mixers().map(bias_bytes).sum::<u64>();
    let attention = match &layer.attention {
        Some(of) => {
            let keys_again = of.k.as_ref().filter(|_| of.v.is_none() && of.latent.is_none());
            matrix(caps, &of.linears().chain(keys_again).collect::<Vec<_>>())?
        }
        None => 0,
    };
    let inputs = layer.per_layer.iter().flat_map(PerLayerWeights::linears);
    let between = layer.altup.iter().flat_map(|altup| altup.linears());
    // Streams are routed twice.
    let again = layer.altup.iter().map(|altup| &altup.router);
    let attention = attention + matrix(caps, &inputs.chain(between).chain(again).collect::<Vec<_>>())?;
    let (mixer, mixer_vectors) = match &layer.recurrent {
        Some(of) => {
            let vectors = recurrent::vectors(of).into_iter().map(vector).sum();
            (matrix(caps, &of.linears().collect::<Vec<_>>())?, vectors)
        }
        None => (0, 0),
    };
    let sinks = layer.attention.iter().filter_map(|attention| attention.sinks.as_ref());
    let sinks: u64 = sinks.map(|sinks| vector(sinks.len())).sum();
    let of_streams = layer.altup.iter().map(|altup| {
        let norms = norm_bytes(&altup.router_norm) + norm_bytes(&altup.laurel_norm);
        let maps = [&altup.predict, &altup.correct].map(|map| vector(map.weight.rows() * map.weight.cols()));
        norms + vector(altup.scale.len()) + maps.iter().sum::<u64>()
    });
    let of_streams: u64 = of_streams.sum();
    let (units, unit, routing, down_bias) = match &layer.ffn {
        Ffn::None => (0, 0, 0, 0),
        Ffn::Dense(ffn) => (ffn.up.weight.rows(), neuron_bytes(ffn), 0, bias_bytes(ffn.down.linear())),
        Ffn::Experts(moe) => {
            let each = (0..moe.experts.len()).map(|at| expert_bytes(moe, at));
            let expert = each.max().unwrap_or(0);
            let beside = layer.beside_experts.iter().flat_map(FfnWeights::linears);
            let beside = beside.map(|linear| Ok(matrix(caps, &[linear])? + bias_bytes(linear))).sum::<Result<u64>>()?;
            (moe.experts.len(), expert, routing_bytes(caps, moe)? + beside, 0)
        }
    };
    Ok(LayerBytes {
        attention: attention + mixer,
        vectors: norms + sinks + of_streams + biases + mixer_vectors + down_bias,
        kv_token: kv,
        state: shape.state().map_or(0, GpuState::bytes_of),
        predictor: layer.predictor.as_ref().map_or(Ok(0), |predictor| predictor_bytes(caps, predictor))?,
        routing,
        // From slot to unit and back, and masks: fired, predicted, hot, of the read-back.
        split_tables: 2 * floats(units) + 4 * floats(units.div_ceil(32)) + PIECES,
        unit,
        by_unit: DeviceFfn::places_units(layer),
    })
}

/// A buffer of `n` floats.
fn floats(n: usize) -> u64 {
    (n.max(1) as u64 * 4).next_multiple_of(ROUNDED)
}

fn vector(n: usize) -> u64 {
    floats(pitch(n))
}

fn norm_bytes(norm: &Norm) -> u64 {
    vector(norm.weight.len()) + norm.bias.as_ref().map_or(0, |bias| vector(bias.len()))
}

fn bias_bytes(linear: &Linear) -> u64 {
    linear.bias.as_ref().map_or(0, |bias| vector(bias.len()))
}

/// Matrices that may be stacked.
fn matrix(caps: &Caps, linears: &[&Linear]) -> Result<u64> {
    let each = linears.iter().map(|linear| {
        let weight = &linear.weight;
        GpuMatrix::bytes_of(caps, device_type(weight.ty()), weight.rows(), weight.cols())
    });
    each.sum()
}

fn predictor_bytes(caps: &Caps, predictor: &Predictor) -> Result<u64> {
    let of = |weight: &crate::format::Matrix| {
        GpuMatrix::bytes_of(caps, device_type(weight.ty()), weight.rows(), weight.cols())
    };
    match &predictor.kind {
        PredictorKind::LowRank { fc1, fc2 } => Ok(of(fc1)? + of(fc2)? + floats(fc1.rows().next_multiple_of(256))),
        PredictorKind::Rows { rows, bias } => Ok(of(rows)? + bias.as_ref().map_or(0, |bias| vector(bias.len()))),
    }
}

/// Device bytes of a neuron's rows of `linear`, bias included.
fn rows_bytes(linear: &Linear) -> u64 {
    let bias = if linear.bias.is_some() { 4 } else { 0 };
    device_row_bytes(linear.weight.ty(), linear.weight.cols()) + bias
}

fn neuron_bytes(ffn: &FfnWeights) -> u64 {
    let down = match &ffn.down {
        Down::Neurons(down) => device_row_bytes(down.weight.ty(), down.weight.cols()),
        Down::Outputs(down) => column_bytes(down),
    };
    ffn.gate.as_ref().map_or(0, rows_bytes) + rows_bytes(&ffn.up) + down
}

/// Device bytes of a neuron that is a column of `down`: its fraction of the matrix.
fn column_bytes(down: &Linear) -> u64 {
    let all = device_row_bytes(down.weight.ty(), down.weight.cols()) * down.weight.rows() as u64;
    all.div_ceil(down.weight.cols().max(1) as u64)
}

/// Device bytes of an expert.
fn expert_bytes(moe: &ExpertWeights, at: usize) -> u64 {
    let ffn = &moe.experts[at];
    let down = moe.output_major(at).unwrap_or_else(|| ffn.down.linear());
    let neuron = ffn.gate.as_ref().map_or(0, rows_bytes) + rows_bytes(&ffn.up) + column_bytes(down);
    neuron * ffn.up.weight.rows() as u64 + bias_bytes(down)
}

fn routing_bytes(caps: &Caps, moe: &ExpertWeights) -> Result<u64> {
    let matrices = moe.always_read().map(|linear| Ok(matrix(caps, &[linear])? + bias_bytes(linear)));
    let matrices = matrices.sum::<Result<u64>>()?;
    let vectors = moe.selection_bias.iter().chain(&moe.scale).map(|vector| vector.len());
    let vectors = vectors.chain(moe.router_norm.as_ref().map(|norm| norm.weight.len()));
    let bias = vectors.map(vector).sum::<u64>();
    Ok(matrices + bias)
}

/// Most words of one token of a layer in the firing log.
fn logged_words(config: &ModelConfig, ffn: &Ffn) -> usize {
    match ffn {
        Ffn::None => 0,
        Ffn::Dense(ffn) => 2 * NeuronBuffers::slots(ffn.up.weight.rows()) / 32,
        Ffn::Experts(moe) => {
            let shared = moe.shared.as_ref().map_or(0, |shared| shared.ffn.up.weight.rows());
            config.experts.as_ref().map_or(0, |of| expert_words(of, shared))
        }
    }
}

/// True if `layer` shares the scratch buffers of the one before it.
fn same_scratch(before: &LayerWeights, layer: &LayerWeights) -> bool {
    match (&before.ffn, &layer.ffn) {
        (Ffn::Dense(a), Ffn::Dense(b)) => {
            let of =
                |ffn: &FfnWeights| (ffn.up.weight.rows(), ffn.gate.is_some(), matches!(ffn.down, Down::Neurons(_)));
            of(a) == of(b)
        }
        (Ffn::Experts(a), Ffn::Experts(b)) => ExpertShape::of(a) == ExpertShape::of(b),
        _ => false,
    }
}

fn hidden_bytes(rows: usize, n_ff: usize, gated: bool) -> u64 {
    let fired = floats(FiredMask::words(rows, pitch(n_ff)));
    floats(rows * FfnBuffers::gate_up_pitch(n_ff, gated)) + floats(rows * pitch(n_ff)) + fired
}

fn dense_scratch(caps: &Caps, config: &ModelConfig, ffn: &FfnWeights, chunk: usize) -> u64 {
    let down = ffn.down.linear();
    // With or without cold neurons, resident ones are summed neuron by neuron.
    let ty = device_type(down.weight.ty());
    let chunks = config.d_model.next_multiple_of(ty.block()) / 32;
    let sums =
        floats(PartialSumBuffer::rows(caps, chunks, chunk) * chunks * 32) + floats(chunk * pitch(config.d_model));
    hidden_bytes(chunk, NeuronBuffers::slots(ffn.up.weight.rows()), ffn.gate.is_some()) + sums
}

fn ffn_scratch(caps: &Caps, config: &ModelConfig, ffn: &Ffn, chunk: usize) -> u64 {
    match ffn {
        Ffn::None => 0,
        Ffn::Dense(ffn) => dense_scratch(caps, config, ffn, chunk),
        Ffn::Experts(moe) => {
            let (used, n_ff) = config.experts.as_ref().map_or((1, 0), |experts| (experts.used, experts.n_ff));
            let pairs = chunk * used;
            let row = pitch(config.d_model);
            let latent = moe.latent.as_ref().map(|latent| pitch(latent.down.weight.rows()));
            let shared = moe.shared.as_ref().map_or(0, |shared| {
                floats(chunk * pitch(1)) + floats(chunk * row) + dense_scratch(caps, config, &shared.ffn, chunk)
            });
            let router_input = if moe.router_norm.is_some() { floats(chunk * row) } else { 0 };
            router_input
                + floats(chunk * pitch(moe.experts.len()))
                + 3 * floats(pairs)
                + ExpertPairs::words(pairs, moe.experts.len()).map(floats).iter().sum::<u64>()
                + hidden_bytes(pairs, n_ff, moe.gated())
                + floats(pairs * latent.unwrap_or(row))
                + latent.map_or(0, |row| 2 * floats(chunk * row))
                + shared
        }
    }
}

/// Bytes of activations rounded to eight bits, which every product with packed weights may hold.
fn quantised_bytes(model: &Model) -> u64 {
    let of = |linear: &Linear| {
        let (ty, cols) = (device_type(linear.weight.ty()), linear.weight.cols());
        let packed = WeightType::PACKED.contains(&ty);
        if packed { (cols.next_multiple_of(ty.block()) as u64 / 32 * 36).next_multiple_of(ROUNDED) } else { 0 }
    };
    let ffn = |ffn: &FfnWeights| ffn.linears().map(of).sum::<u64>();
    let layers = model.weights.layers.iter().map(|layer| {
        layer.mixers().map(of).sum::<u64>()
            + match &layer.ffn {
                Ffn::None => 0,
                Ffn::Dense(weights) => ffn(weights),
                Ffn::Experts(moe) => {
                    // The way out of a latent is prepared twice.
                    let again = moe.latent.as_ref().map_or(0, |latent| of(&latent.up));
                    moe.always_read().map(of).sum::<u64>() + again
                }
            }
    });
    layers.sum::<u64>() + of(&model.weights.output)
}

/// Bytes of the code books of the types in the file, each there once.
fn code_book_bytes(model: &Model) -> u64 {
    let types: BTreeSet<WeightType> = model.checkpoint.tensors().iter().map(|tensor| device_type(tensor.ty)).collect();
    types.into_iter().filter_map(WeightType::code_book).map(|words| size_of_val(words) as u64).sum()
}

#[cfg(test)]
mod tests {
    use std::{ops::ControlFlow, path::Path};

    use super::*;
    use crate::{
        cpu::{Cpu, CpuOptions},
        gpu::{AdapterChoice, Gpu, GpuOptions, Purpose},
        hybrid::HybridProcessor,
        model::LoadOptions,
        runtime::Processor,
    };

    /// The reckoned bytes are enough for the allocations, purpose by purpose, and not much more.
    #[test]
    fn device_bytes_match_the_allocations_of_whole_models() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
        for name in [
            "llama-relu",
            "mixtral",
            "gemma2",
            "gemma4",
            "gemma4-e2b",
            "gemma4-moe",
            "opt",
            "falcon-mqa",
            "qwen3_5",
            "qwen3_5-moe",
            "qwen3-next",
            "nemotron-h",
            "nemotron-3-nano",
            "granite-4-h",
            "lfm2",
            "lfm2-moe",
            "laguna",
            "bitnet",
            "plm",
            "glm4-moe-lite",
            "gemma3n",
        ] {
            let model = Model::open(&folder.join(name), &LoadOptions::default()).unwrap();
            let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
            let bytes = device_bytes(gpu.caps(), &model, 24, KvType::F32).unwrap();
            let load = GpuLoad { chunk: 24, ..GpuLoad::default() };
            let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
            let mut go_on = |_, _| ControlFlow::Continue(());
            let mut processor = HybridProcessor::load_whole(&gpu, cpu, &model, &load, &mut go_on).unwrap();
            let kv = processor.kv_cache(&model, 40, KvType::F32).unwrap();
            let sum = |of: fn(&LayerBytes) -> u64| bytes.layers.iter().map(of).sum::<u64>();
            let ffn =
                bytes.layers.iter().zip(&model.weights.layers).map(|(layer, weights)| {
                    layer.routing + layer.split_tables + layer.unit * units(&weights.ffn) as u64
                });
            // A neuron's biases are reckoned with its rows.
            let with_vectors = ffn.sum::<u64>() + sum(|layer| layer.vectors) + bytes.head_vectors;
            let used = gpu.arena().used_for(Purpose::Ffn) + gpu.arena().used_for(Purpose::Vectors);
            assert!(used <= with_vectors, "{name}, FFN and vectors: {used} bytes, {with_vectors} reckoned");
            let mut total = with_vectors;
            for (purpose, reckoned) in [
                (Purpose::Attention, sum(|layer| layer.attention)),
                (Purpose::Kv, sum(|layer| layer.kv_token) * 40 + sum(|layer| layer.state)),
                (Purpose::Head, bytes.head),
                (Purpose::Scratch, bytes.scratch + bytes.head_scratch),
                (Purpose::Staging, bytes.staging),
                (Purpose::Predictor, sum(|layer| layer.predictor)),
            ] {
                let used = gpu.arena().used_for(purpose);
                assert!(used <= reckoned, "{name}, {}: {used} bytes, {reckoned} reckoned", purpose.name());
                total += reckoned;
            }
            let (used, slack) = (gpu.arena().used(), 64 << 10);
            let most = used + used / 2 + bytes.layers.len() as u64 * slack;
            assert!(total <= most, "{name}: {used} bytes, {total} reckoned");
            drop(kv);
        }
    }
}
