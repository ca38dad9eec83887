//! Counted bytes compared with those of real loads, to the byte.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::*;
use crate::device::{device_support, load::DevicePart};
use thermocline_gpu::{AdapterChoice, GpuOptions};
use thermocline_model::synth::shape_model;
use thermocline_model::{
    LoadOptions,
    synth::{SynthOptions, SynthShape},
};

const CHUNK: usize = 24;
const TOKENS: usize = 40;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn open(path: &Path) -> Model {
    Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn software(packed_dot: bool) -> Gpu {
    let adapter = AdapterChoice::Index(0);
    Gpu::open(&GpuOptions { adapter, packed_dot: Some(packed_dot), ..GpuOptions::default() }).unwrap()
}

/// Loads `part` of `model` on `gpu`.
fn load(gpu: &Gpu, model: &Model, part: &DevicePart<'_>) -> DeviceModel {
    let load = GpuLoad { chunk: CHUNK, ..GpuLoad::default() };
    let mut last = (0, 0);
    let mut progress = |done, all| {
        last = (done, all);
        ControlFlow::Continue(())
    };
    let device = DeviceModel::load(gpu, model, part, &load, &mut progress).unwrap();
    assert_eq!(last.0, last.1, "all bytes that are announced are read");
    device
}

/// Every model that a device can compute, with its name.
fn models() -> Vec<(String, Model)> {
    let folders = fs::read_dir(fixtures().join("models")).unwrap().map(|entry| entry.unwrap().path());
    let files = ["f16", "q4_0"].map(|ty| fixtures().join(format!("powerinfer/llama-relu-{ty}.powerinfer.gguf")));
    let paths = folders.filter(|path| path.is_dir()).chain(files);
    let all = paths.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), open(&path)));
    let mut all: Vec<_> = all.filter(|(_, model)| device_support(model).is_ok()).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() > 50, "{} models", all.len());
    all
}

/// Bytes of `hot` resident units of a layer.
fn hot_bytes(bytes: &LayerBytes, weights: &Ffn, hot: usize) -> u64 {
    let block = if bytes.by_unit && matches!(weights, Ffn::Dense(_)) { SLOT_MULTIPLE } else { 1 };
    hot.next_multiple_of(block) as u64 * bytes.unit
}

/// The bytes of a plan: layers from `first`, each with its number of units, and a cache of
/// [`TOKENS`] tokens.
fn planned(bytes: &DeviceBytes, model: &Model, part: &DevicePart<'_>, hot: impl Fn(usize) -> usize) -> u64 {
    let layers = bytes.layers.iter().zip(&model.weights.layers).enumerate().skip(part.first_layer);
    let layers = layers.map(|(at, (layer, weights))| {
        let predictor = if part.predictors { layer.predictor } else { 0 };
        let cache = layer.kv_token * TOKENS as u64 + layer.state;
        let base = layer.attention + layer.vectors + cache + predictor + layer.routing + layer.split_tables;
        base + hot_bytes(layer, &weights.ffn, hot(at))
    });
    let head = if part.head { bytes.head + bytes.head_vectors + bytes.head_scratch } else { 0 };
    bytes.scratch + bytes.staging + layers.sum::<u64>() + head
}

