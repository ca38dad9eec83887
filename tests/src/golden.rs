//! Runs a model and compares its results with recorded references. Only tests call this module, so
//! it panics on every failure.
#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc};

use safetensors::SafeTensors;
use thermocline_engine::{
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    model::{Activation, LayerWeights, Model},
    runtime::{Forward, KvType, Outputs, Probe},
};

/// Folders of `fixtures/models`, one per architecture and variant.
pub const MODELS: [&str; 61] = [
    "arcee",
    "bamboo",
    "cohere2",
    "cohere2-moe",
    "command-r",
    "deepseek-v2-lite",
    "ernie4_5-moe",
    "exaone-moe",
    "exaone4",
    "falcon-mqa",
    "falcon-new",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4-e2b",
    "gemma4-moe",
    "glm4",
    "glm4-moe",
    "glm4-moe-lite",
    "gpt-oss",
    "granite-4-dense",
    "granitemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "hy-v3",
    "jais2",
    "laguna",
    "llama-relu",
    "llama-relu-256",
    "llama-silu-gqa",
    "mimo-v2-flash",
    "minicpm",
    "minicpm3",
    "minimax-m2",
    "ministral3",
    "mistral",
    "mistral4",
    "mixtral",
    "muse-glimmer",
    "nemotron",
    "olmo3",
    "olmoe",
    "opt",
    "phi3",
    "phimoe",
    "plm",
    "qwen2",
    "qwen2-moe",
    "qwen2_5-vl",
    "qwen3",
    "qwen3-moe",
    "qwen3-vl",
    "qwen3-vl-moe",
    "seed-oss",
    "smallthinker",
    "smollm3",
    "stablelm",
    "starcoder2",
    "step3",
];

/// Folders of models with recurrent layers.
pub const RECURRENT: [&str; 8] =
    ["granite-4-h", "lfm2", "lfm2-moe", "nemotron-3-nano", "nemotron-h", "qwen3-next", "qwen3_5", "qwen3_5-moe"];

/// Folders of models with draft heads. Their `nextn_logits` `[T, vocab]` are those of the head for
/// each token, given the next token. The last row is zero.
pub const DRAFT_HEADS: [&str; 6] =
    ["deepseek-v3-mtp", "glm4-moe-mtp", "hy-v3-mtp", "nemotron-3-mtp", "qwen3_5-moe-mtp", "qwen3_5-mtp"];

/// Folders of models that have a part without GPU kernels.
pub const CPU_ONLY: [&str; 1] = ["llama4"];

/// Folders of `fixtures/models` with quantised weights. Products with 8-bit activations make their
/// error larger.
pub const QUANTISED: [&str; 2] = ["bitnet", "gpt-oss-mxfp4"];

/// Returns the experts chosen for each token, `[tokens, used]`, in ascending order.
pub fn by_token(chosen: &[u32], used: usize) -> Vec<Vec<u32>> {
    let sorted = |token: &[u32]| {
        let mut token = token.to_vec();
        token.sort_unstable();
        token
    };
    chosen.chunks(used.max(1)).map(sorted).collect()
}

/// How to run a model.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Instruction set; `None` is the best of this machine.
    pub isa: Option<Isa>,
    /// Number of CPU workers.
    pub threads: usize,
    /// Precision of the activations that are multiplied by quantised weights.
    pub activations: InputPrecision,
    /// Tokens per chunk.
    pub chunk: usize,
    /// Type of the KV cache.
    pub kv: KvType,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { isa: None, threads: 1, activations: InputPrecision::Int8, chunk: 512, kv: KvType::F32 }
    }
}

/// Results of a run, with `T` tokens.
#[derive(Debug, Default)]
pub struct Run {
    /// Logits, `[T, vocab]`.
    pub logits: Vec<f32>,
    /// Outputs of each layer, `[T, d]`.
    pub hidden: Vec<Vec<f32>>,
    /// For each layer `[T, n_ff]`: whether the neuron fires.
    pub active: Vec<Vec<bool>>,
    /// Chosen experts for each layer, `[T, used]`.
    pub router: Vec<Vec<usize>>,
}

struct Recorder<'a> {
    activation: Activation,
    /// Layers whose neurons all fire, in models whose gates silence neurons of other layers.
    dense: Vec<bool>,
    run: &'a mut Run,
}

