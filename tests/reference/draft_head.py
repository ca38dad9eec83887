"""Draft heads (multi-token prediction) of the folders that make_golden.py writes. transformers leaves them out of its models.

A head behind the final norm of a model is a model of one layer: its input is a projection of an embedding and a hidden state.

    x_p = eh_proj [norm(embedding of token p + 1, enorm); norm(h_p, hnorm)]
    logits of p = output(norm(layer(x)_p, shared_head.norm))

h_p is the hidden state of token p after the final norm of the model. The rest is a model of transformers with one layer (Nemotron-H: two).
"""

import copy
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

FINAL_NORMS = ("norm", "norm_f")


def names(style, n):
    """What the names of the head's parts begin with in a folder: those of its own, and those of a model of one layer."""
    layer = f"model.layers.{n}."
    parts = {name: layer + name for name in ("eh_proj.", "enorm.", "hnorm.")} | {"model.layers.0.": layer}
    return {
        "qwen": {
            "eh_proj.": "mtp.fc.",
            "enorm.": "mtp.pre_fc_norm_embedding.",
            "hnorm.": "mtp.pre_fc_norm_hidden.",
            "model.layers.0.": "mtp.layers.0.",
            "model.norm.": "mtp.norm.",
        },
        "hy": parts | {"model.norm.": layer + "final_layernorm."},
        "deepseek": parts
        | {
            "model.norm.": layer + "shared_head.norm.",
            "model.embed_tokens.": layer + "embed_tokens.",
            "lm_head.": layer + "shared_head.head.",
        },
        "nemotron": {
            "eh_proj.": "mtp.layers.0.eh_proj.",
            "enorm.": "mtp.layers.0.enorm.",
            "hnorm.": "mtp.layers.0.hnorm.",
            "backbone.layers.": "mtp.layers.",
            "backbone.norm_f.": "mtp.layers.1.final_layernorm.",
        },
    }[style]


class DraftHead:
    """A head of random weights. With `own`, it has its own embedding and output matrix instead of those of `model`."""

    def __init__(self, model, layer, fill, own):
        self.layer = layer
        if not own:
            layer.set_input_embeddings(model.get_input_embeddings())
            layer.set_output_embeddings(model.get_output_embeddings())
        norms = (getattr(layer.base_model, name, None) for name in FINAL_NORMS)
        norm = next(it for it in norms if it is not None)
        width = norm.weight.shape[0]
        self.parts = torch.nn.ModuleDict({"enorm": copy.deepcopy(norm), "hnorm": copy.deepcopy(norm)})
        self.parts["eh_proj"] = torch.nn.Linear(2 * width, width, bias=False)
        self.parts.config = layer.config
        fill(self.parts)
        self.own = own

    def inputs(self, model, ids):
        """Inputs of the layer for every position but the last, [positions, width]."""
        with torch.no_grad():
            hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            embedded = self.layer.get_input_embeddings()(ids)
            both = [self.parts["enorm"](embedded[1:]), self.parts["hnorm"](hidden[:-1])]
            return self.parts["eh_proj"](torch.cat(both, dim=-1))

    def tensors(self, style, n):
        """Weights under the names of a folder whose last layer is `n` - 1."""
        with tempfile.TemporaryDirectory() as folder:
            self.layer.save_pretrained(folder)
            saved = load_file(Path(folder) / "model.safetensors")
        if not self.own:
            saved = {name: it for name, it in saved.items() if "embed" not in name and not name.startswith("lm_head")}
        saved |= {name: it.detach() for name, it in self.parts.named_parameters()}
        prefixes = names(style, n)
        renamed = {}
        for name, it in saved.items():
            begin = next(it for it in prefixes if name.startswith(it))
            renamed[prefixes[begin] + name.removeprefix(begin)] = it.contiguous()
        return renamed
