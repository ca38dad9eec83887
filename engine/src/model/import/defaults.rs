//! Values of keys that a `config.json` may leave out, as the configuration classes of transformers have them. Sizes that every file
//! names are not among them, but for Gemma 3, whose published files leave out even those.

use serde_json::{Map, Value, json};

/// Fills in what is absent (not what is null) for a configuration of `model_type`.
pub(super) fn fill_in(values: &mut Map<String, Value>, model_type: &str) {
    let Value::Object(defaults) = defaults(model_type) else { return };
    let names = |values: &Map<String, Value>, name: &str| values.get(name).is_some_and(|value| !value.is_null());
    let rotates = names(values, "rope_parameters") || names(values, "rope_scaling");
    for (name, value) in defaults {
        if name == "rope_parameters" {
            if !rotates {
                values.insert(name, value);
            }
        } else {
            values.entry(name).or_insert(value);
        }
    }
}

fn defaults(model_type: &str) -> Value {
    match model_type {
        "llama" | "granite" | "granitemoe" | "granitemoeshared" | "granitemoehybrid" | "minicpm" => {
            llama_like(model_type)
        }
        "mistral" | "mixtral" | "ministral3" => mistral(model_type),
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => qwen(model_type),
        "qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text" | "qwen3_vl" | "qwen3_vl_text"
        | "qwen3_vl_moe" | "qwen3_vl_moe_text" => qwen_vl(model_type),
        "qwen3_5" | "qwen3_5_text" => qwen35(4),
        "qwen3_next" | "qwen3_5_moe" | "qwen3_5_moe_text" => qwen35(2),
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" | "gemma3n" | "gemma3n_text" | "gemma4" | "gemma4_text" => {
            gemma(model_type)
        }
        "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" | "minicpm3" | "mistral4" => latent(model_type),
        "gpt_oss" | "llama4" | "llama4_text" | "laguna" | "minimax_m2" | "glm4_moe" | "ernie4_5" | "ernie4_5_moe"
        | "lfm2" | "lfm2_moe" | "phimoe" | "olmoe" | "cohere2_moe" | "exaone_moe" | "step3p5" | "mimo_v2_flash" => {
            experts(model_type)
        }
        _ => dense(model_type),
    }
}

fn llama_like(model_type: &str) -> Value {
    match model_type {
        "granitemoehybrid" => json!({
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "shared_intermediate_size": 1024,
            "num_local_experts": 8, "num_experts_per_tok": 2, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_expand": 2, "mamba_d_conv": 4,
        }),
        "granitemoe" | "granitemoeshared" => json!({
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_local_experts": 8, "num_experts_per_tok": 2,
        }),
        _ => json!({"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}),
    }
}

fn mistral(model_type: &str) -> Value {
    match model_type {
        "mistral" => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 4096,
        }),
        "mixtral" => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }),
        _ => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        }),
    }
}

fn qwen(model_type: &str) -> Value {
    let mut defaults = json!({
        "num_key_value_heads": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28,
    });
    match model_type {
        "qwen2_moe" => {
            defaults["num_key_value_heads"] = json!(16);
            defaults["num_experts_per_tok"] = json!(4);
            defaults["moe_intermediate_size"] = json!(1408);
            defaults["shared_expert_intermediate_size"] = json!(5632);
        }
        "qwen3" => defaults["head_dim"] = json!(128),
        "qwen3_moe" => {
            defaults["num_key_value_heads"] = json!(4);
            defaults["num_experts_per_tok"] = json!(8);
            defaults["moe_intermediate_size"] = json!(768);
        }
        _ => {}
    }
    defaults
}

/// The language models of those that see.
fn qwen_vl(model_type: &str) -> Value {
    match model_type {
        "qwen3_vl" | "qwen3_vl_text" => json!({
            "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6,
        }),
        "qwen3_vl_moe" | "qwen3_vl_moe_text" => json!({
            "num_key_value_heads": 16, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6,
            "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        }),
        _ => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
            "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 80,
        }),
    }
}

/// Qwen3-Next and Qwen 3.5, which differ in their key/value heads.
fn qwen35(kv_heads: usize) -> Value {
    json!({
        "num_key_value_heads": kv_heads, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    })
}