impl Probe for Recorder<'_> {
    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn wants_router(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        self.run.hidden[layer].extend_from_slice(x);
    }

    fn ffn_hidden(&mut self, layer: usize, _: usize, gate: &[f32], up: &[f32]) {
        let fires = |i: usize| match (gate.get(i), self.activation) {
            _ if self.dense[layer] => true,
            (Some(gate), Activation::DRelu) => *gate > 0.0 && up[i] > 0.0,
            (Some(gate), _) => *gate > 0.0,
            (None, _) => up[i] > 0.0,
        };
        self.run.active[layer].extend((0..up.len()).map(fires));
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.run.router[layer].extend_from_slice(chosen);
    }
}

/// Returns a model that is ready to run.
pub fn forward(model: &Arc<Model>, setup: Setup) -> Forward {
    let Setup { isa, threads, activations, .. } = setup;
    let cpu = Cpu::new(&CpuOptions { threads: Some(threads), isa, activations }).unwrap();
    let mut forward = Forward::new(Arc::clone(model), cpu);
    forward.set_chunk(setup.chunk);
    forward
}

/// Computes `ids` as a prompt. Returns every logit and layer output.
pub fn prompt(model: &Arc<Model>, setup: Setup, ids: &[u32]) -> Run {
    observed(&mut forward(model, setup), setup.kv, ids)
}

/// Does the same as [`prompt`] with `forward`.
pub fn observed(forward: &mut Forward, kv: KvType, ids: &[u32]) -> Run {
    observed_in(forward, kv, ids.len(), ids)
}

/// Does the same as [`observed`] in a context of `context` tokens.
pub fn observed_in(forward: &mut Forward, kv: KvType, context: usize, ids: &[u32]) -> Run {
    let model = Arc::clone(forward.model());
    let layers = model.config.n_layer();
    let mut run = Run {
        hidden: vec![Vec::new(); layers],
        active: vec![Vec::new(); layers],
        router: vec![Vec::new(); layers],
        logits: Vec::new(),
    };
    let mut kv = forward.kv_cache(context, kv).unwrap();
    let silences = |layer: &LayerWeights| layer.gate_deviations.is_some();
    let some = model.weights.layers.iter().any(silences);
    let dense = model.weights.layers.iter().map(|layer| some && !silences(layer)).collect();
    let mut probe = Recorder { activation: model.config.activation, dense, run: &mut run };
    let logits = forward.run(ids, &mut kv, Outputs::All, &mut probe).unwrap().to_vec();
    run.logits = logits;
    run
}

/// Returns the index of the largest element.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.unwrap_or(0) as u32
}

/// Returns the `n` likeliest next tokens, each computed from the KV cache.
pub fn greedy(model: &Arc<Model>, setup: Setup, prompt: &[u32], n: usize) -> Vec<u32> {
    continued(&mut forward(model, setup), setup.kv, prompt, n)
}

/// Does the same as [`greedy`] with `forward`.
pub fn continued(forward: &mut Forward, kv: KvType, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut kv = forward.kv_cache(prompt.len() + n, kv).unwrap();
    let mut next = argmax(forward.run(prompt, &mut kv, Outputs::Last, &mut ()).unwrap());
    let mut out = vec![next];
    while out.len() < n {
        next = argmax(forward.run(&[next], &mut kv, Outputs::Last, &mut ()).unwrap());
        out.push(next);
    }
    out
}

/// Returns the largest absolute difference.
///
/// # Panics
/// If the lengths differ.
pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |max, (a, b)| if (a - b).abs() <= max { max } else { (a - b).abs() })
}

/// Returns the root of the mean squared difference.
///
/// # Panics
/// If the lengths differ.
pub fn rms_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    (a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>() / a.len() as f32).sqrt()
}

/// A file of recorded tensors.
#[derive(Debug)]
pub struct Expected(Vec<u8>);

impl Expected {
    /// Reads `path`.
    ///
    /// # Panics
    /// If the file cannot be read.
    pub fn read(path: &Path) -> Self {
        Expected(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).ok().map(|view| view.data().to_vec())
    }

    /// Returns a tensor of bytes, or `None` if the file has no such tensor.
    pub fn u8(&self, name: &str) -> Option<Vec<u8>> {
        self.bytes(name)
    }

    /// Returns a tensor of integers, or `None` if the file has no such tensor.
    pub fn i32(&self, name: &str) -> Option<Vec<i32>> {
        Some(self.bytes(name)?.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect())
    }

    /// Returns a tensor of token ids.
    ///
    /// # Panics
    /// If the file has no such tensor.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.i32(name).unwrap_or_else(|| panic!("no {name}")).into_iter().map(|id| id as u32).collect()
    }

    /// Returns a tensor of floats.
    ///
    /// # Panics
    /// If the file has no such tensor.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name).unwrap_or_else(|| panic!("no {name}"));
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}
