"""Writes a folder of tests/fixtures/models: a small model of seeded random weights and what transformers makes of it.

    OMP_NUM_THREADS=1 python3 make_golden.py NAME ...       (needs torch, transformers, safetensors; without names: lists them)

Seeds are tried in turn until the continuation and every choice of experts are clear: equal with weights that are a little off.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from draft_head import DraftHead
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from golden_configs import CONFIGS

MODELS = Path(__file__).parent.parent / "fixtures" / "models"
GREEDY, TOKENS, MARGIN, NOISE = 16, 5, 0.05, 3e-4
SAME = ["tokenizer.json", "tokenizer_config.json"]
# Type of the weights of models with draft heads, which are larger.
DRAFT_TYPE = torch.bfloat16


def fill(model, seed, embedding, dtype=torch.float32):
    """Random weights, rounded to `dtype`; those of norms and biases are far from ones and zeros, so that a missing one shows. `embedding`
    is the deviation of the embedding."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda shape: torch.randn(shape, generator=generator)
    buffers = [it for it in model.named_buffers() if it[0].endswith("correction_bias")]
    for name, weight in sorted([*model.named_parameters(), *buffers]):
        with torch.no_grad():
            if weight.dim() < 2 or "norm" in name.split(".")[-2]:
                centre = weight.mean().round() if "norm" in name else 0.0
                weight.copy_(centre + 0.3 * draw(weight.shape))
            elif "embed_tokens" in name:
                weight.copy_(embedding * draw(weight.shape))
            else:
                gain = {"lm_head.weight": 2.5}.get(name, 1.5 if "q_" in name or "k_" in name else 1.0)
                stacked = weight.dim() == 3 and "conv" not in name
                width = model.config.get_text_config().hidden_size if stacked else weight.shape[-1]
                weight.copy_(gain * draw(weight.shape) / width**0.5)
            weight.copy_(weight.to(dtype))


class Recorder:
    """Outputs of layers and choices of experts of one pass over `ids`, or over inputs of the first layer."""

    def __init__(self, model, ids=None, embedded=None):
        self.hidden, self.top, self.weight = [], [], []
        towers = ("visual", "vision")
        lists = (it for name, it in model.named_modules() if name.endswith("layers") and not any(t in name for t in towers))
        layers = next(lists)
        hooks = [layer.register_forward_hook(self.layer) for layer in layers]
        modules = [it for _, it in model.named_modules()]
        # Experts that get inputs of all, most of them zeros, do not tell who is chosen.
        routers = [it for it in modules if type(it).__name__ == "Llama4Router"]
        hooks += [it.register_forward_hook(self.routed) for it in routers]
        experts = [it for it in modules if type(it).__name__.endswith("Experts") and not routers]
        hooks += [it.register_forward_pre_hook(self.chosen, with_kwargs=True) for it in experts]
        with torch.no_grad():
            inputs = {"input_ids": ids[None]} if embedded is None else {"inputs_embeds": embedded[None]}
            self.logits = model(**inputs, use_cache=False).logits[0]
        [hook.remove() for hook in hooks]

    def layer(self, _, inputs, output):
        self.hidden.append((output if torch.is_tensor(output) else output[0]).reshape(-1, output[0].shape[-1]))

    def routed(self, router, inputs, output):
        best = output[0].topk(router.top_k, dim=1)
        self.top.append(best.indices)
        self.weight.append(best.values)

    def chosen(self, _, args, kwargs):
        tensors = [it for it in [*args, *kwargs.values()] if torch.is_tensor(it)]
        top = next(it for it in tensors if it.dtype == torch.int64)
        weight = next(it for it in tensors if it.is_floating_point() and it.shape != tensors[0].shape)
        if weight.shape != top.shape:
            weight = weight.gather(1, top)
        order = weight.argsort(dim=1, descending=True)
        self.top.append(top.gather(1, order))
        self.weight.append(weight.gather(1, order))


def continuation(model, ids):
    """Greedy ids, and how far the best logit is before the second."""
    margins, start = [], len(ids)
    for _ in range(GREEDY):
        best = Recorder(model, ids).logits[-1].topk(2)
        ids = torch.cat([ids, best.indices[:1]])
        margins.append((best.values[0] - best.values[1]).item())
    return ids[start:], torch.tensor(margins)


