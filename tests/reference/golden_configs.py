"""Configurations of the folders that make_golden.py writes."""

SIZES = {
    "vocab_size": 384,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
# Positions of text are equal in every section.
MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 2, 2]}
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
DELTA_NET = {
    "hidden_size": 64,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "mtp_num_hidden_layers": 1,
}
# The layer of a draft head of models with delta nets, as a model of its own.
FULL_ATTENTION = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


def vision(**sizes):
    return {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 48} | sizes


def as_minicpm(config):
    """The keys of MiniCPM for Granite's factors; its files name the factors by what they come from."""
    depth = config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5
    factors = {"scale_emb": config["embedding_multiplier"], "scale_depth": depth}
    base = {"dim_model_base": int(config["hidden_size"] / config["logits_scaling"])}
    dropped = ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"]
    rest = {key: value for key, value in config.items() if key not in dropped}
    return rest | factors | base | {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"]}


CONFIGS = {
    "qwen2_5-vl": {
        "class": "Qwen2_5_VL",
        "seed": 17,
        "head": "ForConditionalGeneration",
        "config": {"text_config": SIZES | {"rope_parameters": MROPE}, "vision_config": vision(tokens_per_second=2)},
    },
    "qwen3-vl": {
        "class": "Qwen3VL",
        "head": "ForConditionalGeneration",
        "config": {
            "text_config": SIZES | {"head_dim": 16, "rope_parameters": MROPE | {"mrope_section": [4, 2, 2]}},
            "vision_config": vision(deepstack_visual_indexes=[0], num_position_embeddings=16),
        },
    },
    "qwen3-vl-moe": {
        "class": "Qwen3VLMoe",
        "head": "ForConditionalGeneration",
        "config": {
            "text_config": SIZES
            | EXPERTS
            | {"num_hidden_layers": 2, "head_dim": 16, "rope_parameters": MROPE | {"mrope_section": [4, 2, 2]}},
            "vision_config": vision(deepstack_visual_indexes=[0], num_position_embeddings=16),
        },
    },
    "minicpm": {
        "class": "Granite",
        "config": SIZES
        | {"embedding_multiplier": 3.0, "residual_multiplier": 1.4 / 3**0.5}
        | {"attention_multiplier": 12**-0.5, "logits_scaling": 2.0},
        "written": as_minicpm,
    },
    "minicpm3": {
        "class": "MiniCPM3",
        "config": SIZES
        | {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8}
        | {"v_head_dim": 12, "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 24},
    },
    "glm4": {"class": "Glm4", "seed": 7, "config": SIZES | {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True}},
    "gemma": {"class": "Gemma", "embedding": 0.1, "config": SIZES | {"head_dim": 16, "tie_word_embeddings": True}},
    "olmoe": {"class": "Olmoe", "config": SIZES | {"intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2}},
    "granitemoe": {
        "class": "GraniteMoe",
        "config": SIZES
        | {"intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 2.0}
        | {"residual_multiplier": 0.7, "attention_multiplier": 0.3, "logits_scaling": 1.5},
    },
    "command-r": {"class": "Cohere", "embedding": 0.5, "config": SIZES | {"logit_scale": 0.5, "tie_word_embeddings": True}},
    "cohere2-moe": {
        "class": "Cohere2Moe",
        "embedding": 0.5,
        "config": SIZES
        | {"num_hidden_layers": 4, "head_dim": 12, "intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
        | {"num_shared_experts": 1, "expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 64, "sliding_window": 8}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"], "logit_scale": 0.5}
        | {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "tie_word_embeddings": True, "pad_token_id": 0},
    },
    "exaone-moe": {
        "class": "ExaoneMoe",
        "config": SIZES
        | {"num_hidden_layers": 4, "intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 24}
        | {"sliding_window": 8, "num_shared_experts": 1, "routed_scaling_factor": 2.5},
    },
    "mistral4": {
        "class": "Mistral4",
        "config": SIZES
        | {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8}
        | {"v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "max_position_embeddings": 256,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
    },
    "hunyuan-dense": {
        "class": "HunYuanDenseV1",
        "config": SIZES
        | {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}},
    },
    "hunyuan-moe": {
        "class": "HunYuanMoEV1",
        "config": SIZES
        | {"head_dim": 12, "intermediate_size": 32, "num_experts": 4, "moe_topk": 2}
        | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}},
    },
    "hy-v3": {
        "class": "HYV3",
        "config": SIZES
        | EXPERTS
        | {"num_hidden_layers": 4, "head_dim": 16, "num_shared_experts": 2, "router_scaling_factor": 2.5}
        | {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
    },
    "muse-glimmer": {
        "class": "MuseGlimmer",
        "head": "ForConditionalGeneration",
        "config": {
            "text_config": SIZES
            | {"num_hidden_layers": 4, "head_dim": 12, "sliding_window": 8, "output_multiplier": 0.5}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "vision_config": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
            | {"pos_emb_height": 4, "pos_emb_width": 4, "patch_size": 2},
            "out_hidden_size": 64,
            "projector_hidden_size": 16,
        },
    },
    "llama4": {
        "class": "Llama4",
        "part": "Text",
        "config": SIZES
        | {"num_hidden_layers": 4, "head_dim": 12, "intermediate_size": 24, "intermediate_size_mlp": 64, "num_local_experts": 4}
        | {"num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "attention_chunk_size": 8, "floor_scale": 8}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    },
    "step3": {
        "class": "Step3p7",
        "head": "ForConditionalGeneration",
        "config": {
            "text_config": SIZES
            | {"num_hidden_layers": 4, "head_dim": 12, "sliding_window": 8, "num_sliding_attention_heads": 6, "pad_token_id": 0}
            | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
            | {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "n_routed_experts": 6, "num_experts_per_tok": 2}
            | {"moe_intermediate_size": 20, "share_expert_dim": 24, "moe_router_scaling_factor": 1.5}
            | {"swiglu_limits": [0.0, 0.4, 0.0, 0.6], "swiglu_limits_shared": [0.0, 0.0, 0.5, 0.3]}
            | {
                "rope_parameters": {
                    "full_attention": LLAMA3 | {"rope_theta": 5e4, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
                }
            },
            "vision_config": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "image_size": 28, "mlp_ratio": 1.0}
            | {"max_position_embeddings": 4},
        },
    },
    "mimo-v2-flash": {
        "class": "MiMoV2Flash",
        "config": SIZES
        | {"num_hidden_layers": 4, "head_dim": 12, "v_head_dim": 8, "sliding_window": 8, "n_routed_experts": 6}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 1.5},
    },
    "qwen3_5-mtp": {
        "class": "Qwen3_5",
        "part": "Text",
        "config": SIZES | DELTA_NET,
        "draft": {"names": "qwen", "layer": FULL_ATTENTION},
    },
    "qwen3_5-moe-mtp": {
        "class": "Qwen3_5Moe",
        "part": "Text",
        "config": SIZES | DELTA_NET | EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
        "draft": {"names": "qwen", "layer": FULL_ATTENTION},
    },
    "glm4-moe-mtp": {
        "class": "Glm4Moe",
        "config": SIZES
        | {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "n_routed_experts": 6, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True}
        | {"routed_scaling_factor": 1.5, "attention_bias": True, "num_nextn_predict_layers": 1}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        "draft": {"names": "deepseek", "layer": {"num_hidden_layers": 1, "first_k_dense_replace": 0}},
    },
    "hy-v3-mtp": {
        "class": "HYV3",
        "config": SIZES
        | EXPERTS
        | {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "moe_intermediate_size": 32, "num_shared_experts": 1}
        | {"router_scaling_factor": 1.5, "num_nextn_predict_layers": 1},
        "draft": {"names": "hy", "layer": {"num_hidden_layers": 1, "mlp_layer_types": ["sparse"]}},
    },
    "deepseek-v3-mtp": {
        "class": "DeepseekV3",
        "config": SIZES
        | {"hidden_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32}
        | {"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"n_group": 4, "topk_group": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1}
        | {"num_nextn_predict_layers": 1},
        "draft": {"names": "deepseek", "own": True, "layer": {"num_hidden_layers": 1, "first_k_dense_replace": 0}},
    },
    "nemotron-3-mtp": {
        "class": "NemotronH",
        "config": {key: it for key, it in SIZES.items() if key != "num_hidden_layers"}
        | {"hidden_size": 64, "head_dim": 32, "layers_block_type": ["mamba", "moe", "attention"], "pad_token_id": 0}
        | {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 16}
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64}
        | {"routed_scaling_factor": 2.5, "use_mamba_kernels": False}
        | {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]},
        "draft": {"names": "nemotron", "layer": {"layers_block_type": ["attention", "moe"]}},
    },
}
