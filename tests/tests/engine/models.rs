//! Every model fixture is recognised, and its metadata becomes the configuration that the engine
//! runs.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::{Path, PathBuf};

use thermocline_engine::{
    Error, Location,
    format::{Array, Bytes, Checkpoint, Metadata, Opened, ReadMode, Tensor, Value, open as open_file},
    model::{
        Activation, Down, Ffn, LoadOptions, Model, ModelConfig, NormKind, Position, PredictorKind, RopeOrder,
        RopeScaling, Router, RouterScore,
    },
    quant::TensorType,
};

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

pub fn open(path: &str) -> Model {
    Model::open(&fixtures().join(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns d, layers, heads, KV heads, head width and FFN width.
fn sizes(config: &ModelConfig) -> [usize; 6] {
    let heads = config.attentions().next().unwrap().heads;
    let (d_model, n_layer) = (config.d_model, config.n_layer());
    [d_model, n_layer, heads.n_head, heads.n_kv_head, heads.head_dim, config.n_ff]
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.attentions().map(|attention| Some(attention.window?.length)).collect()
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
        ("qwen2_5-vl", "qwen2vl", [48, 3, 4, 2, 12, 96], Silu),
        ("qwen3-vl", "qwen3vl", [48, 3, 4, 2, 16, 96], Silu),
        ("qwen3-vl-moe", "qwen3vlmoe", [48, 2, 4, 2, 16, 96], Silu),
        ("minicpm", "minicpm", [48, 3, 4, 2, 12, 96], Silu),
        ("minicpm3", "minicpm3", [48, 3, 4, 1, 40, 96], Silu),
        ("glm4", "glm4", [48, 3, 4, 2, 16, 96], Silu),
        ("gemma", "gemma", [48, 3, 4, 2, 16, 96], GeluTanh),
        ("olmoe", "olmoe", [48, 3, 4, 2, 12, 32], Silu),
        ("granitemoe", "granitemoe", [48, 3, 4, 2, 12, 32], Silu),
        ("command-r", "command-r", [48, 3, 4, 2, 12, 96], Silu),
        ("cohere2-moe", "cohere2moe", [48, 4, 4, 2, 12, 64], Silu),
        ("exaone-moe", "exaone-moe", [48, 4, 4, 2, 12, 64], Silu),
        ("hunyuan-dense", "hunyuan-dense", [48, 3, 4, 2, 16, 96], Silu),
        ("hunyuan-moe", "hunyuan-moe", [48, 3, 4, 2, 12, 32], Silu),
        ("hy-v3", "hy_v3", [48, 4, 4, 2, 16, 96], Silu),
        ("muse-glimmer", "muse-glimmer", [48, 4, 4, 2, 12, 96], Silu),
        ("mimo-v2-flash", "mimo2", [48, 4, 4, 2, 12, 96], Silu),
        ("step3", "step35", [48, 4, 4, 2, 12, 96], Silu),
        ("llama4", "llama4", [48, 4, 4, 2, 12, 64], Silu),
        ("mistral4", "mistral4", [48, 3, 4, 1, 40, 96], Silu),
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
    assert_eq!((attention.scores.softcap, gemma2.final_softcap), (Some(6.0), Some(8.0)));
    assert_eq!((gemma2.embedding_scale, windows(&gemma2)), (8.0, vec![Some(8), None]));
    assert_eq!(attention.scores.scale, 1.0 / 24f32.sqrt());
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
    let rotated = |config: &ModelConfig| {
        config.attentions().map(|attention| attention.positions.rope.is_some()).collect::<Vec<_>>()
    };
    let three = [true, true, true, false];
    assert_eq!(rotated(&open("models/smollm3").config), three, "no_rope_layers has 1 where there is a rotation");

    let olmo = open("models/olmo3");
    assert_eq!(windows(&olmo.config), [Some(8), Some(8), Some(8), None]);
    let stretched = |n| matches!(olmo.config.rope(n).unwrap().scaling, RopeScaling::Yarn { .. });
    assert_eq!([0, 1, 2, 3].map(stretched), [false, false, false, true]);
    let attention = olmo.weights.layers[0].attention.as_ref().unwrap();
    let lengths = [&attention.q_norm, &attention.k_norm].map(|norm| norm.as_ref().unwrap().weight.len());
    assert_eq!(lengths, [48, 24], "over all heads");
    assert_eq!(rotated(&open("models/cohere2-moe").config), three, "dense layers are rotated without a window");
    let four = [None, Some(8), Some(8), None];
    assert_eq!(windows(&open("models/cohere2-moe").config), four);
    for name in ["exaone4", "cohere2", "exaone-moe"] {
        let config = open(&format!("models/{name}")).config;
        assert_eq!(rotated(&config), three, "{name}");
        assert_eq!(windows(&config), [Some(8), Some(8), Some(8), None], "{name}");
    }

    let granite = open("models/granite-4-dense").config;
    let attention_scale = granite.attentions().next().unwrap().scores.scale;
    assert_eq!((granite.embedding_scale, granite.residual_scale, attention_scale), (2.0, 0.7, 0.05));
    assert_eq!((granite.logit_scale, open("models/cohere2").config.logit_scale), (1.0 / 1.5, 0.5));
    let ministral = open("models/ministral3").config;
    let scale = ministral.attentions().next().unwrap().scores.query_scale.unwrap();
    assert_eq!((scale.beta, scale.length, scale.at(15)), (0.1, 16, 1.0));
    assert_eq!(scale.at(16), 1.0 + 0.1 * 2f32.ln());
    let rope = ministral.rope(0).unwrap();
    let RopeScaling::Yarn { attention_factor, .. } = rope.scaling else { panic!("{:?}", rope.scaling) };
    assert!((attention_factor - 1.0).abs() < 1e-6, "mscale is mscale_all_dim");
    let llama4 = open("models/llama4").config;
    assert_eq!(windows(&llama4), [Some(8), Some(8), Some(8), None]);
    assert_eq!(rotated(&llama4), three);
    let growth: Vec<_> = llama4.attentions().map(|attention| attention.scores.query_scale.map(|it| it.at(7))).collect();
    assert_eq!(growth, [None, None, None, Some(1.0 + 0.1 * 2f32.ln())], "of layers without positions, counted from 1");
    assert!(llama4.attentions().all(|attention| attention.window.is_none_or(|window| window.chunked)));
    assert!(llama4.experts.unwrap().router.weighs_inputs);
    for (name, dims) in [("nemotron", 8), ("stablelm", 4)] {
        let config = open(&format!("models/{name}")).config;
        let rope = config.rope(0).unwrap();
        assert_eq!((rope.dims, rope.order), (dims, RopeOrder::NeoX), "{name}");
    }
}

/// Constants of an architecture in llama.cpp, which files may omit.
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
    let minicpm = without("minicpm", "minicpm.embedding_scale");
    assert_eq!((minicpm.embedding_scale, open("models/minicpm").config.embedding_scale), (12.0, 3.0));
    let minicpm = without("minicpm3", "minicpm3.residual_scale");
    assert_eq!(minicpm.residual_scale, 1.4 / 3f32.sqrt());
    let minicpm = without("minicpm3", "minicpm3.logit_scale");
    assert_eq!((minicpm.logit_scale, open("models/minicpm3").config.logit_scale), (256.0 / 48.0, 0.5));
    let minicpm = without("minicpm3", "minicpm3.attention.value_length");
    assert_eq!(minicpm.attentions().next(), open("models/minicpm3").config.attentions().next(), "d over heads");
    for key in ["llama4.attention.qk_norm", "llama4.rope.layer_pattern", "llama4.attention.sliding_window_pattern"] {
        assert_eq!(without("llama4", key), open("models/llama4").config, "{key}");
    }
    let unnamed = without("llama4", "llama4.attention.sliding_window");
    assert_eq!(windows(&unnamed), [Some(8192), Some(8192), Some(8192), None]);
    let exaone = without("exaone4", "exaone4.attention.sliding_window_pattern");
    assert_eq!(windows(&exaone), [None; 4], "only the larger model has windows");
    assert!(exaone.attentions().all(|attention| attention.positions.rope.is_some()));
}

/// If lists or factors contradict the model, the error names them.
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

/// Tests an NVFP4 matrix with the factor of its tensor.
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
    // A factor beside a matrix of another type is ignored.
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

/// Facts about MoE families that a golden reference might match by chance.
#[test]
fn routing_reaches_the_configuration() {
    let router = |name: &str| open(&format!("models/{name}")).config.experts.unwrap().router;
    assert_eq!(router("gpt-oss").score, RouterScore::SoftmaxOfChosen);
    assert_eq!(router("qwen2-moe"), Router::softmax(false));
    assert_eq!(router("qwen3-moe"), Router::softmax(true));
    assert_eq!(router("glm4-moe"), Router { scale: 2.5, ..Router::sigmoid(true) });
    assert_eq!(router("ernie4_5-moe"), Router::softmax(true));
    assert_eq!(router("qwen3-vl-moe"), Router::softmax(true));
    assert_eq!(router("olmoe"), Router::softmax(false));
    assert_eq!(router("granitemoe"), Router::softmax(true));
    assert_eq!(router("exaone-moe"), Router { scale: 2.5, ..Router::sigmoid(true) });
    assert_eq!(router("hy-v3"), Router { scale: 2.5, ..Router::sigmoid(true) });
    assert_eq!(router("cohere2-moe"), Router { scale: 0.5, ..Router::sigmoid(true) });
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
