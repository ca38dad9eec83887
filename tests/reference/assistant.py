"""Writes a folder of tests/fixtures/assistants: an assistant of Gemma 4 with seeded random weights, and what transformers drafts with it.

    OMP_NUM_THREADS=1 python3 assistant.py NAME ...       (needs what make_golden.py needs; without names: lists them)

An assistant has only queries. Its layers read the keys and values of the last layer of each kind in the model that it drafts for. Its input
is a projection of the next token's embedding and of the hidden state before it. Every draft has the position of the next token.

The model is the folder of the same name in tests/fixtures/models. `logits` are `[contexts, drafts, vocab]`: the drafts after the first
tokens of a prompt, whose numbers are `contexts`. The token after them is the next one. `drafts` are the likeliest tokens.
"""

import json
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma4AssistantConfig, Gemma4AssistantForCausalLM

from make_golden import MARGIN, MODELS, SAME, fill

DRAFTS, CONTEXTS = 3, [1, 4, 9, 12, 17]
SEED = 1

# What differs from the configuration of the model: the widths, and the layers.
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 0}
SMALL |= {"vocab_size_per_layer_input": 0, "final_logit_softcapping": None, "use_double_wide_mlp": False}
SMALL |= {"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}
# By the name of the model.
ASSISTANTS = {
    "gemma4": {},
    "gemma4-e2b": {"use_ordered_embeddings": True, "num_centroids": 48, "centroid_intermediate_top_k": 32},
}


def drafts(assistant, model, ids):
    """Logits of the drafts after `ids`, of which the last one is the next token, `[drafts, vocab]`."""
    with torch.no_grad():
        held = model(input_ids=ids[None, :-1], output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
        hidden, token, logits = held.hidden_states[-1][:, -1:], ids[None, -1:], []
        for _ in range(DRAFTS):
            inputs = torch.cat([model.get_input_embeddings()(token), hidden], dim=-1)
            position = torch.tensor([[len(ids) - 1]])
            drafted = assistant(inputs_embeds=inputs, position_ids=position, shared_kv_states=held.shared_kv_states, use_cache=False)
            hidden, token = drafted.last_hidden_state, drafted.logits.argmax(-1)
            logits.append(drafted.logits[0, 0])
    return torch.stack(logits)


def make(name):
    source, target = MODELS / name, MODELS.parent / "assistants" / name
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype=torch.float32).eval()
    text = json.loads((source / "config.json").read_text())["text_config"]
    config = Gemma4AssistantConfig(text_config=text | SMALL, backbone_hidden_size=text["hidden_size"], **ASSISTANTS[name])
    assistant = Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    with safe_open(MODELS / "qwen3" / "expected.safetensors", "pt") as file:
        ids = file.get_tensor("input_ids").long()
    seed = SEED
    while True:
        fill(assistant, seed, 1.0)
        if assistant.masked_embedding is not None:
            order = torch.randperm(text["vocab_size"], generator=torch.Generator().manual_seed(seed))
            assistant.masked_embedding.token_ordering.copy_(order)
        logits = torch.stack([drafts(assistant, model, ids[: held + 1]) for held in CONTEXTS])
        best = logits.topk(2).values
        if (best[..., 0] - best[..., 1]).min() >= MARGIN:
            break
        seed += 1
    shutil.rmtree(target, ignore_errors=True)
    assistant.save_pretrained(target)
    (target / "generation_config.json").unlink(missing_ok=True)
    [shutil.copy(source / it, target / it) for it in SAME]
    expected = {"input_ids": ids.int(), "contexts": torch.tensor(CONTEXTS).int(), "logits": logits, "drafts": logits.argmax(-1).int()}
    save_file(expected, target / "expected.safetensors", metadata={"seed": str(seed)})
    print(f"{name}: seed {seed}, deviation of logits {logits.std():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        make(name)
    if not sys.argv[1:]:
        print(*ASSISTANTS, sep="\n")
