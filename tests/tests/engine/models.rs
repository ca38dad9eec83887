//! Every model fixture is recognised: what its file says becomes the configuration the engine runs.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::{Path, PathBuf};

use thermocline_engine::{
    Error, Location,
    format::{Array, Bytes, Checkpoint, Metadata, Opened, ReadMode, Tensor, Value, open as open_file},
    hybrid::device_support,
    model::{
        Activation, Down, Ffn, LoadOptions, Model, ModelConfig, NormKind, Position, PredictorKind, RopeOrder,
        RopeScaling, Router, RouterScore,
    },
    quant::TensorType,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn open(path: &str) -> Model {
    Model::open(&fixtures().join(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// d, layers, heads, kv heads, head width, FFN width
fn sizes(config: &ModelConfig) -> [usize; 6] {
    let attention = config.attentions().next().unwrap();
    let (d_model, n_layer) = (config.d_model, config.n_layer());
    [d_model, n_layer, attention.n_head, attention.n_kv_head, attention.head_dim, config.n_ff]
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.attentions().map(|attention| attention.window).collect()
}

#[test]
fn hugging_face_folders_have_the_expected_configuration() {
    use Activation::{DRelu, GeluTanh, Relu, ReluSquared, Silu};
    for (name, arch, expected, activation) in [
        ("llama-relu", "llama", [64, 3, 4, 4, 16, 192], Relu),
        ("llama-relu-256", "llama", [256, 2, 8, 8, 32, 768], Relu),
        ("llama-silu-gqa", "llama", [64, 3, 8, 2, 8, 176], Silu),
        ("mistral", "llama", [64, 3, 4, 2, 16, 176], Silu),
        ("opt", "opt", [64, 3, 4, 4, 16, 192], Relu),
        ("falcon-mqa", "falcon", [64, 3, 4, 1, 16, 256], Relu),
        ("falcon-new", "falcon", [64, 2, 8, 2, 8, 256], Relu),
        ("qwen2", "qwen2", [64, 3, 4, 2, 16, 160], Silu),
        ("qwen3", "qwen3", [64, 3, 4, 2, 32, 160], Silu),
        ("mixtral", "llama", [64, 2, 4, 2, 16, 160], Silu),
        ("bamboo", "bamboo", [64, 3, 4, 2, 16, 192], DRelu),
        ("gemma2", "gemma2", [64, 2, 4, 2, 24, 160], GeluTanh),
        ("gemma3", "gemma3", [64, 3, 4, 1, 32, 160], GeluTanh),
        ("gemma4", "gemma4", [64, 4, 4, 2, 16, 96], GeluTanh),
        ("phi3", "phi3", [64, 3, 4, 2, 16, 160], Silu),
        ("laguna", "laguna", [48, 4, 4, 2, 16, 96], Silu),
        ("bitnet", "bitnet-b1.58", [128, 3, 4, 2, 32, 256], ReluSquared),
        ("plm", "plm", [48, 3, 4, 1, 32, 160], ReluSquared),
        ("phimoe", "phimoe", [48, 3, 4, 2, 12, 32], Silu),
        ("smallthinker", "smallthinker", [64, 5, 4, 2, 16, 32], Relu),
        ("glm4-moe-lite", "deepseek2", [64, 3, 4, 1, 48, 96], Silu),
        ("deepseek-v2-lite", "deepseek2", [48, 3, 4, 1, 48, 96], Silu),
        ("nemotron", "nemotron", [64, 3, 4, 2, 16, 160], ReluSquared),
        ("arcee", "arcee", [48, 3, 4, 2, 16, 160], ReluSquared),
        ("jais2", "jais2", [48, 3, 4, 4, 12, 160], ReluSquared),
        ("smollm3", "smollm3", [48, 4, 4, 2, 12, 128], Silu),
        ("seed-oss", "seed_oss", [48, 3, 4, 2, 32, 128], Silu),
        ("olmo3", "olmo2", [48, 4, 4, 2, 12, 128], Silu),
        ("exaone4", "exaone4", [48, 4, 4, 2, 16, 128], Silu),
        ("cohere2", "cohere2", [64, 4, 4, 2, 16, 128], Silu),
        ("ministral3", "mistral3", [48, 3, 4, 2, 32, 128], Silu),
        ("granite-4-dense", "granite", [48, 3, 4, 2, 12, 128], Silu),
        ("starcoder2", "starcoder2", [48, 3, 4, 2, 12, 160], GeluTanh),
        ("stablelm", "stablelm", [64, 3, 4, 2, 16, 160], Silu),
    ] {
        let model = open(&format!("models/{name}"));
        let config = &model.config;
        assert_eq!(config.architecture, arch, "{name}");
        assert_eq!(sizes(config), expected, "{name}");
        assert_eq!(config.activation, activation, "{name}");
        assert_eq!(config.n_vocab, 384, "{name}");
        assert_eq!(config.name, name);
        assert_eq!(model.weights.layers.len(), config.n_layer(), "{name}");
    }
}

#[test]
fn variants_reach_the_configuration() {
    let mistral = open("models/mistral").config;
    assert_eq!(windows(&mistral), [Some(8); 3]);

    let llama = open("models/llama-silu-gqa").config;
    let rope = llama.rope(0).unwrap();
    assert_eq!((rope.dims, rope.order), (8, RopeOrder::Normal));
    let RopeScaling::Factors { short, long: None, .. } = &rope.scaling else { panic!("{:?}", rope.scaling) };
    assert_eq!((short.len(), short[0], short[3]), (4, 1.0, 8.0));
    assert_eq!(rope.base, 500000.0);

    let opt = open("models/opt");
    assert_eq!(opt.config.position, Position::Learned { offset: 2 });
    assert_eq!((opt.config.norm, opt.config.context_length), (NormKind::Layer, 64));
    assert!(opt.weights.tied && opt.weights.layers[0].attention.as_ref().unwrap().q.bias.is_some());

    let qwen2 = open("models/qwen2");
    assert!(qwen2.weights.layers[0].attention.as_ref().unwrap().v.as_ref().unwrap().bias.is_some());
    assert_eq!(windows(&qwen2.config), [None; 3], "use_sliding_window is false");
    let qwen3 = open("models/qwen3");
    assert!(qwen3.weights.layers[0].attention.as_ref().unwrap().k_norm.is_some());
    assert_eq!(qwen3.config.rope(0).unwrap().base, 1e6, "rope_parameters");

    let mixtral = open("models/mixtral");
    let experts = mixtral.config.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.router.renormalise, experts.n_ff), (4, 2, true, 160));
    assert!(matches!(&mixtral.weights.layers[1].ffn, Ffn::Experts(experts) if experts.experts.len() == 4));

    let gemma2 = open("models/gemma2").config;
    let attention = gemma2.attentions().next().unwrap();
    assert_eq!((attention.softcap, gemma2.final_softcap), (Some(6.0), Some(8.0)));
    assert_eq!((gemma2.embedding_scale, windows(&gemma2)), (8.0, vec![Some(8), None]));
    assert_eq!(attention.scale, 1.0 / 24f32.sqrt());
    let gemma3 = open("models/gemma3").config;
    assert_eq!(windows(&gemma3), [Some(8), Some(8), None]);
    let [local, global] = [0, 2].map(|layer| gemma3.rope(layer).unwrap());
    assert_eq!((local.base, global.base), (1e4, 1e6));
    assert_eq!((&local.scaling, gemma3.ropes.len()), (&RopeScaling::None, 2));

    assert_eq!(open("models/falcon-mqa").config.layers[0].steps.len(), 5);
    assert_eq!(open("models/falcon-new").config.layers[1].steps.len(), 6);
    assert!(open("models/falcon-mqa").weights.tied && !open("models/falcon-new").weights.tied);
}

#[test]
fn layers_that_differ_and_factors_reach_the_configuration() {
    let rotated =
        |config: &ModelConfig| config.attentions().map(|attention| attention.rope.is_some()).collect::<Vec<_>>();
    let three = [true, true, true, false];
    assert_eq!(rotated(&open("models/smollm3").config), three, "no_rope_layers has 1 where there is a rotation");

    let olmo = open("models/olmo3");
    assert_eq!(windows(&olmo.config), [Some(8), Some(8), Some(8), None]);
    let stretched = |n| matches!(olmo.config.rope(n).unwrap().scaling, RopeScaling::Yarn { .. });
    assert_eq!([0, 1, 2, 3].map(stretched), [false, false, false, true]);
    let attention = olmo.weights.layers[0].attention.as_ref().unwrap();
    let lengths = [&attention.q_norm, &attention.k_norm].map(|norm| norm.as_ref().unwrap().weight.len());
    assert_eq!(lengths, [48, 24], "over all heads");
    for name in ["exaone4", "cohere2"] {
        let config = open(&format!("models/{name}")).config;
        assert_eq!(rotated(&config), three, "{name}");
        assert_eq!(windows(&config), [Some(8), Some(8), Some(8), None], "{name}");
    }

    let granite = open("models/granite-4-dense").config;
    let attention_scale = granite.attentions().next().unwrap().scale;
    assert_eq!((granite.embedding_scale, granite.residual_scale, attention_scale), (2.0, 0.7, 0.05));
    assert_eq!((granite.logit_scale, open("models/cohere2").config.logit_scale), (1.0 / 1.5, 0.5));
    let ministral = open("models/ministral3").config;
    let scale = ministral.query_scale.unwrap();
    assert_eq!((scale.beta, scale.length, scale.at(15)), (0.1, 16, 1.0));
    assert_eq!(scale.at(16), 1.0 + 0.1 * 2f32.ln());
    let rope = ministral.rope(0).unwrap();
    let RopeScaling::Yarn { attention_factor, .. } = rope.scaling else { panic!("{:?}", rope.scaling) };
    assert!((attention_factor - 1.0).abs() < 1e-6, "mscale is mscale_all_dim");
    for (name, dims) in [("nemotron", 8), ("stablelm", 4)] {
        let config = open(&format!("models/{name}")).config;
        let rope = config.rope(0).unwrap();
        assert_eq!((rope.dims, rope.order), (dims, RopeOrder::NeoX), "{name}");
    }
}

/// Constants of an architecture in llama.cpp, which its files need not say.
#[test]
fn patterns_that_files_leave_to_the_architecture() {
    let without = |name: &str, key: &str| {
        let path = fixtures().join("models").join(name);
        let mut checkpoint = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
        let mut rest = Metadata::new(&path);
        for (other, value) in checkpoint.metadata.iter().filter(|(other, _)| *other != key) {
            rest.set(other, value.clone());
        }
        assert_eq!(rest.len() + 1, checkpoint.metadata.len(), "{name} has no {key}");
        checkpoint.metadata = rest;
        Model::from_checkpoint(checkpoint, &LoadOptions::default()).unwrap().config
    };
    assert_eq!(without("smollm3", "smollm3.rope.layer_pattern"), open("models/smollm3").config);
    assert_eq!(without("olmo3", "olmo2.attention.sliding_window_pattern"), open("models/olmo3").config);
    assert_eq!(without("cohere2", "cohere2.attention.sliding_window_pattern"), open("models/cohere2").config);
    let exaone = without("exaone4", "exaone4.attention.sliding_window_pattern");
    assert_eq!(windows(&exaone), [None; 4], "only the larger model has windows");
    assert!(exaone.attentions().all(|attention| attention.rope.is_some()));
}

/// Lists and factors that contradict the model are errors that name them.
#[test]
fn lists_that_do_not_fit_are_refused() {
    let refused = |name: &str, key: &str, value: Value| {
        let path = fixtures().join("models").join(name);
        let mut checkpoint = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
        checkpoint.metadata.set(key, value);
        let error = Model::from_checkpoint(checkpoint, &LoadOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Malformed { location: Location::Key(at), .. } if at == key), "{error:?}");
    };
    refused("smollm3", "smollm3.rope.layer_pattern", Value::Array(Array::Bool(vec![true; 3])));
    refused("smollm3", "smollm3.rope.layer_pattern", Value::Array(Array::F32(vec![1.0; 4])));
    refused("olmo3", "olmo2.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 5])));
    refused("cohere2", "cohere2.logit_scale", Value::F32(-1.0));
    refused("granite-4-dense", "granite.residual_scale", Value::F32(f32::NAN));
    refused("granite-4-dense", "granite.rope.scaling.finetuned", Value::U32(1));
    refused("ministral3", "mistral3.attention.temperature_scale", Value::F32(-0.1));
}

#[test]
fn gguf_and_powerinfer_files_load() {
    for ty in ["F16", "Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K"] {
        let model = open(&format!("gguf/llama-silu-gqa-256-{ty}.gguf"));
        assert_eq!(sizes(&model.config), [256, 2, 4, 2, 16, 512], "{ty}");
        assert_eq!(model.config.name, "tiny golden llama");
        assert!(model.weights.tied);
    }
    for ty in ["f16", "q4_0"] {
        let model = open(&format!("powerinfer/llama-relu-{ty}.powerinfer.gguf"));
        assert_eq!(model.config.activation, Activation::Relu);
        for (layer, rank) in model.weights.layers.iter().zip([128, 64]) {
            let Ffn::Dense(ffn) = &layer.ffn else { panic!() };
            assert!(matches!(&ffn.down, Down::Neurons(down) if down.weight.rows() == 768));
            let predictor = layer.predictor.as_ref().unwrap();
            let PredictorKind::LowRank { fc1, fc2 } = &predictor.kind else { panic!() };
            assert_eq!((fc1.rows(), fc2.cols(), predictor.threshold), (rank, rank, 0.25));
        }
    }
}

/// An NVFP4 matrix with the factor of its tensor.
#[test]
fn nvfp4_factors_are_read_and_must_be_finite() {
    let path = fixtures().join("gguf/llama-silu-gqa-256-F16.gguf");
    let open = |factor: Option<(f32, &str)>| {
        let Opened::Checkpoint(file) = open_file(&path, ReadMode::Map).unwrap() else { panic!() };
        let Checkpoint { path, container, metadata, tokenizer, .. } = file.clone();
        let mut tensors = file.into_tensors();
        let up = tensors.iter_mut().find(|tensor| tensor.name == "blk.0.ffn_up.weight").unwrap();
        up.ty = TensorType::NVFP4;
        up.data = Bytes::new(vec![0; up.rows() * up.ty.row_bytes(up.cols()).unwrap()]);
        let data = |factor: f32| Bytes::new(factor.to_le_bytes());
        tensors.extend(factor.map(|(factor, name)| Tensor {
            name: name.to_owned(),
            ty: TensorType::F32,
            shape: vec![1],
            data: data(factor),
        }));
        let file = Checkpoint::new(path, container, metadata, tokenizer, tensors).unwrap();
        Model::from_checkpoint(file, &LoadOptions::default())
    };
    open(None).unwrap();
    for name in ["blk.0.ffn_up.scale", "blk.0.ffn_up.weight.scale"] {
        let model = open(Some((0.25, name))).unwrap();
        let Ffn::Dense(ffn) = &model.weights.layers[0].ffn else { panic!() };
        assert_eq!((ffn.up.weight.factor(), ffn.gate.as_ref().unwrap().weight.factor()), (0.25, 1.0));
        for factor in [f32::INFINITY, f32::NAN] {
            let error = open(Some((factor, name))).unwrap_err();
            let at = matches!(&error, Error::Malformed { location: Location::Tensor(at), .. } if at == name);
            let shown = error.to_string();
            assert!(at && shown.contains("blk.0.ffn_up.weight") && shown.contains(&factor.to_string()), "{shown}");
        }
    }
    // Beside a matrix of another type such a tensor is one that nothing depends on.
    open(Some((0.25, "blk.0.ffn_down.scale"))).unwrap();
}

#[test]
fn activation_can_be_overridden() {
    let path = fixtures().join("gguf/llama-silu-gqa-256-F16.gguf");
    let options = LoadOptions { activation: Some(Activation::Relu), ..LoadOptions::default() };
    assert_eq!(Model::open(&path, &options).unwrap().config.activation, Activation::Relu);
    let options = LoadOptions { activation: Some(Activation::DRelu), ..LoadOptions::default() };
    assert!(Model::open(&fixtures().join("models/opt"), &options).is_err(), "OPT has no gate");
}

#[test]
fn model_open_refuses_malformed_files_by_key_or_tensor() {
    let folder = fixtures().join("malformed");
    let index = std::fs::read(folder.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_slice(&index).unwrap();
    for case in index {
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        let opened = Model::open(&folder.join(text("file")), &LoadOptions::default());
        match text("expect").as_str() {
            "ok" => assert!(opened.is_ok(), "{:?}", opened.err()),
            _ => {
                let error = opened.err().unwrap_or_else(|| panic!("{} was accepted", text("file")));
                println!("{error}");
                if text("stage") == "model" {
                    let Error::Malformed { location, .. } = &error else { panic!("{error:?}") };
                    assert!(matches!(location, Location::Key(_) | Location::Tensor(_)), "{error}");
                }
            }
        }
    }
}

/// `control` with one key changed.
fn altered(control: &Checkpoint, key: &str, value: Value) -> Checkpoint {
    let mut checkpoint = control.clone();
    checkpoint.metadata.set(key, value);
    checkpoint
}

/// Numbers no model has: an error that names the key (or the tensor that contradicts it), nothing computed from them.
#[test]
fn absurd_hyperparameters_are_refused() {
    let path = fixtures().join("malformed/valid-control.gguf");
    let Opened::Checkpoint(control) = open_file(&path, ReadMode::Map).unwrap() else { panic!() };
    let refuse = |key: &str, value: Value| {
        let shown = format!("{key} = {value:?}");
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            Err(Error::Unsupported { .. }) if key.ends_with("type") => {}
            other => panic!("{shown}: {:?}", other.err()),
        }
    };
    for (key, values) in [
        ("llama.embedding_length", &[0, 33, 64, u64::MAX][..]),
        ("llama.block_count", &[0, 2, 1_000_000_000, u64::MAX]),
        ("llama.attention.head_count", &[0, 3, 4, 1 << 40]),
        ("llama.attention.head_count_kv", &[0, 1, 3, 1 << 40]),
        ("llama.attention.key_length", &[0, 8, 24, 1 << 40]),
        ("llama.attention.value_length", &[0, 8, 1 << 40]),
        ("llama.rope.dimension_count", &[0, 1, 15, 18, 1 << 40]),
        ("llama.context_length", &[0, 1 << 40, u64::MAX]),
        ("llama.feed_forward_length", &[0, 63, 128, u64::MAX]),
        ("llama.expert_count", &[4, 1 << 40]),
        ("llama.rope.scaling.original_context_length", &[0, 1 << 40]),
    ] {
        values.iter().for_each(|&value| refuse(key, Value::U64(value)));
        refuse(key, Value::I64(-1));
        refuse(key, Value::F32(2.0));
        refuse(key, Value::String("2".to_owned()));
    }
    for key in ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.attention.scale"] {
        for value in [f32::NAN, f32::INFINITY, -1.0] {
            refuse(key, Value::F32(value));
        }
        refuse(key, Value::Bool(true));
    }
    refuse("llama.rope.freq_base", Value::F32(0.0));
    refuse("llama.rope.scaling.type", Value::String("sideways".to_owned()));

    let mut experts = altered(&control, "llama.expert_count", Value::U32(4));
    for used in [0, 5] {
        experts.metadata.set("llama.expert_used_count", Value::U32(used));
        let error = Model::from_checkpoint(experts.clone(), &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("expert_used_count"), "{error}");
    }
    let unknown = altered(&control, "general.architecture", Value::String("rwkv7".to_owned()));
    let error = Model::from_checkpoint(unknown, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`rwkv7`") && error.contains("qwen3moe"), "{error}");
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Sizes of recurrent states that contradict each other or the tensors: named before anything is allocated.
#[test]
fn absurd_recurrent_sizes_are_refused() {
    let path = fixtures().join("gguf2026/qwen3_5-F16.gguf");
    let Opened::Checkpoint(control) = open_file(&path, ReadMode::Map).unwrap() else { panic!() };
    let refuse = |key: &str, value: Value| {
        let shown = format!("{key} = {value:?}");
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            other => panic!("{shown}: {:?}", other.err()),
        }
    };
    for (key, values) in [
        ("qwen35.ssm.conv_kernel", &[0, 3, 5, 1 << 40][..]),
        ("qwen35.ssm.state_size", &[0, 15, 32, 1 << 40]),
        ("qwen35.ssm.group_count", &[0, 1, 3, 8, 1 << 40]),
        ("qwen35.ssm.time_step_rank", &[0, 2, 3, 8, 1 << 40]),
        ("qwen35.ssm.inner_size", &[0, 63, 128, 1 << 40]),
    ] {
        values.iter().for_each(|&value| refuse(key, Value::U64(value)));
        refuse(key, Value::String("4".to_owned()));
    }
    for flags in [vec![true; 3], vec![false; 4], vec![true; 4]] {
        refuse("qwen35.attention.recurrent_layers", Value::Array(Array::Bool(flags)));
    }
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Sizes of latent attention that contradict each other or the tensors, and matrices of heads that are missing or of another number.
#[test]
fn latent_attention_of_absurd_sizes_is_refused() {
    let file = "gguf2026/glm4-moe-lite-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, values) in [
        ("deepseek2.attention.kv_lora_rank", &[0, 31, 64, 1 << 40][..]),
        ("deepseek2.attention.q_lora_rank", &[31, 64, 1 << 40]),
        ("deepseek2.attention.key_length_mla", &[0, 15, 16, 41, 1 << 40]),
        ("deepseek2.attention.value_length_mla", &[0, 31, 1 << 40]),
        ("deepseek2.rope.dimension_count", &[0, 1, 15, 40, 1 << 40]),
        ("deepseek2.leading_dense_block_count", &[]),
        ("deepseek2.expert_used_count", &[0, 7]),
    ] {
        for value in values {
            match Model::from_checkpoint(altered(&control, key, Value::U64(*value)), &LoadOptions::default()) {
                Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
                other => panic!("{key} = {value}: {:?}", other.err()),
            }
        }
    }
    for (name, expected) in [
        ("blk.0.attn_k_b.weight", "[4, 32, 24]"),
        ("blk.1.attn_v_b.weight", "[4, 32, 32]"),
        ("blk.2.attn_kv_a_norm.weight", "[32]"),
        ("blk.0.attn_kv_a_mqa.weight", "[48, 64]"),
        ("blk.1.attn_q_a.weight", "blk.1.attn_q_a.weight`: expected shape [32, 64]"),
        ("blk.1.attn_q_b.weight", "[160, 32]"),
    ] {
        let error = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name)).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    // One head too few.
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.attn_k_b.weight").unwrap();
        let bytes = tensor.data.len() / 4 * 3;
        (tensor.shape[0], tensor.data) = (3, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.attn_k_b.weight") && error.contains("[4, 32, 24]"), "{error}");
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Folders of families without a GGUF fixture whose tensors are missing, or of another shape.
#[test]
fn folders_that_lack_tensors_or_contradict_their_sizes_are_refused() {
    for (folder, name, shape, expected) in [
        ("laguna", "blk.1.attn_gate.weight", None, "6 rows, one per head, or 96"),
        ("laguna", "blk.1.attn_gate.weight", Some([3, 96]), "6 rows, one per head, or 96"),
        ("laguna", "blk.2.ffn_gate.3.weight", None, "[32, 48]"),
        ("laguna", "blk.2.attn_q.weight", Some([48, 96]), "[96, 48]"),
        ("laguna", "blk.3.ffn_gate_inp.weight", Some([3, 96]), "[6, 48]"),
        ("bitnet", "blk.0.attn_sub_norm.weight", None, "[128]"),
        ("bitnet", "blk.1.ffn_sub_norm.weight", Some([1, 128]), "[256]"),
        ("bitnet", "blk.2.ffn_gate.weight", None, "[256, 128]"),
        ("plm", "blk.0.attn_kv_b.weight", Some([48, 48]), "[96, 24]"),
        ("plm", "blk.1.attn_kv_a_mqa.weight", None, "[32, 48]"),
        ("plm", "blk.2.ffn_up.weight", Some([80, 96]), "[160, 48]"),
        ("phimoe", "blk.0.ffn_gate_inp.weight", Some([3, 96]), "[6, 48]"),
        ("phimoe", "blk.2.ffn_up.5.weight", None, "[32, 48]"),
    ] {
        let path = format!("models/{folder}");
        let error = changed(&path, |tensors| match tensors.iter_mut().find(|tensor| tensor.name == name) {
            Some(tensor) => match shape {
                Some(shape) => tensor.shape = shape.to_vec(),
                None => tensors.retain(|tensor| tensor.name != name),
            },
            None => panic!("{folder} has no {name}"),
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected) && error.contains("expected"), "{folder}: {error}");
    }
}

#[test]
fn laguna_folders_of_other_forms_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures().join("models/laguna")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), scratch.path().join(entry.file_name())).unwrap();
    }
    let path = scratch.path().join("config.json");
    let original = std::fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        (
            "\"num_attention_heads_per_layer\": [\n    4,",
            "\"num_attention_heads_per_layer\": [",
            "4 entries, one per layer",
        ),
        ("\"attention_bias\": false", "\"attention_bias\": true", "Laguna with biases"),
        ("\"gating\": true", "\"moe_router_logit_softcapping\": 30.0", "caps its router's logits"),
        ("\"partial_rotary_factor\": 1.0", "\"partial_rotary_factor\": 1.5", "a fraction from 0 to 1"),
        ("\"num_experts\": 6", "\"num_experts\": 7", "expected"),
    ] {
        assert!(original.contains(from), "{from}");
        std::fs::write(&path, original.replacen(from, to, 1)).unwrap();
        let error = Model::open(scratch.path(), &LoadOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("{to}")).to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn smallthinker_files_without_what_they_need_are_refused() {
    let file = "gguf2026/smallthinker-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, value) in [
        ("smallthinker.expert_count", Value::U32(0)),
        ("smallthinker.expert_count", Value::U32(5)),
        ("smallthinker.expert_used_count", Value::U32(5)),
        ("smallthinker.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 4]))),
        ("smallthinker.rope.layer_pattern", Value::Array(Array::Bool(vec![true; 6]))),
    ] {
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            other => panic!("{key}: {:?}", other.err()),
        }
    }
    for name in ["blk.0.ffn_gate_inp.weight", "blk.3.ffn_gate_exps.weight"] {
        let error = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name)).unwrap_err().to_string();
        assert!(error.contains("blk."), "{name}: {error}");
    }
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

