"""Jina's embedding models v2, which transformers does not have: BERT with ALiBi and a gated GELU (Press et al. 2022, Shazeer 2020)."""

import torch
from torch.nn.functional import gelu, layer_norm

EPS = 1e-12


def slopes(heads):
    """The slopes of ALiBi's paper, for any number of heads."""
    whole = 2 ** (heads.bit_length() - 1)
    series = lambda n: [2 ** (-8 * (at + 1) / n) for at in range(n)]
    return torch.tensor(series(whole) + series(2 * whole)[0::2][: heads - whole])


def weights(size, n_ff, layers, vocab, norms_of_heads, seed):
    """Seeded random weights in bfloat16, under the names of the published files."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator)
    named = {"embeddings.word_embeddings.weight": draw(vocab, size), "embeddings.token_type_embeddings.weight": draw(2, size)}

    def norm(name):
        named[f"{name}.weight"], named[f"{name}.bias"] = 1 + 0.3 * draw(size), 0.3 * draw(size)

    def linear(name, rows, cols, bias=True):
        named[f"{name}.weight"] = 1.5 * draw(rows, cols) / cols**0.5
        if bias:
            named[f"{name}.bias"] = 0.3 * draw(rows)

    norm("embeddings.LayerNorm")
    for n in range(layers):
        at = f"encoder.layer.{n}"
        for part in ["query", "key", "value"]:
            linear(f"{at}.attention.self.{part}", size, size)
        for part in ["q", "k"] if norms_of_heads else []:
            norm(f"{at}.attention.self.layer_norm_{part}")
        linear(f"{at}.attention.output.dense", size, size)
        norm(f"{at}.attention.output.LayerNorm")
        # The model of source code names them differently.
        gates, down = ("up_gated_layer", "down_layer") if norms_of_heads else ("gated_layers", "wo")
        linear(f"{at}.mlp.{gates}", 2 * n_ff, size, bias=False)
        linear(f"{at}.mlp.{down}", size, n_ff)
        norm(f"{at}.mlp.layernorm")
    return {name: it.to(torch.bfloat16) for name, it in named.items()}


def hidden_states(named, heads, ids):
    """The hidden states of the tokens `ids`, `[tokens, size]`."""
    get = lambda name: named[name].float() if name in named else None
    norm = lambda name, x: layer_norm(x, x.shape[-1:], get(f"{name}.weight"), get(f"{name}.bias"), EPS)
    linear = lambda name, x: torch.nn.functional.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))
    x = get("embeddings.word_embeddings.weight")[ids] + get("embeddings.token_type_embeddings.weight")[0]
    x = norm("embeddings.LayerNorm", x)
    at = torch.arange(len(ids))
    bias = -slopes(heads)[:, None, None] * (at[:, None] - at[None]).abs()
    split = lambda y: y.view(len(ids), heads, -1).transpose(0, 1)
    layer = 0
    while f"encoder.layer.{layer}.mlp.layernorm.weight" in named:
        name = f"encoder.layer.{layer}"
        q, k, v = (linear(f"{name}.attention.self.{part}", x) for part in ["query", "key", "value"])
        if get(f"{name}.attention.self.layer_norm_q.weight") is not None:
            q, k = norm(f"{name}.attention.self.layer_norm_q", q), norm(f"{name}.attention.self.layer_norm_k", k)
        q, k, v = split(q), split(k), split(v)
        mixed = ((q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v
        out = linear(f"{name}.attention.output.dense", mixed.transpose(0, 1).reshape(x.shape))
        x = norm(f"{name}.attention.output.LayerNorm", x + out)
        if f"{name}.mlp.wo.weight" in named:
            down, (gate, up) = "wo", linear(f"{name}.mlp.gated_layers", x).chunk(2, -1)
        else:
            down, (up, gate) = "down_layer", linear(f"{name}.mlp.up_gated_layer", x).chunk(2, -1)
        x = norm(f"{name}.mlp.layernorm", x + linear(f"{name}.mlp.{down}", gelu(gate) * up))
        layer += 1
    return x
