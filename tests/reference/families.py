"""Families that both programs know: a base configuration each, and per key the values that are drawn instead."""

from draws import (
    ABSENT, ACTIVATIONS, BY_KIND, CHOSEN, COMMON, EXPERTS, GROUPS, HEADS, LAYER_NORMS, LAYER_TYPES, LINEAR, LLAMA3, PLAIN, PLAIN_ROPES, ROPES,
    WINDOWS, WINDOW_TYPES, YARN, YARNS, Any, by_kind, longrope, pattern, repeated, with_base, yarn,
)

VOCABULARY = 384

SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
    bos_token_id=0, eos_token_id=1, pad_token_id=1,
)
LATENT = dict(
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1, topk_group=1, n_shared_experts=1,
    first_k_dense_replace=1, routed_scaling_factor=1.0, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16,
    qk_rope_head_dim=16, v_head_dim=16, num_key_value_heads=4, num_nextn_predict_layers=0,
)
LATENT_DRAWS = dict(
    EXPERTS, **GROUPS, q_lora_rank=[16, None], kv_lora_rank=[16, 48], qk_nope_head_dim=[8, 32], qk_rope_head_dim=[8], v_head_dim=[8, 32],
    n_shared_experts=[2], first_k_dense_replace=[0, 2], routed_scaling_factor=[2.5, ABSENT],
    rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT], num_hidden_layers=[2, 4], rope_theta=[5e5, ABSENT],
    rope_scaling=[*YARNS, LINEAR, LLAMA3], hidden_size=[32, 96], num_attention_heads=[8], max_position_embeddings=[64, ABSENT],
)
DELTA_NET = dict(
    head_dim=32, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
    linear_num_value_heads=4, num_hidden_layers=4,
)
DELTA_NET_DRAWS = dict(
    num_hidden_layers=[2, 4, 5], full_attention_interval=[2, 3], linear_conv_kernel_dim=[2, 3], linear_key_head_dim=[8, 32],
    linear_value_head_dim=[32], linear_num_value_heads=[2, 8], linear_num_key_heads=[1], num_key_value_heads=[1, 4],
    rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT], partial_rotary_factor=[0.5, 1.0, ABSENT],
    rope_theta=[1e6, ABSENT], hidden_size=[32, 96], num_attention_heads=[2, 8], head_dim=[16, 64], attention_bias=[True],
    intermediate_size=[160], rope_parameters=[
        with_base(LINEAR, 1e6), with_base(dict(YARN, partial_rotary_factor=0.5), 1e4),
        dict(PLAIN, rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True),
    ],
    layer_types=[pattern(["linear_attention", "full_attention"]), repeated("linear_attention"), repeated("full_attention")],
)
MAMBA_GRANITE = dict(
    num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=64, position_embedding_type="nope",
    layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_head=32, mamba_expand=2, mamba_n_groups=1,
    mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=16,
)
GRANITE_SCALES = dict(
    embedding_multiplier=[12.0, ABSENT], logits_scaling=[8.0, ABSENT], residual_multiplier=[0.22, ABSENT],
    attention_multiplier=[0.25, 0.0078125, ABSENT],
)

def towers(**sizes):
    return dict(dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16), **sizes)


# Of families that see: the tower of pictures beside the language model, whose configuration is drawn. Files of the first two name the
# language model's keys beside the tower, not in an object of its own.
# Of base configurations, in which nothing is drawn.
SOME_YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
TOWERS = {
    "qwen2_vl": towers(embed_dim=16), "qwen2_5_vl": towers(), "qwen3_vl": towers(deepstack_visual_indexes=[0], num_position_embeddings=16),
    "qwen3_vl_moe": towers(deepstack_visual_indexes=[0], num_position_embeddings=16),
    "step3p7": dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, image_size=28, mlp_ratio=1.0, max_position_embeddings=4),
}
FLAT = ["qwen2_vl", "qwen2_5_vl"]
SECTIONS = Any([[2, 3, 3], [4, 2, 2]])
MROPES = dict(rope_scaling=[dict(YARN, mrope_section=SECTIONS), dict(LINEAR, mrope_section=SECTIONS), dict(PLAIN, mrope_section=SECTIONS)])