#[test]
fn absurd_config_json_is_refused() {
    use serde_json::json;
    let scratch = tempfile::tempdir().unwrap();
    for model in ["llama-silu-gqa", "qwen2", "gemma3", "falcon-new", "opt"] {
        let folder = scratch.path().join(model);
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(fixtures().join("models").join(model)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        let path = folder.join("config.json");
        let original: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (key, value) in [
            ("num_attention_heads", json!(0)),
            ("num_attention_heads", json!(5)),
            ("hidden_size", json!(0)),
            ("hidden_size", json!(u64::MAX)),
            ("num_hidden_layers", json!(1_000_000_000)),
            ("num_hidden_layers", json!("3")),
            ("vocab_size", json!(1u64 << 40)),
            ("vocab_size", json!(383)),
            ("head_dim", json!(0)),
            ("head_dim", json!(1u64 << 60)),
            ("max_position_embeddings", json!(1u64 << 40)),
            ("partial_rotary_factor", json!(-3)),
            ("model_type", json!("mamba")),
            ("model_type", json!(7)),
            ("rope_parameters", json!({"rope_type": "sideways"})),
        ] {
            if model == "opt" && key.starts_with("rope") {
                continue;
            }
            let mut config = original.clone();
            config[key] = value.clone();
            std::fs::write(&path, config.to_string()).unwrap();
            let error = Model::open(&folder, &LoadOptions::default()).err();
            let error = error.unwrap_or_else(|| panic!("{model}: {key} = {value} was accepted")).to_string();
            assert!(error.contains("expected") || error.contains("not supported"), "{error}");
        }
    }
}

/// A GGUF file of the fixtures with other tensors, opened as a model.
fn changed(path: &str, change: impl Fn(&mut Vec<Tensor>)) -> thermocline_engine::Result<Model> {
    let path = fixtures().join(path);
    let file = Model::open_checkpoint(&path, ReadMode::Map)?;
    let mut tensors = file.tensors().to_vec();
    change(&mut tensors);
    let (metadata, tokenizer) = (file.metadata.clone(), file.tokenizer.clone());
    Model::from_checkpoint(
        Checkpoint::new(path, file.container, metadata, tokenizer, tensors)?,
        &LoadOptions::default(),
    )
}

#[test]
fn gpt_oss_files_without_what_they_need_are_refused() {
    let file = "gguf2026/gpt-oss-mxfp4-MXFP4-F16.gguf";
    assert!(changed(file, |_| ()).is_ok());
    let without = |name: &'static str| changed(file, move |tensors| tensors.retain(|tensor| tensor.name != name));
    for (name, expected) in [
        ("blk.2.attn_sinks.weight", "one logit per head, shape [8]"),
        ("blk.0.ffn_up_exps.weight", "[64, 64]"),
        ("blk.3.post_attention_norm.weight", "[64]"),
    ] {
        let error = without(name).unwrap_err().to_string();
        let stem = name.trim_end_matches("_exps.weight");
        assert!(error.contains(stem) && error.contains(expected), "{error}");
    }
    // One expert too few.
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_down_exps.weight").unwrap();
        let bytes = tensor.data.len() / 6 * 5;
        (tensor.shape[0], tensor.data) = (5, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_down_exps.weight") && error.contains("[6, 64, 64]"), "{error}");
    // Sinks of too few heads.
    let short = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_sinks.weight").unwrap();
        (tensor.shape, tensor.data) = (vec![4], tensor.data.slice(0..16).unwrap());
    });
    assert!(short.unwrap_err().to_string().contains("blk.0.attn_sinks.weight"));
}