/// Loading a whole model with its cache takes the same bytes on a real device and on one that only
/// counts, for each purpose.
#[test]
fn device_bytes_are_the_allocations_of_whole_models() {
    let models = models();
    for packed in [false, true] {
        let real = software(packed);
        let counting = Gpu::counting(*real.caps(), Some(packed)).unwrap();
        for (name, model) in &models {
            let n_layer = model.config.n_layer();
            let part = DevicePart::all(n_layer);
            let before = [&real, &counting].map(BytesByPurpose::on);
            let mut here = load(&real, model, &part);
            let cache = here.layers.kv_cache(model, TOKENS, KvType::F32).unwrap();
            let counted = load(&counting, model, &part);
            let own = |layer: &usize| model.config.kv_source(*layer) == Some(*layer);
            let rows =
                (0..n_layer).filter(own).map(|it| counted.layers.new_kv(model, it, TOKENS, KvType::F32).unwrap());
            let rows: Vec<_> = rows.collect();
            let states: Vec<_> = (0..n_layer).map(|layer| counted.layers.new_state(layer).unwrap()).collect();
            for purpose in Purpose::ALL {
                let [real, counting] = [&real, &counting].map(|gpu| gpu.arena().used_for(purpose));
                assert_eq!(real, counting, "{name}, packed {packed}: {}", purpose.name());
            }
            let bytes = device_bytes(real.caps(), model, CHUNK, KvType::F32).unwrap();
            let sum = |of: fn(&LayerBytes) -> u64| bytes.layers.iter().map(of).sum::<u64>();
            let used = |purpose| real.arena().used_for(purpose);
            assert_eq!(sum(|layer| layer.attention), used(Purpose::Attention), "{name}");
            assert_eq!(
                sum(|layer| layer.kv_token) * TOKENS as u64 + sum(|layer| layer.state),
                used(Purpose::Kv),
                "{name}"
            );
            assert_eq!(bytes.head, used(Purpose::Head), "{name}");
            // Code books of earlier models do not belong to this load.
            let books = before[0].of(Purpose::Scratch);
            let (used, planned) = (
                real.arena().used() - books,
                planned(&bytes, model, &part, |layer| model.weights.layers[layer].ffn.units()),
            );
            assert!(used <= planned, "{name}, packed {packed}: {used} bytes, {planned} planned");
            drop((cache, rows, states, here, counted));
            let after = [&real, &counting].map(|gpu| gpu.arena().used() - gpu.arena().used_for(Purpose::Scratch));
            assert_eq!(after, [0, 0], "{name}");
        }
    }
}

/// Loading a part takes no more than its plan. The plan exceeds the load by at most the room of
/// blocks and hand-overs.
#[test]
fn device_bytes_are_enough_for_parts_of_models() {
    let real = software(true);
    let nothing = real.arena().used();
    let names =
        ["llama-relu", "mixtral", "gemma4-e2b", "gemma4-moe", "gemma3n", "nemotron-h", "qwen3_5-moe", "falcon-mqa"];
    let paths = names.map(|name| fixtures().join("models").join(name));
    let paths = paths.into_iter().chain([fixtures().join("powerinfer/llama-relu-q4_0.powerinfer.gguf")]);
    for model in paths.map(|path| open(&path)) {
        let (config, layers) = (&model.config, &model.weights.layers);
        let (name, n_layer) = (&config.name, config.n_layer());
        let bytes = device_bytes(real.caps(), &model, CHUNK, KvType::F32).unwrap();
        for (first_layer, step, head) in
            [(0, 1, true), (0, 2, true), (n_layer / 2, 3, false), (n_layer - 1, 1, false), (0, usize::MAX, true)]
        {
            let hot: Vec<Vec<u32>> = layers
                .iter()
                .zip(&bytes.layers)
                .map(|(layer, bytes)| {
                    let all = 0..layer.ffn.units() as u32;
                    let some = all.clone().step_by(step).skip(usize::from(step == usize::MAX)).collect();
                    if bytes.by_unit {
                        some
                    } else if step == 1 {
                        all.collect()
                    } else {
                        Vec::new()
                    }
                })
                .collect();
            let ffn = hot.iter().zip(&bytes.layers).skip(first_layer).map(|(hot, bytes)| match bytes.by_unit {
                true => FfnPart::Hot(hot),
                false if hot.is_empty() => FfnPart::None,
                false => FfnPart::All,
            });
            let part = DevicePart { first_layer, ffn: ffn.collect(), head, predictors: true };
            let mut device = load(&real, &model, &part);
            let cache = device.layers.kv_cache(&model, TOKENS, KvType::F32).unwrap();
            let (used, planned) =
                (real.arena().used() - nothing, planned(&bytes, &model, &part, |layer| hot[layer].len()));
            assert!(used <= planned, "{name} from {first_layer}, every {step}: {used} bytes, {planned} planned");
            if first_layer == 0 {
                let padding = |at: usize| bytes.layers[at].split_tables + 512 * layers[at].ffn.units() as u64;
                let handed = 2 * CHUNK as u64 * device.layers.registers.row_bytes() + 4096 + (32 << 10);
                // The plan counts the buffers of an FFN that is whole or absent even if it is
                // absent.
                let absent = hot.iter().zip(&bytes.layers).any(|(hot, bytes)| !bytes.by_unit && hot.is_empty());
                let most = used + (0..n_layer).map(padding).sum::<u64>() + handed;
                let most = if absent { most + bytes.scratch } else { most };
                assert!(planned <= most, "{name}, every {step}: {used} bytes, {planned} planned, at most {most}");
            }
            drop((cache, device));
        }
        let size = BufferSize::within(real.caps(), &model, CHUNK, GpuLoad::default().streaming_buffer);
        let streaming = added(&real, || size.map(|size| StreamingBuffer::new(&real, &size)).transpose()).unwrap();
        assert_eq!(streaming.total(), bytes.streaming_buffer, "{name}");
    }
}