# name, which begins with the model type: (base configuration beside SIZES, draws)
FAMILIES = {
    "llama": (dict(head_dim=16), dict(
        COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[True], mlp_bias=[True], sliding_window=[8],
        rope_parameters=[with_base(YARN, 5e5), with_base(LLAMA3, 5e5), with_base(LINEAR, 1e4), PLAIN],
    )),
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
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, num_experts_per_tok=CHOSEN, num_local_experts=[8], sliding_window=[8]),
    ),
    "ministral3": (
        dict(head_dim=16, rope_parameters=dict(SOME_YARN, rope_theta=1e4, llama_4_scaling_beta=0.1)),
        dict(COMMON, **HEADS, **ACTIVATIONS, sliding_window=[8], rope_parameters=[
            dict(rope_type="default", rope_theta=1e4, llama_4_scaling_beta=0.4, original_max_position_embeddings=16),
            dict(YARN, mscale=1.0, mscale_all_dim=1.0, rope_theta=1e6, llama_4_scaling_beta=0.3),
            dict(YARN, rope_theta=1e6),
        ]),
    ),
    "qwen2": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, **WINDOWS, use_sliding_window=[True], max_window_layers=[0, 1, 2])),
    "qwen3": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, **WINDOWS, use_sliding_window=[True], max_window_layers=[0, 1, 2],
             attention_bias=[True]),
    ),
    "qwen2_vl": (
        dict(rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3])),
        dict(COMMON, **ACTIVATIONS, rope_theta=[1e4, ABSENT], **MROPES, use_sliding_window=[True], sliding_window=[4, ABSENT],
             max_window_layers=[0, 2]),
    ),
    "qwen2_5_vl": (
        dict(rope_scaling=dict(rope_type="default", mrope_section=[2, 3, 3])),
        dict(COMMON, **ACTIVATIONS, rope_theta=[1e4, ABSENT], **MROPES, use_sliding_window=[True], sliding_window=[4, ABSENT],
             max_window_layers=[0, 2], layer_types=LAYER_TYPES),
    ),
    "qwen3_vl": (
        dict(head_dim=16, rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2], mrope_interleaved=True)),
        dict(COMMON, **ACTIVATIONS, rope_theta=[1e4, ABSENT], attention_bias=[True], **MROPES),
    ),
    "qwen3_vl_moe": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
             rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2], mrope_interleaved=True)),
        dict(COMMON, num_experts_per_tok=CHOSEN, moe_intermediate_size=[20, 40], **ACTIVATIONS, rope_theta=[1e4, ABSENT], attention_bias=[True], num_experts=[8],
             decoder_sparse_step=[2], mlp_only_layers=[[0]], **MROPES),
    ),
    "qwen2_moe": (
        dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(COMMON, **EXPERTS, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             max_window_layers=[0, 2, 4], decoder_sparse_step=[2], mlp_only_layers=[[0]], qkv_bias=[False], num_experts=[8],
             shared_expert_intermediate_size=[48],
             **{"+windows": [dict(use_sliding_window=True, sliding_window=8, layer_types=of) for of in LAYER_TYPES]}),
    ),
    "qwen3_moe": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        dict(COMMON, **HEADS, **EXPERTS, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             decoder_sparse_step=[2], mlp_only_layers=[[0]], attention_bias=[True], num_experts=[8], max_window_layers=[0, 2]),
    ),
    "qwen3_5_text": (DELTA_NET, DELTA_NET_DRAWS),
    "qwen3_5_moe_text": (
        dict(DELTA_NET, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(DELTA_NET_DRAWS, num_experts_per_tok=CHOSEN, num_experts=[8], shared_expert_intermediate_size=[48],
             moe_intermediate_size=[16]),
    ),
    "qwen3_next": (
        dict(DELTA_NET, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
        dict(DELTA_NET_DRAWS, num_experts_per_tok=CHOSEN, norm_topk_prob=[False, ABSENT], mlp_only_layers=[[0]], num_experts=[8],
             decoder_sparse_step=[2], shared_expert_intermediate_size=[48]),
    ),
    "gpt_oss": (
        dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=16),
        dict(num_hidden_layers=[1, 2, 4], num_key_value_heads=[1, 4], **HEADS, **ROPES, **WINDOWS, num_experts_per_tok=CHOSEN,
             tie_word_embeddings=[True, ABSENT], rms_norm_eps=[1e-2, ABSENT], attention_bias=[False], num_local_experts=[8],
             hidden_size=[32, 96], num_attention_heads=[8], swiglu_limit=[3.0], max_position_embeddings=[64, ABSENT]),
    ),
    "gemma": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ROPES, hidden_act=["gelu", "gelu_pytorch_tanh", "silu", ABSENT], hidden_activation=["gelu_pytorch_tanh"],
             attention_bias=[True]),
    ),
    "gemma2": (
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
        dict(COMMON, **HEADS, **ROPES, **WINDOWS, query_pre_attn_scalar=[24, ABSENT], attention_bias=[True],
             attn_logit_softcapping=[5.0, None], final_logit_softcapping=[5.0, None],
             hidden_activation=["gelu", "silu", ABSENT]),
    ),
    "gemma3_text": (
        dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
        dict(COMMON, **HEADS, **WINDOWS, **BY_KIND, query_pre_attn_scalar=[24, ABSENT], attn_logit_softcapping=[5.0],
             final_logit_softcapping=[5.0], hidden_activation=["gelu", "silu", ABSENT], sliding_window_pattern=[2, 3],
             rope_local_base_freq=[500.0], use_bidirectional_attention=[True], attention_bias=[True]),
    ),
    "gemma3n_text": (
        dict(head_dim=16, sliding_window=16, num_kv_shared_layers=0, hidden_size_per_layer_input=16, hidden_size=32,
             vocab_size_per_layer_input=VOCABULARY, laurel_rank=8, num_hidden_layers=5),
        dict(num_kv_shared_layers=[2], **HEADS, **BY_KIND, final_logit_softcapping=[5.0, ABSENT],
             activation_sparsity_pattern=[[0.5, 0.3, 0.9, 0.0, 0.95]], rms_norm_eps=[1e-2], sliding_window=[8],
             hidden_activation=["gelu", ABSENT], intermediate_size=[64], num_attention_heads=[8], num_key_value_heads=[1, 4],
             laurel_rank=[16], altup_num_inputs=[2, 3], altup_active_idx=[1], altup_correct_scale=[False], attention_bias=[True],
             hidden_size_per_layer_input=[24], layer_types=[repeated("full_attention")]),
    ),
    "gemma4_text": (
        dict(head_dim=16, global_head_dim=32, sliding_window=16, hidden_size_per_layer_input=0,
             vocab_size_per_layer_input=VOCABULARY),
        dict(COMMON, sliding_window=[8], layer_types=[pattern(WINDOW_TYPES)], global_head_dim=[16, 24, 64],
             attention_k_eq_v=[True], num_global_key_value_heads=[1, 2], final_logit_softcapping=[5.0],
             hidden_size_per_layer_input=[16], head_dim=[8, 32], num_kv_shared_layers=[1, 2], use_double_wide_mlp=[True],
             rope_parameters=[
                 by_kind(dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=1e5), with_base(PLAIN, 2e4)),
                 by_kind(with_base(YARN, 1e5), with_base(LINEAR, 2e4)),
             ],
             use_bidirectional_attention=["vision"], hidden_activation=["gelu", ABSENT]),
    ),
    "gemma4_text with experts": (
        dict(head_dim=16, global_head_dim=32, sliding_window=16, hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCABULARY,
             enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32),
        dict(COMMON, num_experts=[8], top_k_experts=CHOSEN, moe_intermediate_size=[16], layer_types=[pattern(WINDOW_TYPES)],
             attention_k_eq_v=[True], num_global_key_value_heads=[1], final_logit_softcapping=[5.0], hidden_activation=["gelu", ABSENT]),
    ),
    "phi3": (
        dict(original_max_position_embeddings=16),
        dict(COMMON, **ACTIVATIONS, sliding_window=[8], partial_rotary_factor=[0.5, 0.75], rope_theta=[1e6, ABSENT],
             rope_scaling=[longrope(), longrope(attention_factor=1.1)], original_max_position_embeddings=[64, ABSENT]),
    ),
    "phimoe": (
        dict(num_local_experts=4, num_experts_per_tok=2),
        dict(COMMON, **ACTIVATIONS, attention_bias=[True], lm_head_bias=[True], sliding_window=[8], rope_theta=[1e4],
             num_local_experts=[8], rope_scaling=[
                 # The reference never takes the factors of longer contexts.
                 longrope(short_mscale=1.1, long_mscale=1.1, original_max_position_embeddings=64),
             ]),
    ),
    "smollm3": (
        dict(),
        dict(COMMON, **ROPES, **ACTIVATIONS, use_sliding_window=[True], sliding_window=[8, ABSENT],
             no_rope_layer_interval=[2, 3, ABSENT], layer_types=[pattern(WINDOW_TYPES)], attention_bias=[True], mlp_bias=[True],
             no_rope_layers=[repeated(0), repeated(1), pattern([1, 0])]),
    ),
    "granite": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, **GRANITE_SCALES, attention_bias=[True], mlp_bias=[True])),
    "granitemoe": (
        dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32),
        dict(COMMON, **ROPES, **ACTIVATIONS, **GRANITE_SCALES, num_local_experts=[8], num_experts_per_tok=CHOSEN, attention_bias=[True]),
    ),
    "granitemoeshared": (
        dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, shared_intermediate_size=48),
        dict(COMMON, **ROPES, **ACTIVATIONS, **GRANITE_SCALES, num_local_experts=[8], num_experts_per_tok=CHOSEN, attention_bias=[True],
             shared_intermediate_size=[0, 64]),
    ),
    "granitemoehybrid": (
        MAMBA_GRANITE,
        {**GRANITE_SCALES, "+experts": [dict(num_local_experts=4, num_experts_per_tok=2), dict(num_local_experts=8, num_experts_per_tok=3)],
         "+heads": [dict(mamba_n_heads=8, mamba_d_head=16), dict(mamba_n_heads=2, mamba_d_head="auto"),
                    dict(hidden_size=32, mamba_n_heads=4, mamba_d_head=ABSENT)]}
        | dict(position_embedding_type=["rope"], mamba_d_state=[32], rms_norm_eps=[1e-2, ABSENT], tie_word_embeddings=[True, ABSENT],
               hidden_act=["gelu"], num_attention_heads=[8], num_key_value_heads=[1, 4], shared_intermediate_size=[96], intermediate_size=[32],
               attention_bias=[True], mamba_d_conv=[2, 3], mamba_conv_bias=[False], mamba_proj_bias=[True], mamba_n_groups=[2],
               time_step_limit=[[0.01, 0.5]], rope_theta=[5e5], rope_scaling=[YARN],
               layer_types=[["attention"] * 3, ["linear_attention", "full_attention", "full_attention"], ABSENT]),
    ),
    "lfm2": (
        dict(norm_eps=1e-6, layer_types=["conv", "full_attention", "conv"], block_multiple_of=16),
        dict(norm_eps=[1e-2, ABSENT], conv_L_cache=[2, ABSENT], conv_bias=[True], block_auto_adjust_ff_dim=[False],
             block_ffn_dim_multiplier=[1.3], rope_theta=[1e4, ABSENT], num_key_value_heads=[1, 4],
             tie_word_embeddings=[True, ABSENT], layer_types=[["full_attention", "conv", "conv"], ABSENT],
             full_attn_idxs=[[1], [0, 2]], num_attention_heads=[8], hidden_size=[32, 96], rope_scaling=[YARN, LINEAR],
             tie_embedding=[True], block_ff_dim=[128]),
    ),
    "lfm2_moe": (
        dict(norm_eps=1e-6, layer_types=["conv", "full_attention", "conv"], num_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=32, num_dense_layers=1),
        dict(norm_eps=[1e-2, ABSENT], conv_bias=[True], num_dense_layers=[0, 2], norm_topk_prob=[False],
             routed_scaling_factor=[2.0], use_expert_bias=[False], num_experts_per_tok=CHOSEN, num_experts=[8],
             moe_intermediate_size=[16], tie_word_embeddings=[True, ABSENT], conv_L_cache=[2, ABSENT], rope_theta=[1e4, ABSENT],
             num_key_value_heads=[1, 4], layer_types=[["full_attention", "conv", "conv"], ["full_attention"] * 3]),
    ),
    "olmo2": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, attention_bias=[True])),
    "olmo3": (dict(sliding_window=16), dict(COMMON, **BY_KIND, **ACTIVATIONS, **WINDOWS, attention_bias=[True])),
    "olmoe": (
        dict(num_experts=4, num_experts_per_tok=2, intermediate_size=32),
        dict(COMMON, **ROPES, **ACTIVATIONS, num_experts=[8], num_experts_per_tok=CHOSEN, norm_topk_prob=[True, ABSENT],
             attention_bias=[True]),
    ),
    "exaone4": (
        dict(head_dim=16, sliding_window=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, **WINDOWS, sliding_window_pattern=[2, 3]),
    ),
    "exaone_moe": (
        dict(head_dim=16, sliding_window=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, num_shared_experts=1,
             first_k_dense_replace=1, sliding_window_pattern=2),
        dict(COMMON, **HEADS, **EXPERTS, **ROPES, **ACTIVATIONS, **WINDOWS, sliding_window_pattern=[3, 4, "LLG", ABSENT],
             first_k_dense_replace=[0, 2, ABSENT], num_shared_experts=[2, ABSENT], routed_scaling_factor=[1.0, ABSENT],
             mlp_layer_types=[lambda config: (["dense"] + ["sparse"] * 8)[:config["num_hidden_layers"]]], num_experts=[8],
             **{"+groups": [dict(num_experts=8, n_group=4, topk_group=2)]}),
    ),
    "hy_v3": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, num_experts_per_tok=CHOSEN, moe_intermediate_size=[16, 48], num_experts=[8],
             num_shared_experts=[2], router_scaling_factor=[1.0], attention_bias=[True],
             mlp_layer_types=[repeated("sparse"), lambda config: (["dense"] * 2 + ["sparse"] * 8)[:config["num_hidden_layers"]]]),
    ),
    "cohere": (
        dict(layer_norm_eps=1e-5, logit_scale=0.5),
        dict(LAYER_NORMS, **ROPES, **ACTIVATIONS, logit_scale=[2.0, ABSENT], layer_norm_eps=[1e-2, ABSENT], attention_bias=[True],
             use_qk_norm=[True]),
    ),
    "cohere2_moe": (
        dict(layer_norm_eps=1e-5, sliding_window=16, logit_scale=0.5, head_dim=16, num_experts=4, num_experts_per_tok=2,
             intermediate_size=32, num_shared_experts=1, expert_selection_fn="sigmoid", pad_token_id=0),
        dict(LAYER_NORMS, **HEADS, **ACTIVATIONS, **WINDOWS, rope_parameters=[with_base(LINEAR, 1e4), with_base(YARN, 1e6), PLAIN],
             logit_scale=[2.0, ABSENT], layer_norm_eps=[1e-2, ABSENT], rms_norm_eps=[1e-5], attention_bias=[True], sliding_window_pattern=[2, ABSENT], num_experts=[8], num_experts_per_tok=CHOSEN,
             num_shared_experts=[0, 2, ABSENT], expert_selection_fn=["softmax", ABSENT], norm_topk_prob=[False, ABSENT],
             first_k_dense_replace=[1, 2], prefix_dense_intermediate_size=[80],
             mlp_layer_types=[lambda config: (["dense"] + ["sparse"] * 8)[:config["num_hidden_layers"]]]),
    ),
    "cohere2": (
        dict(layer_norm_eps=1e-5, sliding_window=16, logit_scale=0.5),
        dict(LAYER_NORMS, **ROPES, **ACTIVATIONS, **WINDOWS, logit_scale=[2.0, ABSENT], layer_norm_eps=[1e-2, ABSENT],
             attention_bias=[True], sliding_window_pattern=[2, ABSENT], head_dim=[8, 32]),
    ),
    "seed_oss": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[False], attention_out_bias=[True], mlp_bias=[True]),
    ),
    "glm4": (
        dict(head_dim=16),
        dict(COMMON, **HEADS, **PLAIN_ROPES, **ACTIVATIONS, partial_rotary_factor=[0.25, 1.0], attention_bias=[False, ABSENT]),
    ),
    "glm4_moe": (
        dict(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
             num_nextn_predict_layers=0),
        dict(COMMON, **EXPERTS, **PLAIN_ROPES, **ACTIVATIONS, **GROUPS, partial_rotary_factor=[0.25, 1.0, ABSENT], use_qk_norm=[True],
             head_dim=[8, 32], n_routed_experts=[8], attention_bias=[True], first_k_dense_replace=[0, 2], n_shared_experts=[2], routed_scaling_factor=[2.5]),
    ),
    "deepseek_v2": (dict(LATENT, topk_method="greedy"), dict(LATENT_DRAWS, **ACTIVATIONS, **{"+groups": [
        dict(n_routed_experts=8, n_group=4, topk_group=2, topk_method="group_limited_greedy"),
        dict(n_routed_experts=8, n_group=2, topk_group=1, topk_method="group_limited_greedy"),
    ]})),
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
        dict(LATENT, rope_parameters=dict(SOME_YARN, mscale=1.0, mscale_all_dim=1.0, rope_theta=1e4, llama_4_scaling_beta=0.1)),
        {key: values for key, values in LATENT_DRAWS.items() if key not in ("rope_theta", "rope_scaling")}
        | dict(ACTIVATIONS, rope_parameters=[dict(yarn(mscale_all_dim=0.8), rope_theta=5e5, llama_4_scaling_beta=0.4)]),
    ),
    "minicpm3": (
        dict(q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, num_key_value_heads=4, scale_emb=3,
             scale_depth=1.4, dim_model_base=32),
        dict(ACTIVATIONS, q_lora_rank=[16], kv_lora_rank=[16, 48], qk_nope_head_dim=[8, 32], qk_rope_head_dim=[8],
             v_head_dim=[8, 32, ABSENT], rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT], num_hidden_layers=[2, 4],
             rope_theta=[5e5, ABSENT], scale_emb=[12, 1, ABSENT], scale_depth=[1.0, None, ABSENT], dim_model_base=[64, None, ABSENT],
             hidden_size=[32, 96], rope_scaling=[
                 lambda config: dict(rope_type="longrope", original_max_position_embeddings=16,
                                     short_factor=[1 + 0.1 * i for i in range(config["qk_rope_head_dim"] // 2)],
                                     long_factor=[1 + 0.5 * i for i in range(config["qk_rope_head_dim"] // 2)]),
             ]),
    ),
    "glm4_moe_lite": (dict(LATENT), dict(LATENT_DRAWS, first_k_dense_replace=[1], mlp_layer_types=[lambda c: ["dense"] * c["num_hidden_layers"]])),
    "laguna": (
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=16,
             shared_expert_intermediate_size=32, gating="per-head"),
        dict(COMMON, **HEADS, **ACTIVATIONS, layer_types=[pattern(WINDOW_TYPES)], sliding_window=[8, ABSENT],
             num_experts=[8], moe_intermediate_size=[16], shared_expert_intermediate_size=[48], attention_bias=[True],
             num_attention_heads_per_layer=[lambda config: [2 * config["num_attention_heads"]] + [config["num_attention_heads"]] * (
                 config["num_hidden_layers"] - 1)],
             mlp_layer_types=[repeated("sparse"), lambda config: (["dense"] * 2 + ["sparse"] * 8)[:config["num_hidden_layers"]]],
             rope_parameters=[by_kind(dict(YARN, rope_theta=1e5, partial_rotary_factor=0.5), with_base(PLAIN, 2e4)),
                              by_kind(with_base(PLAIN, 1e5), dict(PLAIN, rope_theta=1e4, partial_rotary_factor=0.5))],
             moe_routed_scaling_factor=[2.0], num_experts_per_tok=CHOSEN, gating=["per-element"],
             moe_router_logit_softcapping=[5.0]),
    ),
    "step3p7": (
        dict(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, share_expert_dim=32, sliding_window=16),
        dict(COMMON, **HEADS, layer_types=[pattern(WINDOW_TYPES)], sliding_window=[4, 8], num_experts_per_tok=CHOSEN, n_routed_experts=[8],
             moe_intermediate_size=[16], share_expert_dim=[48, ABSENT], moe_router_scaling_factor=[2.5], attention_bias=[True], mlp_bias=[True],
             query_pre_attn_scalar=[24.0], gating=["per-element"],
             num_sliding_attention_heads=[lambda config: 2 * config["num_attention_heads"]],
             mlp_layer_types=[repeated("sparse"), repeated("dense"), lambda config: (["dense"] + ["sparse"] * 8)[:config["num_hidden_layers"]]],
             swiglu_limits=[repeated(0.5), lambda config: ([0.0, 0.3, None] * 2)[:config["num_hidden_layers"]]],
             swiglu_limits_shared=[repeated(0.4), lambda config: ([0.6, None, 0.0] * 2)[:config["num_hidden_layers"]]],
             rope_parameters=[by_kind(dict(LLAMA3, rope_theta=1e5, partial_rotary_factor=0.5), with_base(PLAIN, 2e4)),
                              by_kind(with_base(YARN, 1e5), dict(PLAIN, rope_theta=1e4, partial_rotary_factor=0.5))],
             **{"+published": [dict(
                 layer_types=pattern(WINDOW_TYPES), attention_other_setting=lambda config: dict(num_attention_heads=2 * config["num_attention_heads"]),
                 rope_theta=lambda config: [5e5 if kind == "full_attention" else 1e4 for kind in pattern(WINDOW_TYPES)(config)],
                 partial_rotary_factors=lambda config: [0.5 if kind == "full_attention" else 1.0 for kind in pattern(WINDOW_TYPES)(config)],
                 rope_scaling=LLAMA3, moe_layers_enum="1,2", moe_num_experts=4, moe_top_k=2,
             )]}),
    ),
    "mimo_v2_flash": (
        dict(head_dim=24, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=16),
        dict(COMMON, **EXPERTS, **GROUPS, **ACTIVATIONS, head_dim=[8, 32, ABSENT], v_head_dim=[8, 24, 40, ABSENT],
             layer_types=[pattern(WINDOW_TYPES), repeated("sliding_attention")], sliding_window=[4, 8, ABSENT], n_routed_experts=[8],
             attention_bias=[True], attention_value_scale=[None, 0.5, ABSENT], routed_scaling_factor=[2.5, None, ABSENT],
             mlp_layer_types=[repeated("sparse"), repeated("dense")],
             rope_parameters=[by_kind(dict(YARN, rope_theta=1e5, partial_rotary_factor=0.5), dict(PLAIN, rope_theta=2e4, partial_rotary_factor=1.0)),
                              by_kind(with_base(PLAIN, 1e5), dict(LINEAR, rope_theta=1e4))],
             **{"+published": [dict(sliding_window_size=7, sliding_window=7)]}),
    ),
    "minimax_m2": (
        dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32),
        dict(COMMON, **ACTIVATIONS, rotary_dim=[8], rope_theta=[1e4, ABSENT], num_experts_per_tok=CHOSEN, num_local_experts=[8], head_dim=[32],
             rope_scaling=[YARN, LINEAR]),
    ),
    "ernie4_5": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, use_bias=[True])),
    "ernie4_5_moe": (
        dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_start_index=1,
             moe_layer_end_index=2),
        dict(COMMON, **ROPES, **ACTIVATIONS, moe_k=[1, 3], moe_num_shared_experts=[0, 2], moe_layer_interval=[2],
             moe_layer_start_index=[0], use_bias=[True], moe_num_experts=[8], moe_intermediate_size=[16], moe_layer_end_index=[1, -1]),
    ),
    "nemotron": (dict(norm_eps=1e-5), dict(LAYER_NORMS, **ACTIVATIONS, norm_eps=[1e-2, ABSENT], partial_rotary_factor=[0.25, 1.0],
                                           attention_bias=[True], mlp_bias=[True], head_dim=[24], rope_theta=[1e6],
                                           rope_scaling=[YARN, LINEAR, LLAMA3])),
    "arcee": (dict(head_dim=16), dict(COMMON, **HEADS, **ROPES, **ACTIVATIONS, attention_bias=[True], mlp_bias=[True])),
    "jais2": (dict(layer_norm_eps=1e-5, head_dim=16), dict(LAYER_NORMS, **ROPES, **ACTIVATIONS, layer_norm_eps=[1e-2, ABSENT],
                                                           attention_bias=[False], mlp_bias=[False], **HEADS)),
    "bitnet": (dict(), dict(COMMON, **ROPES, **ACTIVATIONS, attention_bias=[True])),
    "nemotron_h": (
        dict(head_dim=16, layers_block_type=["mamba", "attention", "moe"], ssm_state_size=16, mamba_num_heads=4, mamba_head_dim=16,
             n_groups=2, conv_kernel=4, chunk_size=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
             moe_shared_expert_intermediate_size=48, layer_norm_epsilon=1e-6, num_hidden_layers=ABSENT),
        dict(layers_block_type=[["mamba", "mlp", "attention", "mlp"], ["attention", "moe"], ["mamba"]], n_groups=[1],
             layer_norm_epsilon=[1e-2, ABSENT], mlp_hidden_act=["gelu", "silu"], mamba_hidden_act=["gelu"],
             tie_word_embeddings=[True, ABSENT], routed_scaling_factor=[2.5], norm_topk_prob=[False], attention_bias=[True],
             mlp_bias=[True], use_bias=[True], use_conv_bias=[False], moe_latent_size=[16], sliding_window=[8], time_step_min=[0.1, 0.0],
             time_step_limit=[[0.0, 0.5]], num_attention_heads=[8], num_key_value_heads=[1, 4], head_dim=[32], ssm_state_size=[8],
             mamba_num_heads=[8], mamba_head_dim=[8], conv_kernel=[2], intermediate_size=[160], num_experts_per_tok=CHOSEN,
             moe_intermediate_size=[16], moe_shared_expert_intermediate_size=[32], hidden_size=[32, 96], chunk_size=[8, 64],
             **GROUPS),
    ),
    "falcon": (
        dict(multi_query=True, parallel_attn=True, new_decoder_architecture=False, layer_norm_epsilon=1e-5, num_kv_heads=2),
        dict(num_attention_heads=[8], num_hidden_layers=[1, 4], new_decoder_architecture=[True], multi_query=[False],
             bias=[True], alibi=[True], parallel_attn=[False], activation=["relu", "silu", ABSENT], num_kv_heads=[1, 4],
             layer_norm_epsilon=[1e-2], tie_word_embeddings=[True, ABSENT], rope_theta=[1e6], ffn_hidden_size=[128],
             num_ln_in_parallel_attn=[1], rope_scaling=[LINEAR, YARN]),
    ),
    "opt": (
        dict(ffn_dim=96, word_embed_proj_dim=64, num_key_value_heads=ABSENT, intermediate_size=ABSENT, rms_norm_eps=ABSENT),
        dict(num_hidden_layers=[1, 4], do_layer_norm_before=[False], word_embed_proj_dim=[32], enable_bias=[False],
             activation_function=["gelu", "silu"], tie_word_embeddings=[True, ABSENT], _remove_final_layer_norm=[True],
             layer_norm_elementwise_affine=[False], num_attention_heads=[8], ffn_dim=[160], hidden_size=[32, 64]),
    ),
    "starcoder2": (
        dict(norm_epsilon=1e-5),
        dict(LAYER_NORMS, **ROPES, hidden_act=["gelu", "silu", ABSENT], norm_epsilon=[1e-2, ABSENT], sliding_window=[8],
             use_bias=[False]),
    ),
    "stablelm": (
        dict(layer_norm_eps=1e-5),
        dict(LAYER_NORMS, **ACTIVATIONS, layer_norm_eps=[1e-2, ABSENT], use_qkv_bias=[True], qk_layernorm=[True],
             use_parallel_residual=[True], partial_rotary_factor=[0.5, 1.0, ABSENT], rope_theta=[1e6, ABSENT],
             rope_scaling=[LINEAR, LLAMA3, YARN]),
    ),
}
