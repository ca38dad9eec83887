//! Every fixture model on the GPU, which is a software driver where there is none.
#![allow(clippy::unwrap_used)]

use std::{ops::ControlFlow, path::PathBuf, sync::Arc};

use thermocline_engine::{
    gpu::{AdapterChoice, Gpu, GpuOptions, Tier},
    model::{Forward, GpuLoad, GpuProcessor, KvType, LoadOptions, Model},
};
use thermocline_tests::golden::{Expected, continued, max_diff, observed};

const MODELS: [&str; 13] = [
    "bamboo",
    "falcon-mqa",
    "falcon-new",
    "gemma2",
    "gemma3",
    "llama-relu",
    "llama-relu-256",
    "llama-silu-gqa",
    "mistral",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn load(name: &str) -> (Arc<Model>, Expected) {
    let model = Model::open(&folder(name), &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    (Arc::new(model), Expected::read(&folder(name).join("expected.safetensors")))
}

fn open(tier: Tier) -> Gpu {
    let adapter = AdapterChoice::Index(0);
    Gpu::open(&GpuOptions { adapter, tier: Some(tier), ..GpuOptions::default() }).unwrap()
}

fn forward(gpu: &Gpu, model: &Arc<Model>, chunk: usize) -> Forward {
    let load = GpuLoad { chunk };
    let processor = GpuProcessor::load(gpu, model, &load, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Forward::on(Arc::clone(model), Box::new(processor))
}

#[test]
fn logits_and_hidden_states() {
    let gpu = open(Tier::PORTABLE);
    for name in MODELS {
        let (model, expected) = load(name);
        let ids = expected.ids("input_ids");
        let mut forward = forward(&gpu, &model, 64);
        let run = observed(&mut forward, KvType::F32, &ids);
        let error = max_diff(&run.hidden.concat(), &expected.f32("hidden"));
        assert!(error <= 1e-3, "{name}: hidden states differ by {error}");
        let error = max_diff(&run.logits, &expected.f32("logits"));
        assert!(error <= 1e-3, "{name}: logits differ by {error}");
        let wanted = expected.ids("greedy_ids");
        assert_eq!(continued(&mut forward, KvType::F32, &ids, wanted.len()), wanted, "{name}");
    }
}