/// Bytes of resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
}

/// Nearly all bytes of these models are matrices that counting never reads.
#[test]
fn large_models_are_counted_at_once_without_their_weights() {
    for shape in ["relu-llama-70b", "opt-175b", "gpt-oss-120b", "qwen3.5-35b-a3b", "nemotron-3-nano", "glm-4.7-flash"] {
        let Ok(shape) = SynthShape::named(shape) else { panic!("no shape {shape}") };
        let model = shape_model(&SynthOptions::new(shape, "outline.gguf")).unwrap();
        let (model, _) = model.neuron_major_outline().unwrap();
        let caps = *software(false).caps();
        let before = resident_bytes();
        let started = Instant::now();
        let bytes = device_bytes(&caps, &model, 256, KvType::F16).unwrap();
        let took = started.elapsed();
        let weights = bytes.layers.iter().zip(&model.weights.layers);
        let weights: u64 = weights.map(|(bytes, layer)| bytes.attention + bytes.unit * layer.ffn.units() as u64).sum();
        eprintln!("{}: {weights} bytes in {took:?}", shape.name);
        assert!(weights > 10 << 30, "{}: {weights}", shape.name);
        assert!(took < Duration::from_secs(2), "{}: {took:?}", shape.name);
        let (least, most) = (bytes.least_streaming_buffer, bytes.streaming_buffer);
        assert!(0 < least && least <= most && most <= 64 << 20, "{}: {least} to {most} bytes", shape.name);
        // A plan gives the buffer some bytes, and the buffer made of them is as large as planned.
        for bytes in [least, (least + most) / 2, most] {
            let size = BufferSize::within(&caps, &model, 256, bytes).map_or(0, |size| size.total());
            assert!(size <= bytes && size >= least, "{}: {size} of {bytes}, least {least}", shape.name);
        }
        if let Some((before, after)) = before.zip(resident_bytes()) {
            assert!(after.saturating_sub(before) < weights / 16, "{}: {before} bytes, then {after}", shape.name);
        }
    }
}

/// With small limits fewer tokens are computed at once, and one more token does not fit.
#[test]
fn chunks_are_as_long_as_every_buffer_fits() {
    let model = open(&fixtures().join("models/llama-relu-256"));
    let caps = Caps { max_binding: 64 << 10, ..*software(false).caps() };
    let bytes = device_bytes(&caps, &model, 256, KvType::F16).unwrap();
    assert!((2..16).contains(&bytes.chunk), "{}", bytes.chunk);
    assert!(matches!(count(&caps, &model, bytes.chunk + 1, KvType::F16), Err(Error::Memory { .. })));
    assert_eq!(device_bytes(&caps, &model, 2, KvType::F16).unwrap().chunk, 2);
}