def with_noise(model, run):
    """The result of `run` with weights that are a little off."""
    weights = {name: it.clone() for name, it in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for it in model.parameters():
            it.mul_(1 + NOISE * torch.randn(it.shape, generator=generator))
    result = run()
    model.load_state_dict(weights)
    return result


def same_experts(run, again):
    return all((a.sort(1).values == b.sort(1).values).all() for a, b in zip(run.top, again.top))


def clear(model, ids, run, greedy):
    """True if weights that are a little off lead to the same experts and the same text."""
    again, text = with_noise(model, lambda: (Recorder(model, ids), continuation(model, ids)[0]))
    return same_experts(run, again) and bool((text == greedy).all())


def draft_head(entry, model, kind, ids, seed):
    """A draft head, and its pass over `ids`, whose choices of experts are clear."""
    layer = kind._from_config(config_of(entry | {"config": entry["config"] | entry["draft"]["layer"]}), attn_implementation="eager")
    layer = layer.float().eval()
    while True:
        seed += 1
        fill(layer, seed, entry.get("embedding", 1.0), DRAFT_TYPE)
        filled = lambda parts: fill(parts, seed + 1000, 1.0, DRAFT_TYPE)
        head = DraftHead(model, layer, filled, entry["draft"].get("own", False))
        inputs = head.inputs(model, ids)
        run = Recorder(layer, embedded=inputs)
        if same_experts(run, with_noise(layer, lambda: Recorder(layer, embedded=inputs))):
            return head, run


def config_of(entry):
    return getattr(transformers, entry["class"] + entry.get("part", "") + "Config")(**entry["config"])


def make(name):
    entry, target = CONFIGS[name], MODELS / name
    source = MODELS / "qwen3"
    with safe_open(source / "expected.safetensors", "pt") as file:
        ids, prompt = file.get_tensor("input_ids").long(), file.metadata()["prompt"]
    config = config_of(entry)
    kind = getattr(transformers, entry["class"] + entry.get("head", "ForCausalLM"))
    model = kind._from_config(config, attn_implementation="eager")
    model = model.float().eval()
    seed, dtype = entry.get("seed", 1), DRAFT_TYPE if "draft" in entry else torch.float32
    while True:
        fill(model, seed, entry.get("embedding", 1.0), dtype)
        run = Recorder(model, ids)
        greedy, margin = continuation(model, ids)
        if margin.min() >= MARGIN and len(set(greedy.tolist())) >= TOKENS and clear(model, ids, run, greedy):
            break
        seed += 1
    shutil.rmtree(target, ignore_errors=True)
    model.save_pretrained(target)
    (target / "generation_config.json").unlink(missing_ok=True)
    [shutil.copy(source / it, target / it) for it in SAME]
    saved = json.loads((target / "config.json").read_text())
    saved.pop("transformers_version", None)
    saved["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(entry.get("written", lambda it: it)(saved), indent=2) + "\n")
    expected = {"input_ids": ids.int(), "logits": run.logits, "hidden": torch.stack(run.hidden)}
    expected |= {"greedy_ids": greedy.int(), "greedy_margin": margin}
    if run.top:
        expected |= {"router_top": torch.stack(run.top).int(), "router_weight": torch.stack(run.weight)}
    if "draft" in entry:
        head, drafted = draft_head(entry, model, kind, ids, seed)
        weights = load_file(target / "model.safetensors") | head.tensors(entry["draft"]["names"], config.num_hidden_layers)
        weights = {name: it.to(DRAFT_TYPE) for name, it in weights.items()}
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
        # The token after the last one is not known.
        expected["nextn_logits"] = torch.cat([drafted.logits, torch.zeros_like(drafted.logits[:1])])
    expected = {key: it.contiguous() for key, it in expected.items()}
    save_file(expected, target / "expected.safetensors", metadata={"prompt": prompt, "seed": str(seed)})
    print(f"{name}: seed {seed}, smallest margin {margin.min():.3f}, deviation of logits {run.logits.std():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        make(name)
    if not sys.argv[1:]:
        print(*CONFIGS, sep="\n")
