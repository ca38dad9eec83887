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
from safetensors import safe_open
from safetensors.torch import save_file

from golden_configs import CONFIGS

MODELS = Path(__file__).parent.parent / "fixtures" / "models"
GREEDY, TOKENS, MARGIN, NOISE = 16, 5, 0.05, 3e-4
SAME = ["tokenizer.json", "tokenizer_config.json"]


def fill(model, seed, embedding):
    """Random weights; those of norms and biases are far from ones and zeros, so that a missing one shows. `embedding` is the deviation
    of the embedding."""
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
                width = model.config.get_text_config().hidden_size if weight.dim() == 3 else weight.shape[-1]
                weight.copy_(gain * draw(weight.shape) / width**0.5)


class Recorder:
    """Outputs of layers and choices of experts of one pass over `ids`."""

    def __init__(self, model, ids):
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
            self.logits = model(input_ids=ids[None], use_cache=False).logits[0]
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


def clear(model, ids, run, greedy):
    """True if weights that are a little off lead to the same experts and the same text."""
    weights = {name: it.clone() for name, it in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for it in model.parameters():
            it.mul_(1 + NOISE * torch.randn(it.shape, generator=generator))
    again, text = Recorder(model, ids), continuation(model, ids)[0]
    model.load_state_dict(weights)
    same = all((a.sort(1).values == b.sort(1).values).all() for a, b in zip(run.top, again.top))
    return same and bool((text == greedy).all())


def make(name):
    entry, target = CONFIGS[name], MODELS / name
    source = MODELS / "qwen3"
    with safe_open(source / "expected.safetensors", "pt") as file:
        ids, prompt = file.get_tensor("input_ids").long(), file.metadata()["prompt"]
    config = getattr(transformers, entry["class"] + entry.get("part", "") + "Config")(**entry["config"])
    kind = getattr(transformers, entry["class"] + entry.get("head", "ForCausalLM"))
    model = kind._from_config(config, attn_implementation="eager")
    model = model.float().eval()
    seed = entry.get("seed", 1)
    while True:
        fill(model, seed, entry.get("embedding", 1.0))
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
    (target / "config.json").write_text(json.dumps(entry.get("written", lambda it: it)(saved), indent=2) + "\n")
    expected = {"input_ids": ids.int(), "logits": run.logits, "hidden": torch.stack(run.hidden)}
    expected |= {"greedy_ids": greedy.int(), "greedy_margin": margin}
    if run.top:
        expected |= {"router_top": torch.stack(run.top).int(), "router_weight": torch.stack(run.weight)}
    expected = {key: it.contiguous() for key, it in expected.items()}
    save_file(expected, target / "expected.safetensors", metadata={"prompt": prompt, "seed": str(seed)})
    print(f"{name}: seed {seed}, smallest margin {margin.min():.3f}, deviation of logits {run.logits.std():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        make(name)
    if not sys.argv[1:]:
        print(*CONFIGS, sep="\n")