fn gemma(model_type: &str) -> Value {
    match model_type {
        "gemma" => json!({
            "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        }),
        "gemma2" => json!({
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        }),
        "gemma3" | "gemma3_text" => json!({
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
            "vocab_size": 262208, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        }),
        "gemma3n" | "gemma3n_text" => json!({
            "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "sliding_window": 512, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 15,
        }),
        _ => json!({
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
            "sliding_window": 512, "hidden_size_per_layer_input": 256, "global_head_dim": 512,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        }),
    }
}

fn latent(model_type: &str) -> Value {
    let mut defaults = json!({
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
    });
    let others = match model_type {
        "deepseek_v3" => json!({
            "max_position_embeddings": 4096, "n_shared_experts": 1, "moe_intermediate_size": 2048, "n_group": 8,
            "topk_group": 4, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8,
        }),
        "glm4_moe_lite" => json!({
            "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "n_shared_experts": 1, "moe_intermediate_size": 1536,
            "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "routed_scaling_factor": 1.8,
            "num_experts_per_tok": 4,
        }),
        "mistral4" => json!({
            "max_position_embeddings": 1048576, "num_key_value_heads": 32, "kv_lora_rank": 256, "q_lora_rank": 1024,
            "qk_nope_head_dim": 64, "n_shared_experts": 1, "n_routed_experts": 128, "moe_intermediate_size": 2048,
            "num_experts_per_tok": 4,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        }),
        "minicpm3" => json!({
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "num_key_value_heads": 40, "kv_lora_rank": 256,
            "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": null, "scale_emb": 12,
            "scale_depth": 1.4, "dim_model_base": 256,
        }),
        _ => json!({}),
    };
    if let (Value::Object(defaults), Value::Object(others)) = (&mut defaults, others) {
        defaults.extend(others);
    }
    defaults
}

fn experts(model_type: &str) -> Value {
    match model_type {
        "llama4" | "llama4_text" => json!({
            "intermediate_size_mlp": 16384, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
        }),
        "gpt_oss" => json!({
            "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "sliding_window": 128,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": false,
            },
        }),
        "laguna" => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
            "sliding_window": 512, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            },
        }),
        "minimax_m2" => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608, "rms_norm_eps": 1e-6,
            "num_experts_per_tok": 8,
        }),
        "glm4_moe" => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408, "n_shared_experts": 1, "partial_rotary_factor": 0.5,
        }),
        "olmoe" => json!({
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8,
        }),
        "cohere2_moe" => json!({
            "head_dim": 128, "max_position_embeddings": 8192, "sliding_window": 4096, "num_experts": 8,
            "num_experts_per_tok": 2,
        }),
        "exaone_moe" => json!({
            "num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096,
            "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
            "routed_scaling_factor": 2.5,
        }),
        "mimo_v2_flash" => json!({
            "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "sliding_window": 129, "attention_value_scale": 0.707, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.334},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.334},
            },
        }),
        "step3p5" => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 128_000, "rms_norm_eps": 1e-5,
            "n_routed_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        }),
        "ernie4_5" => json!({
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        }),
        "ernie4_5_moe" => json!({
            "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "moe_k": 6,
            "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
        }),
        "lfm2" => json!({"num_key_value_heads": 8, "max_position_embeddings": 128000}),
        "lfm2_moe" => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 128000, "num_experts_per_tok": 4,
            "moe_intermediate_size": 1792, "num_dense_layers": 2,
        }),
        _ => json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_local_experts": 16,
        }),
    }
}

fn dense(model_type: &str) -> Value {
    match model_type {
        "phi3" => {
            json!({"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5})
        }
        "smollm3" => json!({
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "use_sliding_window": false,
        }),
        "olmo2" => json!({"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}),
        "olmo3" => json!({"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096}),
        "exaone4" => json!({
            "num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096,
        }),
        "cohere2" => json!({"max_position_embeddings": 8192, "sliding_window": 4096}),
        "seed_oss" => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288, "rms_norm_eps": 1e-6,
        }),
        "nemotron" => json!({"max_position_embeddings": 4096, "partial_rotary_factor": 0.5}),
        "arcee" => json!({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
        "cohere" | "jais2" => json!({"max_position_embeddings": 8192}),
        "glm4" => json!({
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7,
            "partial_rotary_factor": 0.5,
        }),
        "muse_glimmer" | "muse_glimmer_text" => json!({
            "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "sliding_window": 2048, "final_logit_softcapping": 20.0, "qk_scale_factor": 3.87,
            "output_multiplier": 0.196_116_14,
        }),
        "hunyuan_v1_dense" => json!({"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}),
        "hunyuan_v1_moe" => json!({
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1,
        }),
        "bitnet" => json!({"num_key_value_heads": 5, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}),
        "nemotron_h" => json!({
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096, "ssm_state_size": 128,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
            "time_step_min": 0.001,
        }),
        "starcoder2" => json!({"num_key_value_heads": 2, "max_position_embeddings": 4096}),
        "stablelm" => {
            json!({"num_key_value_heads": 32, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25})
        }
        _ => json!({}),
    }
}
