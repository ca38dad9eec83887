"""Values that keys of configurations are drawn from.

`ABSENT` leaves a key out, so that both sides fall back on their defaults. A value may be a function of the configuration drawn so far,
and hold `Any`, of which one is drawn each time.
"""

ABSENT = "absent"


class Any(list):
    """Values of which one is drawn."""


def settle(value, rng):
    """The value with one of each `Any` in it, and without what is left out."""
    if isinstance(value, Any):
        return settle(rng.choice(value), rng)
    if isinstance(value, dict):
        settled = {key: settle(inner, rng) for key, inner in value.items()}
        return {key: inner for key, inner in settled.items() if not (isinstance(inner, str) and inner == ABSENT)}
    return value


ACTIVATIONS = dict(hidden_act=["silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", ABSENT])
COMMON = dict(
    hidden_size=[32, 96], num_attention_heads=[2, 4, 8], num_key_value_heads=[1, 2, 4], intermediate_size=[64, 160],
    num_hidden_layers=[1, 2, 4, 5], rms_norm_eps=[1e-5, 1e-2, ABSENT], tie_word_embeddings=[True, ABSENT],
    max_position_embeddings=[16, 64, 1024, ABSENT],
)
LAYER_NORMS = {key: values for key, values in COMMON.items() if key != "rms_norm_eps"}
HEADS = dict(head_dim=[8, 16, 24, 32, 40, 64, ABSENT])

# Rotations
LENGTHS = Any([8, 16, 32, 64])
LINEAR = dict(rope_type="linear", factor=Any([1.5, 2.5, 8.0]))
DYNAMIC = dict(rope_type="dynamic", factor=Any([1.5, 3.0]))
LLAMA3 = dict(
    rope_type="llama3", factor=Any([2.0, 8.0, 32.0]), low_freq_factor=Any([0.5, 1.0, 2.0]), high_freq_factor=Any([4.0, 6.0]),
    original_max_position_embeddings=LENGTHS,
)


def yarn(**others):
    return dict(dict(rope_type="yarn", factor=Any([2.0, 8.0, 40.0]), original_max_position_embeddings=LENGTHS), **others)


YARN = yarn(
    beta_fast=Any([ABSENT, ABSENT, 16.0, 64.0]), beta_slow=Any([ABSENT, ABSENT, 0.5, 2.0]), truncate=Any([ABSENT, ABSENT, False, True]),
)
YARNS = [
    YARN, dict(YARN, attention_factor=Any([0.8, 1.2])), dict(YARN, mscale=Any([0.7, 1.0]), mscale_all_dim=Any([0.6, 1.0, 1.1])),
    dict(YARN, mscale=0.7), dict(YARN, mscale_all_dim=0.8),
]


def head(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def longrope(**others):
    def draw(config):
        pairs = int(head(config) * config.get("partial_rotary_factor", 1.0)) // 2
        return dict(
            rope_type="longrope", short_factor=[1 + 0.1 * i for i in range(pairs)], long_factor=[1 + 0.5 * i for i in range(pairs)],
            **dict(dict(original_max_position_embeddings=16), **others),
        )
    return draw


LONGROPES = [
    longrope(), longrope(original_max_position_embeddings=64), longrope(factor=4.0), longrope(factor=4.0, original_max_position_embeddings=48),
    longrope(attention_factor=1.1),
]
KINDS = [LINEAR, DYNAMIC, LLAMA3, Any(YARNS), Any(LONGROPES)]


def renamed(scaling):
    """The scaling as older files have it."""
    return {("type" if key == "rope_type" else key): value for key, value in scaling.items()}


def with_base(scaling, base):
    """The scaling as newer files have it, beside the base."""
    return dict(scaling, rope_theta=base)


BASES = [100.0, 500000.0, 1e6, ABSENT]
ROPES = dict(rope_theta=BASES, rope_scaling=[*KINDS, renamed(LINEAR), renamed(YARN)])
# Beside a part of the head that does not turn.
PLAIN_ROPES = dict(rope_theta=BASES, rope_scaling=[LINEAR, DYNAMIC, LLAMA3, Any(YARNS)])


# Windows
def pattern(kinds):
    def draw(config):
        n = config["num_hidden_layers"]
        return [kinds[(i * 7 + n) % 3 % len(kinds)] for i in range(n)]
    return draw


def repeated(value):
    return lambda config: [value] * config["num_hidden_layers"]


WINDOW_TYPES = ["sliding_attention", "full_attention"]
LAYER_TYPES = [pattern(WINDOW_TYPES), pattern(WINDOW_TYPES[::-1]), *map(repeated, WINDOW_TYPES)]
WINDOWS = dict(sliding_window=[1, 4, 8, 16, 32, ABSENT], layer_types=LAYER_TYPES)


def by_kind(full, sliding):
    return dict(full_attention=full, sliding_attention=sliding)


PLAIN = dict(rope_type="default")
BY_KIND = dict(
    rope_parameters=[
        by_kind(with_base(PLAIN, 5e5), with_base(PLAIN, 2e4)),
        by_kind(with_base(LINEAR, 1e6), with_base(PLAIN, 1e4)),
        by_kind(with_base(YARN, 1e6), with_base(LINEAR, 1e4)),
        by_kind(with_base(LLAMA3, 1e6), with_base(PLAIN, 1e3)),
    ]
)

# Experts
CHOSEN = [1, 3, 4]
EXPERTS = dict(num_experts_per_tok=CHOSEN, moe_intermediate_size=[16, 48], norm_topk_prob=[True, False, ABSENT])
# Keys that are drawn together have a name that begins with `+`.
GROUPS = {"+groups": [dict(n_routed_experts=8, n_group=4, topk_group=2), dict(n_routed_experts=8, n_group=2, topk_group=1)]}