/// Facts of the MoE families that a golden would not tell apart from luck.
#[test]
fn routing_reaches_the_configuration() {
    let router = |name: &str| open(&format!("models/{name}")).config.experts.unwrap().router;
    assert_eq!(router("gpt-oss").score, RouterScore::SoftmaxOfChosen);
    assert_eq!(router("qwen2-moe"), Router::softmax(false));
    assert_eq!(router("qwen3-moe"), Router::softmax(true));
    assert_eq!(router("glm4-moe"), Router { scale: 2.5, ..Router::sigmoid(true) });
    assert_eq!(router("ernie4_5-moe"), Router::softmax(true));
    let glm = open("models/glm4-moe").weights;
    assert!(matches!(glm.layers[0].ffn, Ffn::Dense(_)));
    let Ffn::Experts(moe) = &glm.layers[2].ffn else { panic!() };
    assert!(moe.selection_bias.is_some() && moe.shared.as_ref().is_some_and(|shared| shared.gate.is_none()));
    let oss = open("models/gpt-oss");
    assert_eq!(
        (oss.config.activation, windows(&oss.config)),
        (Activation::ClampedSwiglu, vec![Some(8), None, Some(8)])
    );
}

/// Counts of shared layers, inputs of layers and head sizes that contradict each other or the tensors.
#[test]
fn gemma4_files_that_contradict_themselves_are_refused() {
    let file = "gguf2026/gemma4-e2b-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, values) in [
        // Of four layers that share, one finds no earlier layer of its kind.
        ("attention.shared_kv_layers", &[4, 6, 1 << 40][..]),
        ("embedding_length_per_layer_input", &[15, 32, 1 << 40]),
        ("attention.key_length_swa", &[0, 8, 64, 1 << 40]),
        ("attention.value_length_swa", &[0, 8]),
        ("rope.dimension_count_swa", &[0, 7, 32]),
        ("rope.dimension_count", &[0, 16, 64]),
    ] {
        for &value in values {
            let changed = altered(&control, &format!("gemma4.{key}"), Value::U64(value));
            match Model::from_checkpoint(changed, &LoadOptions::default()) {
                Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
                other => panic!("{key} = {value}: {:?}", other.err()),
            }
        }
    }
    assert!(changed(file, |_| ()).is_ok());
    for (name, expected) in [
        ("per_layer_token_embd.weight", "[384, 96]"),
        ("per_layer_model_proj.weight", "[96, 64]"),
        ("per_layer_proj_norm.weight", "[16]"),
        ("blk.4.inp_gate.weight", "[16, 64]"),
        ("blk.2.post_norm.weight", "[64]"),
        ("blk.5.layer_output_scale.weight", "[1]"),
        ("blk.0.attn_v.weight", "values of a layer with a window, shape [16, 64]"),
    ] {
        let without = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

/// A mixture without what stands beside its experts, or with one expert too few.
#[test]
fn gemma4_moe_files_that_lack_parts_are_refused() {
    let file = "gguf2026/gemma4-moe-F16.gguf";
    assert!(changed(file, |_| ()).is_ok());
    for (name, expected) in [
        ("blk.0.ffn_gate_inp.weight", "a router, shape [4, 64]"),
        ("blk.1.ffn_gate_inp.scale", "[64]"),
        ("blk.2.ffn_down_exps.scale", "[4]"),
        ("blk.3.ffn_gate.weight", "[64, 64]"),
        ("blk.3.pre_ffw_norm_2.weight", "[64]"),
        ("blk.2.attn_v.weight", "values of a layer with a window, shape [32, 64]"),
    ] {
        let without = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_gate_up_exps.weight").unwrap();
        let bytes = tensor.data.len() / 4 * 3;
        (tensor.shape[0], tensor.data) = (3, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_gate_up_exps.weight") && error.contains("[4, 64, 64]"), "{error}");
}

/// Folders of several streams that lack a part, or have another number of streams, and the reason why the GPU does not compute them.
#[test]
fn gemma3n_folders_that_contradict_themselves_are_refused() {
    let folder = "models/gemma3n";
    let model = changed(folder, |_| ()).unwrap();
    device_support(&model).unwrap();
    for (name, expected) in [
        ("altup_proj.1.weight", "[48, 48]"),
        ("blk.3.altup_predict_coef.weight", "[16, 4]"),
        ("blk.0.altup_correct_scale.weight", "[48]"),
        ("blk.5.laurel_post_norm.weight", "[48]"),
        ("per_layer_token_embd.weight", "[384, 96]"),
    ] {
        let without = changed(folder, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    let control = Model::open_checkpoint(&fixtures().join(folder), ReadMode::Map).unwrap();
    for (key, value) in [
        ("altup.num_inputs", Value::U32(3)),
        ("altup.active_idx", Value::U32(1)),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![1.0; 5]))),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![f32::NAN; 6]))),
        ("attention.shared_kv_layers", Value::U32(6)),
    ] {
        let changed = altered(&control, &format!("gemma3n.{key}"), value);
        let error = Model::from_checkpoint(changed, &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
