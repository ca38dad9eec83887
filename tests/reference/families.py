"""Families that both programs know: a base configuration each, and per key the values that are drawn instead.

`ABSENT` leaves a key out, so that both sides fall back on their defaults. A value may be a function of the configuration drawn so far.
"""

ABSENT = "absent"
VOCABULARY = 384

SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
    bos_token_id=0, eos_token_id=1, pad_token_id=1,
)

ACTIVATIONS = dict(hidden_act=["silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", ABSENT])
COMMON = dict(
    num_attention_heads=[4, 8], num_key_value_heads=[1, 2, 4], intermediate_size=[64, 160],
    num_hidden_layers=[1, 2, 4, 5], rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT],
    max_position_embeddings=[64, 1024, ABSENT],
)
LAYER_NORMS = {key: values for key, values in COMMON.items() if key != "rms_norm_eps"}
HEADS = dict(head_dim=[16, 24, 32])


def head(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def longrope(config):
    pairs = int(head(config) * config.get("partial_rotary_factor", 1.0)) // 2
    return dict(
        rope_type="longrope", original_max_position_embeddings=16, short_factor=[1 + 0.1 * i for i in range(pairs)],
        long_factor=[1 + 0.5 * i for i in range(pairs)],
    )


def yarn(**others):
    return dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, **others)


ROPES = dict(
    rope_theta=[500000.0, 1e6, ABSENT],
    rope_scaling=[
        dict(rope_type="linear", factor=2.5),
        dict(rope_type="dynamic", factor=3.0),
        dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
        yarn(), yarn(beta_fast=16.0, beta_slow=2.0), yarn(attention_factor=1.2), yarn(mscale=0.7, mscale_all_dim=1.1),
        yarn(truncate=False), longrope, lambda config: dict(longrope(config), factor=4.0),
        lambda config: dict(longrope(config), attention_factor=1.1),
    ],
)


def pattern(kinds):
    def draw(config):
        n = config["num_hidden_layers"]
        return [kinds[(i * 7 + n) % 3 % len(kinds)] for i in range(n)]
    return draw


WINDOW_TYPES = ["sliding_attention", "full_attention"]
WINDOWS = dict(sliding_window=[4, 8, 16, ABSENT], layer_types=[pattern(WINDOW_TYPES), pattern(WINDOW_TYPES[::-1])])


def by_kind(full, sliding):
    return dict(full_attention=full, sliding_attention=sliding)


BY_KIND = dict(
    rope_parameters=[
        by_kind(dict(rope_type="default", rope_theta=5e5), dict(rope_type="default", rope_theta=2e4)),
        by_kind(dict(rope_type="linear", factor=4.0, rope_theta=1e6), dict(rope_type="default", rope_theta=1e4)),
        by_kind(dict(yarn(), rope_theta=1e6), dict(rope_type="linear", factor=2.0, rope_theta=1e4)),
    ]
)
EXPERTS = dict(num_experts_per_tok=[1, 3], moe_intermediate_size=[16, 48], norm_topk_prob=[True, False, ABSENT])
LATENT = dict(
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1, topk_group=1, n_shared_experts=1,
    first_k_dense_replace=1, routed_scaling_factor=1.0, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16,
    qk_rope_head_dim=16, v_head_dim=16, num_key_value_heads=4, num_nextn_predict_layers=0,
)
LATENT_DRAWS = dict(
    EXPERTS, q_lora_rank=[16, None], kv_lora_rank=[16, 48], qk_nope_head_dim=[8, 32], qk_rope_head_dim=[8], v_head_dim=[8, 32],
    n_shared_experts=[2], first_k_dense_replace=[0, 2], routed_scaling_factor=[2.5, ABSENT],
    rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT], num_hidden_layers=[2, 4], rope_theta=[5e5, ABSENT],
    rope_scaling=[yarn(), yarn(mscale_all_dim=0.8), yarn(mscale=0.7, mscale_all_dim=0.7), yarn(attention_factor=1.3)],
)
DELTA_NET = dict(
    head_dim=32, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
    linear_num_value_heads=4, num_hidden_layers=4,
)
DELTA_NET_DRAWS = dict(
    num_hidden_layers=[2, 4, 5], full_attention_interval=[2, 3], linear_conv_kernel_dim=[3], linear_key_head_dim=[8],
    linear_value_head_dim=[32], linear_num_value_heads=[2, 8], num_key_value_heads=[1, 4], rms_norm_eps=[1e-5, ABSENT],
    tie_word_embeddings=[True, ABSENT], partial_rotary_factor=[0.5, 1.0, ABSENT], rope_theta=[1e6, ABSENT],
)
MAMBA_GRANITE = dict(
    num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=64, position_embedding_type="nope",
    layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_head=32, mamba_expand=2, mamba_n_groups=1,
    mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=16,
)
GRANITE_SCALES = dict(
    embedding_multiplier=[12.0, ABSENT], logits_scaling=[8.0, ABSENT], residual_multiplier=[0.22, ABSENT],
    attention_multiplier=[0.25, ABSENT],
)

