"""Writes the files of tests/fixtures/draft_heads: draft heads (multi-token prediction) of Step 3.5 and MiMo 2 for the folders `step3` and
`mimo-v2-flash` of tests/fixtures/models, with seeded random weights, and the logits that NumPy computes with them in float64.

    python3 numpy_heads.py       (needs numpy and safetensors)

transformers leaves the heads out, and its layers of these families have experts, which the heads do not have. The layer of a head is
therefore computed here, and first compared with a layer of transformers: `hidden` of the folder has what its layers made.

    x_p = eh_proj [norm(embedding of token p + 1, enorm); norm(h_p, hnorm)]
    logits of p = output(norm(layer(x)_p, norm of the head))

h_p is the hidden state of token p after the final norm of the model. `nextn_logits` are those of all tokens but the last.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

FIXTURES = Path(__file__).parent.parent / "fixtures"
EPS, WIDTH, FFN, HEAD, WINDOW, BASE = 1e-5, 48, 96, 12, 8, 1e4
# Of hidden states in float32.
TOLERANCE = 1e-4


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, dims):
    """Rotates halves (i, i + dims / 2) of the first `dims` elements of [T, heads, elements]."""
    angle = np.arange(len(x))[:, None, None] * BASE ** (-np.arange(0, dims, 2) / dims)
    a, b = x[..., : dims // 2], x[..., dims // 2 : dims]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., dims:]], -1)


def attend(q, k, v, sinks):
    """Causal attention of [T, heads, elements] within a window. A sink is a score without a value."""
    k, v = [np.repeat(it, q.shape[1] // it.shape[1], axis=1) for it in (k, v)]
    scores = np.einsum("thd,shd->hts", q, k) * HEAD**-0.5
    t, s = np.arange(len(q))[:, None], np.arange(len(q))[None, :]
    scores = np.where((s > t) | (s <= t - WINDOW), -np.inf, scores)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True))[..., : len(q)]
    return np.einsum("hts,shd->thd", weights, v)


class Step:
    """Layers of Step 3.5 with a window: 6 heads with norms, keys of 2 heads, and a gate per head. Norms are stored minus one."""

    folder, last, post_norm, norm_of_head, output = "step3", 4, "post_attention_layernorm", "transformer.shared_head.norm", True
    # The layer with a window that is compared, and the centre of norm weights.
    compared, centre = 2, 0.0

    @staticmethod
    def prefix(layer):
        return f"model.layers.{layer}."

    @staticmethod
    def shapes():
        heads = {"q_proj": 6 * HEAD, "k_proj": 2 * HEAD, "v_proj": 2 * HEAD, "g_proj": 6}
        shapes = {f"self_attn.{name}": (rows, WIDTH) for name, rows in heads.items()}
        return shapes | {"self_attn.o_proj": (WIDTH, 6 * HEAD), "self_attn.q_norm": (HEAD,), "self_attn.k_norm": (HEAD,)}

    @staticmethod
    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + weight)

    def attention(self, h, w):
        split = lambda name: (h @ w(f"self_attn.{name}_proj").T).reshape(len(h), -1, HEAD)
        q, k = (rotate(self.norm(split(name), w(f"self_attn.{name}_norm")), HEAD) for name in "qk")
        gate = 1 / (1 + np.exp(-h @ w("self_attn.g_proj").T))
        out = attend(q, k, split("v"), None) * gate[..., None]
        return out.reshape(len(h), -1) @ w("self_attn.o_proj").T

    @staticmethod
    def ffn_of_model(h, w, expected):
        # This layer limits its hidden values.
        gate, up = (h @ w(f"mlp.{name}_proj").T for name in ("gate", "up"))
        return (np.minimum(silu(gate), 0.5) * np.clip(up, -0.5, 0.5)) @ w("mlp.down_proj").T


class MiMo:
    """Layers of MiMo 2 with a window: 4 heads, whose values are narrower than their keys, and sinks. A third of a head is rotated."""

    folder, last, post_norm, norm_of_head, output = "mimo-v2-flash", 4, "pre_mlp_layernorm", "final_layernorm", False
    compared, centre = 1, 1.0

    def prefix(self, layer):
        return "model.mtp.layers.0." if layer == self.last else f"model.layers.{layer}."

    @staticmethod
    def shapes():
        heads = {"q_proj": 4 * HEAD, "k_proj": 4 * HEAD, "v_proj": 4 * 8}
        shapes = {f"self_attn.{name}": (rows, WIDTH) for name, rows in heads.items()}
        return shapes | {"self_attn.o_proj": (WIDTH, 4 * 8), "self_attn.attention_sink_bias": (4,)}

    @staticmethod
    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

    @staticmethod
    def attention(h, w):
        q, k, v = ((h @ w(f"self_attn.{name}_proj").T).reshape(len(h), 4, -1) for name in "qkv")
        q, k = (rotate(it, int(HEAD * 0.334)) for it in (q, k))
        out = attend(q, k, 0.707 * v, w("self_attn.attention_sink_bias"))
        return out.reshape(len(h), -1) @ w("self_attn.o_proj").T

    @staticmethod
    def ffn_of_model(h, w, expected):
        out = np.zeros_like(h)
        for t, (chosen, weights) in enumerate(zip(expected["router_top"][0], expected["router_weight"][0])):
            for expert, weight in zip(chosen, weights):
                gate, up, down = (w(f"mlp.experts.{expert}.{name}_proj") for name in ("gate", "up", "down"))
                out[t] += weight * (down @ (silu(gate @ h[t]) * (up @ h[t])))
        return out


def layer(family, x, w, post_norm, ffn):
    x = x + family.attention(family.norm(x, w("input_layernorm")), w)
    return x + ffn(family.norm(x, w(post_norm)), w)


def weights_of_head(family, random):
    """Weights in F16. Those of norms and sinks are far from ones and zeros, so that a missing one shows."""
    shapes = family.shapes() | {"mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH), "mlp.down_proj": (WIDTH, FFN)}
    shapes |= {"eh_proj": (WIDTH, 2 * WIDTH)} | {name: (WIDTH,) for name in ("enorm", "hnorm", "input_layernorm")}
    shapes |= {family.post_norm: (WIDTH,), family.norm_of_head: (WIDTH,)}
    if family.output:
        shapes["transformer.shared_head.output"] = (384, WIDTH)
    made = {}
    for name, shape in sorted(shapes.items()):
        if len(shape) == 1:
            made[name] = (0.0 if "sink" in name else family.centre) + 0.3 * random.standard_normal(shape)
        else:
            gain = 2.5 if "output" in name else 1.5 if "q_proj" in name or "k_proj" in name else 1.0
            made[name] = gain * random.standard_normal(shape) / shape[-1] ** 0.5
    return {name: it.astype(np.float16) for name, it in made.items()}


def make(family):
    folder = FIXTURES / "models" / family.folder
    model, expected = load_file(folder / "model.safetensors"), load_file(folder / "expected.safetensors")
    model = {name: it.astype(np.float64) for name, it in model.items()}
    hidden = expected["hidden"].astype(np.float64)

    def of_model(name):
        name = family.prefix(family.compared) + name
        return model.get(f"{name}.weight", model.get(name))

    ffn = lambda h, w: family.ffn_of_model(h, w, expected)
    error = abs(layer(family, hidden[family.compared - 1], of_model, "post_attention_layernorm", ffn) - hidden[family.compared]).max()
    assert error < TOLERANCE, f"{family.folder}: the layer differs from that of transformers by {error}"

    made = weights_of_head(family, np.random.default_rng(1))
    w = lambda name: made[name].astype(np.float64)
    states = family.norm(hidden[-1], model["model.norm.weight"])
    embedded = model["model.embed_tokens.weight"][expected["input_ids"]]
    both = [family.norm(embedded[1:], w("enorm")), family.norm(states[:-1], w("hnorm"))]
    gated = lambda h, w: (silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    x = layer(family, np.concatenate(both, -1) @ w("eh_proj").T, w, family.post_norm, gated)
    output = w("transformer.shared_head.output") if family.output else model["lm_head.weight"]
    logits = family.norm(x, w(family.norm_of_head)) @ output.T

    stored = lambda name: family.prefix(family.last) + name + ("" if "sink" in name else ".weight")
    tensors = {stored(name): it for name, it in made.items()} | {"nextn_logits": logits.astype(np.float32)}
    save_file(tensors, FIXTURES / "draft_heads" / f"{family.folder}.safetensors")
    print(f"{family.folder}: difference from transformers {error:.1e}, deviation of logits {logits.std():.2f}")


if __name__ == "__main__":
    [make(family) for family in (Step(), MiMo())]
