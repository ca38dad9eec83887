"""Writes tests/fixtures/picture_tokens/NAME.safetensors: the logits of transformers for texts with pictures, of a model of tests/fixtures/models.

    OMP_NUM_THREADS=1 python3 picture_tokens.py [NAME ...]       (needs torch, transformers, safetensors; without names: all)

The pictures are random embeddings. Positions, masks and additions after layers (deepstack) are made by the code of the reference.
"""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).parent.parent / "fixtures"
# Class of the model, and rows and columns of its pictures. Tokens of text are between them.
MODELS = {
    "qwen2_5-vl": ("Qwen2_5_VLForConditionalGeneration", [(3, 4), (2, 7)]),
    "qwen3-vl": ("Qwen3VLForConditionalGeneration", [(5, 3), (1, 6)]),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", [(4, 4), (3, 5)]),
    "gemma3": ("Gemma3ForCausalLM", [(3, 4), (5, 4)]),
    "gemma4": ("Gemma4ForConditionalGeneration", [(3, 4), (5, 4)]),
    "gemma4-whole": ("Gemma4ForConditionalGeneration", [(3, 4), (5, 4)]),
}
# The model of the same folder, whose configuration says that tokens of a picture read all of it.
WHOLE = "-whole"
BEFORE, BETWEEN, AFTER = 5, 3, 6


def tokens(grids, vocabulary, generator):
    """Ids, kinds (1 for tokens of pictures), and the place of each picture's first token."""
    draw = lambda count: torch.randint(2, vocabulary, (count,), generator=generator).tolist()
    ids, kinds, starts = draw(BEFORE), [0] * BEFORE, []
    for i, (rows, cols) in enumerate(grids):
        starts.append(len(ids))
        ids += [7] * (rows * cols)
        kinds += [1] * (rows * cols)
        after = AFTER if i + 1 == len(grids) else BETWEEN
        ids += draw(after)
        kinds += [0] * after
    return torch.tensor(ids), torch.tensor(kinds), starts


def masks(model, text, embedded, kinds):
    """The masks of attention in both directions within pictures."""
    module = sys.modules[type(model).__module__]
    blocks = module.get_block_sequence_ids_for_mask(kinds[None], device=embedded.device)
    positions = torch.arange(len(kinds))[None]
    given = {"config": text.config, "inputs_embeds": embedded, "attention_mask": None, "cache": None, "position_ids": positions}
    return module.create_masks_for_vision_model(block_sequence_ids=blocks, **given)


def make(name):
    kind, grids = MODELS[name]
    generator = torch.Generator().manual_seed(3)
    model = getattr(transformers, kind).from_pretrained(FIXTURES / "models" / name.removesuffix(WHOLE), attn_implementation="eager", dtype=torch.float32)
    model = model.eval()
    text = getattr(model.model, "language_model", model.model)
    ids, kinds, starts = tokens(grids, text.config.vocab_size, generator)
    draw = lambda: torch.randn((int(kinds.sum()), text.config.hidden_size), generator=generator)
    pictures, deepstack, given = draw(), [], {}
    embedded = model.get_input_embeddings()(ids)
    embedded[kinds == 1] = pictures
    if name.startswith("qwen"):
        merge = model.config.vision_config.spatial_merge_size
        grid = torch.tensor([(1, rows * merge, cols * merge) for rows, cols in grids])
        positions, _ = model.model.get_rope_index(ids[None], kinds[None].int(), image_grid_thw=grid)
        given["position_ids"] = positions
    if name == "qwen3-vl":
        deepstack = [draw(), draw()]
        given |= {"visual_pos_masks": kinds[None] == 1, "deepstack_visual_embeds": deepstack}
    if name == "gemma3" or name.endswith(WHOLE):
        given["attention_mask"] = masks(model, text, embedded[None], kinds)
    with torch.no_grad():
        hidden = text(inputs_embeds=embedded[None], use_cache=False, **given).last_hidden_state
        logits = model.lm_head(hidden)[0]
        cap = getattr(text.config, "final_logit_softcapping", None)
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = {
        "input_ids": ids.int(),
        "starts": torch.tensor(starts).int(),
        "grids": torch.tensor(grids).int(),
        "embeddings": pictures,
        "logits": logits,
    }
    if deepstack:
        expected["deepstack"] = torch.stack(deepstack)
    target = FIXTURES / "picture_tokens"
    target.mkdir(exist_ok=True)
    save_file({key: it.contiguous() for key, it in expected.items()}, target / f"{name}.safetensors")
    print(f"{name}: {len(ids)} tokens, deviation of logits {logits.std():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        make(name)