# name: (base configuration beside SIZES, draws)
FAMILIES = {
    "llama": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[True], mlp_bias=[True], sliding_window=[8])),
    "llama4_text": (
        dict(head_dim=16, intermediate_size=32, intermediate_size_mlp=64, num_local_experts=4, num_experts_per_tok=1,
             attention_chunk_size=8, floor_scale=8, num_hidden_layers=4),
        dict(num_key_value_heads=[1, 4], num_hidden_layers=[2, 4, 5], rms_norm_eps=[1e-6, 1e-2, ABSENT], num_experts_per_tok=[2],
             interleave_moe_layer_step=[2], use_qk_norm=[False], attn_temperature_tuning=[False], attn_scale=[0.4],
             attention_chunk_size=[16, None], no_rope_layer_interval=[2, 3], attention_bias=[True], tie_word_embeddings=[True, ABSENT],
             rope_theta=[1e4, ABSENT], **ACTIVATIONS),
    ),
    "mistral": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, sliding_window=[4, 16, None, ABSENT])),
    "mixtral": (
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, num_experts_per_tok=[1, 3], sliding_window=[8]),
    ),
    "ministral3": (
        dict(head_dim=16, rope_parameters=dict(yarn(), rope_theta=1e4, llama_4_scaling_beta=0.1)),
        dict(COMMON, **HEADS, **ACTIVATIONS, sliding_window=[8], rope_parameters=[
            ABSENT, dict(rope_type="default", rope_theta=1e4, llama_4_scaling_beta=0.4, original_max_position_embeddings=16),
            dict(yarn(mscale=1.0, mscale_all_dim=1.0), rope_theta=1e6, llama_4_scaling_beta=0.3),
        ]),
    ),
    "qwen2": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, **WINDOWS, use_sliding_window=[True], max_window_layers=[0, 1, 2])),
    "qwen3": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, **WINDOWS, use_sliding_window=[True], max_window_layers=[0, 1, 2],
             attention_bias=[True]),
    ),
    "qwen2_moe": (
        dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(COMMON, **EXPERTS, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             max_window_layers=[0, 2, 4], decoder_sparse_step=[2], mlp_only_layers=[[0]], qkv_bias=[False]),
    ),
    "qwen3_moe": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        dict(COMMON, **HEADS, **EXPERTS, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             decoder_sparse_step=[2], mlp_only_layers=[[0]], attention_bias=[True]),
    ),
    "qwen3_5_text": (DELTA_NET, DELTA_NET_DRAWS),
    "qwen3_5_moe_text": (
        dict(DELTA_NET, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(DELTA_NET_DRAWS, num_experts_per_tok=[1, 3]),
    ),
    "qwen3_next": (
        dict(DELTA_NET, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(DELTA_NET_DRAWS, num_experts_per_tok=[1, 3], norm_topk_prob=[False, ABSENT], mlp_only_layers=[[0]]),
    ),
    "gpt_oss": (
        dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=16),
        dict(num_hidden_layers=[1, 2, 4], num_key_value_heads=[1, 4], **HEADS, **ROPES, **WINDOWS, num_experts_per_tok=[1, 3],
             tie_word_embeddings=[True, ABSENT], rms_norm_eps=[1e-2, ABSENT], attention_bias=[False]),
    ),
    "gemma2": (
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
        dict(COMMON, **HEADS, rope_theta=[1e6, ABSENT], **WINDOWS, query_pre_attn_scalar=[24, ABSENT],
             attn_logit_softcapping=[5.0, None], final_logit_softcapping=[5.0, None],
             hidden_activation=["gelu", "silu", ABSENT]),
    ),
    "gemma3_text": (
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
        dict(COMMON, **HEADS, **WINDOWS, **BY_KIND, query_pre_attn_scalar=[24, ABSENT], attn_logit_softcapping=[5.0],
             final_logit_softcapping=[5.0], hidden_activation=["gelu", "silu", ABSENT], sliding_window_pattern=[2, 3],
             use_bidirectional_attention=[True]),
    ),
    "gemma3n_text": (
        dict(head_dim=16, sliding_window=16, num_kv_shared_layers=0, hidden_size_per_layer_input=16, hidden_size=32,
             vocab_size_per_layer_input=VOCABULARY, laurel_rank=8, num_hidden_layers=5),
        dict(num_kv_shared_layers=[2], **HEADS, **BY_KIND, final_logit_softcapping=[5.0, ABSENT],
             activation_sparsity_pattern=[[0.5, 0.3, 0.9, 0.0, 0.95]], rms_norm_eps=[1e-2], sliding_window=[8],
             hidden_activation=["gelu", ABSENT]),
    ),
    "gemma4_text": (
        dict(head_dim=16, global_head_dim=32, sliding_window=16, hidden_size_per_layer_input=0,
             vocab_size_per_layer_input=VOCABULARY),
        dict(COMMON, sliding_window=[8], layer_types=[pattern(WINDOW_TYPES)], global_head_dim=[16, 24],
             attention_k_eq_v=[True], num_global_key_value_heads=[1, 2], final_logit_softcapping=[5.0],
             hidden_size_per_layer_input=[16],
             use_bidirectional_attention=["vision"], hidden_activation=["gelu", ABSENT]),
    ),
    "phi3": (
        dict(original_max_position_embeddings=16),
        dict(COMMON, **ACTIVATIONS, sliding_window=[8], partial_rotary_factor=[0.5], rope_theta=[1e6, ABSENT],
             rope_scaling=[longrope]),
    ),
    "phimoe": (
        dict(num_local_experts=4, num_experts_per_tok=2),
        dict(COMMON, **ACTIVATIONS, attention_bias=[True], lm_head_bias=[True], sliding_window=[8], rope_theta=[1e4]),
    ),
    "smollm3": (
        dict(),
        dict(COMMON, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             no_rope_layer_interval=[2, ABSENT], layer_types=[pattern(WINDOW_TYPES)], attention_bias=[True]),
    ),
    "granite": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, **GRANITE_SCALES, attention_bias=[True], mlp_bias=[True])),
    "granitemoehybrid": (
        MAMBA_GRANITE,
        dict(**GRANITE_SCALES, num_local_experts=[4], num_experts_per_tok=[2], position_embedding_type=["rope"],
             mamba_d_state=[32], rms_norm_eps=[1e-2, ABSENT], tie_word_embeddings=[True, ABSENT], hidden_act=["gelu"],
             layer_types=[["attention"] * 3, ["linear_attention", "full_attention", "full_attention"]]),
    ),
    "lfm2": (
        dict(norm_eps=1e-6, layer_types=["conv", "full_attention", "conv"], block_multiple_of=16),
        dict(norm_eps=[1e-2, ABSENT], conv_L_cache=[2, ABSENT], conv_bias=[True], block_auto_adjust_ff_dim=[False],
             block_ffn_dim_multiplier=[1.3], rope_theta=[1e4, ABSENT], num_key_value_heads=[1, 4],
             tie_word_embeddings=[True, ABSENT], layer_types=[["full_attention", "conv", "conv"]]),
    ),
    "lfm2_moe": (
        dict(norm_eps=1e-6, layer_types=["conv", "full_attention", "conv"], num_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=32, num_dense_layers=1),
        dict(norm_eps=[1e-2, ABSENT], conv_bias=[True], num_dense_layers=[0, 2], norm_topk_prob=[False],
             routed_scaling_factor=[2.0], use_expert_bias=[False], num_experts_per_tok=[1, 3]),
    ),
    "olmo2": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, attention_bias=[True])),
    "olmo3": (dict(sliding_window=16), dict(COMMON, **BY_KIND, **ACTIVATIONS, **WINDOWS)),
    "exaone4": (
        dict(head_dim=16, sliding_window=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, **WINDOWS, sliding_window_pattern=[2, 3]),
    ),
    "cohere2": (
        dict(layer_norm_eps=1e-5, sliding_window=16, logit_scale=0.5),
        dict(LAYER_NORMS, **ROPES, **ACTIVATIONS, **WINDOWS, logit_scale=[2.0, ABSENT], layer_norm_eps=[1e-2, ABSENT],
             attention_bias=[True], sliding_window_pattern=[2]),
    ),
    "seed_oss": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[False], attention_out_bias=[True], mlp_bias=[True]),
    ),
    "glm4_moe": (
        dict(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
             num_nextn_predict_layers=0),
        dict(COMMON, **EXPERTS, **ROPES, **ACTIVATIONS, partial_rotary_factor=[0.25, 1.0], use_qk_norm=[True],
             attention_bias=[True], first_k_dense_replace=[0, 2], n_shared_experts=[2], routed_scaling_factor=[2.5]),
    ),
    "deepseek_v2": (dict(LATENT, topk_method="greedy"), dict(LATENT_DRAWS, **ACTIVATIONS)),
    "deepseek_v3": (LATENT, dict(LATENT_DRAWS, **ACTIVATIONS, rope_interleave=[False])),
    "hunyuan_v1_dense": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ACTIVATIONS, attention_bias=[True], rope_parameters=[
            dict(rope_type="dynamic", alpha=1000.0, factor=1.0, rope_theta=1e4), dict(rope_type="linear", factor=2.5, rope_theta=1e4),
        ]),
    ),
    "hunyuan_v1_moe": (
        dict(head_dim=16, num_experts=4, moe_topk=2),
        dict(COMMON, **HEADS, **ACTIVATIONS, moe_topk=[1, 3], rope_parameters=[
            dict(rope_type="dynamic", alpha=50.0, factor=1.0, rope_theta=5e5),
        ]),
    ),
    "mistral4": (
        dict(LATENT, rope_parameters=dict(yarn(mscale=1.0, mscale_all_dim=1.0), rope_theta=1e4, llama_4_scaling_beta=0.1)),
        {key: values for key, values in LATENT_DRAWS.items() if key not in ("rope_theta", "rope_scaling")}
        | dict(ACTIVATIONS, rope_parameters=[dict(yarn(mscale_all_dim=0.8), rope_theta=5e5, llama_4_scaling_beta=0.4)]),
    ),
    "glm4_moe_lite": (dict(LATENT), dict(LATENT_DRAWS, first_k_dense_replace=[1], mlp_layer_types=[lambda c: ["dense"] * c["num_hidden_layers"]])),
    "laguna": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=16,
             shared_expert_intermediate_size=32, gating="per-head"),
        dict(COMMON, **HEADS, **ACTIVATIONS, layer_types=[pattern(WINDOW_TYPES)], sliding_window=[8, ABSENT],
             moe_routed_scaling_factor=[2.0], num_experts_per_tok=[1, 3], gating=["per-element"],
             moe_router_logit_softcapping=[5.0]),
    ),
    "minimax_m2": (
        dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32),
        dict(COMMON, **ACTIVATIONS, rotary_dim=[8], rope_theta=[1e4, ABSENT], num_experts_per_tok=[1, 3]),
    ),
    "ernie4_5": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, use_bias=[True])),
    "ernie4_5_moe": (
        dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_start_index=1,
             moe_layer_end_index=2),
        dict(COMMON, **ROPES, **ACTIVATIONS, moe_k=[1, 3], moe_num_shared_experts=[0, 2], moe_layer_interval=[2],
             moe_layer_start_index=[0], use_bias=[True]),
    ),
    "nemotron": (dict(norm_eps=1e-5), dict(LAYER_NORMS, **ACTIVATIONS, norm_eps=[1e-2, ABSENT], partial_rotary_factor=[0.25, 1.0],
                                           attention_bias=[True], mlp_bias=[True], head_dim=[24], rope_theta=[1e6])),
    "arcee": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[True], mlp_bias=[True])),
    "jais2": (dict(layer_norm_eps=1e-5, head_dim=16), dict(LAYER_NORMS, **ROPES, **ACTIVATIONS, layer_norm_eps=[1e-2, ABSENT],
                                                           attention_bias=[False], mlp_bias=[False])),
    "bitnet": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS)),
    "nemotron_h": (
        dict(head_dim=16, layers_block_type=["mamba", "attention", "moe"], ssm_state_size=16, mamba_num_heads=4, mamba_head_dim=16,
             n_groups=2, conv_kernel=4, chunk_size=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
             moe_shared_expert_intermediate_size=48, layer_norm_epsilon=1e-6, num_hidden_layers=ABSENT),
        dict(layers_block_type=[["mamba", "mlp", "attention", "mlp"], ["attention", "moe"], ["mamba"]], n_groups=[1],
             layer_norm_epsilon=[1e-2, ABSENT], mlp_hidden_act=["gelu", "silu"], mamba_hidden_act=["gelu"],
             tie_word_embeddings=[True, ABSENT], routed_scaling_factor=[2.5], norm_topk_prob=[False], attention_bias=[True],
             mlp_bias=[True], use_bias=[True], use_conv_bias=[False], moe_latent_size=[16], sliding_window=[8]),
    ),
    "falcon": (
        dict(multi_query=True, parallel_attn=True, new_decoder_architecture=False, layer_norm_epsilon=1e-5, num_kv_heads=2),
        dict(num_attention_heads=[8], num_hidden_layers=[1, 4], new_decoder_architecture=[True], multi_query=[False],
             bias=[True], alibi=[True], parallel_attn=[False], activation=["relu", "silu", ABSENT], num_kv_heads=[1, 4],
             layer_norm_epsilon=[1e-2], tie_word_embeddings=[True, ABSENT], rope_theta=[1e6], ffn_hidden_size=[128],
             num_ln_in_parallel_attn=[1]),
    ),
    "opt": (
        dict(ffn_dim=96, word_embed_proj_dim=64, num_key_value_heads=ABSENT, intermediate_size=ABSENT, rms_norm_eps=ABSENT),
        dict(num_hidden_layers=[1, 4], do_layer_norm_before=[False], word_embed_proj_dim=[32], enable_bias=[False],
             activation_function=["gelu", "silu"], tie_word_embeddings=[True, ABSENT], _remove_final_layer_norm=[True],
             layer_norm_elementwise_affine=[False]),
    ),
    "starcoder2": (
        dict(norm_epsilon=1e-5),
        dict(LAYER_NORMS, **ROPES, hidden_act=["gelu", "silu", ABSENT], norm_epsilon=[1e-2, ABSENT], sliding_window=[8],
             use_bias=[False]),
    ),
    "stablelm": (
        dict(layer_norm_eps=1e-5),
        dict(LAYER_NORMS, **ACTIVATIONS, layer_norm_eps=[1e-2, ABSENT], use_qkv_bias=[True], qk_layernorm=[True],
             use_parallel_residual=[True], partial_rotary_factor=[0.5, 1.0, ABSENT], rope_theta=[1e6, ABSENT]),
    ),
}
