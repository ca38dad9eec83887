"""Writes the fixtures minicpm-v* of tests/fixtures/towers, in the form that towers.py describes.

    OMP_NUM_THREADS=1 python3 minicpmv.py NAME ...       (without names: all)

transformers has MiniCPM-V 4.6. The tower of 2.6 to 4.5 is written here from its definition: SigLIP with learned positions that are
stretched to the picture's grid, and learned queries that attend to all patches. Both see large pictures as an overview and slices.
`whole.png` needs no resizing and no slices. `resized.png` has slices. `expected.safetensors` of 4.6 also has `fine.embeddings`: those of
`whole.png` in the mode that merges patches once.
"""

import json
import math
import sys

import numpy as np
import torch
import transformers
from PIL import Image
from torch import nn

from make_golden import fill
from towers import HALF, QWEN3_5_TEXT, TEXT, write_expected, write_folder, write_pictures

MARKS = {384: "<unk>", 385: "<image>", 386: "</image>", 387: "<slice>", 388: "</slice>", 389: "<image_id>", 390: "</image_id>"}
PICTURE, IMAGE, IMAGE_END, SLICE, SLICE_END, LINE_BREAK = 384, 385, 386, 387, 388, 200
HEAD = 128
TOWER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 56,
    "patch_size": 8,
}
SETTINGS = {"image_processor_type": "MiniCPMVImageProcessor", "image_mean": HALF, "image_std": HALF}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
CONFIGS = {
    "minicpm-v2_6": {
        "class": "Qwen2",
        "config": {"hidden_size": 256, "num_hidden_layers": 1, "rope_parameters": ROPE},
        "own": {"version": 2.6, "query_num": 5, "image_size": 64},
        "processor": {"scale_resolution": 64, "patch_size": 8, "max_slice_nums": 9},
        "whole": (80, 48),
        "resized": (200, 150),
    },
    "minicpm-v4": {
        "class": "Llama",
        "config": {"hidden_size": 128, "num_hidden_layers": 2, "rope_parameters": ROPE | {"rope_theta": 10000.0}},
        # More queries than patches, and fewer slices.
        "own": {"version": 4.0, "query_num": 18, "image_size": 32},
        "processor": {"scale_resolution": 32, "patch_size": 8, "max_slice_nums": 4},
        "whole": (32, 32),
        "resized": (60, 230),
    },
    "minicpm-v4_5": {
        "class": "Qwen3",
        "config": {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 16, "rope_parameters": ROPE},
        "own": {"version": 4.5, "query_num": 7, "image_size": 448, "drop_vision_last_layer": False},
        "processor": {"scale_resolution": 64, "patch_size": 8},
        "whole": (64, 64),
        "resized": (61, 47),
    },
    "minicpm-v4_6": {
        "class": "MiniCPMV4_6",
        "config": {
            "image_token_id": PICTURE,
            "insert_layer_id": 0,
            "text_config": QWEN3_5_TEXT | {"model_type": "qwen3_5_text", "vocab_size": 392},
            "vision_config": TOWER | {"num_hidden_layers": 3},
        },
        "processor": {"scale_resolution": 128, "patch_size": 8, "max_slice_nums": 9},
        "whole": (160, 96),
        "resized": (300, 150),
    },
}


def nearest(side, multiple):
    return max(round(side / multiple) * multiple, multiple)


def scaled(width, height, settings):
    """The sides of a picture of these proportions with about the area of a square, multiples of a patch."""
    ratio = width / height
    height = int(settings["scale_resolution"] / math.sqrt(ratio))
    return nearest(int(height * ratio), settings["patch_size"]), nearest(height, settings["patch_size"])


def slice_grid(width, height, settings):
    """Columns and rows of slices; None for pictures without slices."""
    most = settings.get("max_slice_nums", 9)
    wanted = min(math.ceil(width * height / settings["scale_resolution"] ** 2), most)
    if wanted <= 1:
        return None
    counts = [count for count in (wanted - 1, wanted, wanted + 1) if 1 < count <= most]
    grids = [(cols, count // cols) for count in counts for cols in range(1, count + 1) if count % cols == 0]
    return min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[0] / grid[1])))


def parts(image, settings):
    """The overview and the slices of a picture, row by row, and the grid of the slices."""
    overview = image.resize(scaled(*image.size, settings), Image.Resampling.BICUBIC)
    grid = slice_grid(*image.size, settings)
    if grid is None:
        return [overview], None
    cols, rows = grid
    width, height = scaled(nearest(image.width, cols) / cols, nearest(image.height, rows) / rows, settings)
    whole = image.resize((width * cols, height * rows), Image.Resampling.BICUBIC)
    corners = [(col * width, row * height) for row in range(rows) for col in range(cols)]
    return [overview] + [whole.crop((x, y, x + width, y + height)) for x, y in corners], grid


def waves_of(numbers, size):
    """Sines, then cosines, of growing wavelengths, `[numbers, size]`."""
    rates = 10000.0 ** (-torch.arange(size // 2, dtype=torch.float64) / (size // 2))
    angles = numbers[:, None].double() * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Resampler(nn.Module):
    def __init__(self, queries, size, width):
        super().__init__()
        norm = lambda: nn.LayerNorm(size, eps=1e-6)
        self.query = nn.Parameter(torch.zeros(queries, size))
        self.kv_proj = nn.Linear(width, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // HEAD, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = norm(), norm(), norm()
        self.proj = nn.Parameter(torch.zeros(size, size))

    def forward(self, patches, rows, cols):
        values = self.ln_kv(self.kv_proj(patches))
        half = values.shape[-1] // 2
        row, col = torch.arange(rows * cols) // cols, torch.arange(rows * cols) % cols
        keys = values + torch.cat([waves_of(col, half), waves_of(row, half)], 1)
        read, _ = self.attn(self.ln_q(self.query)[None], keys[None], values[None])
        return self.ln_post(read[0]) @ self.proj


class Reference(nn.Module):
    """A text model, a tower and a resampler, under the published names."""

    def __init__(self, entry):
        super().__init__()
        text = TEXT | {"vocab_size": 392} | entry["config"]
        if entry["class"] != "Qwen3":
            text.pop("head_dim")
        config = getattr(transformers, entry["class"] + "Config")(**text)
        config._attn_implementation = "eager"
        vision = transformers.SiglipVisionConfig(**TOWER, vision_use_head=False)
        vision._attn_implementation = "eager"
        self.llm = getattr(transformers, entry["class"] + "ForCausalLM")(config)
        self.vpm = transformers.SiglipVisionModel(vision)
        self.resampler = Resampler(entry["own"]["query_num"], config.hidden_size, vision.hidden_size)
        self.config = config

    def embed(self, image):
        """The embeddings of a picture or of a part of one."""
        pixels = torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1) / 255 * 2 - 1
        patches = self.vpm.embeddings.patch_embedding(pixels[None])
        _, _, rows, cols = patches.shape
        side = TOWER["image_size"] // TOWER["patch_size"]
        places = torch.arange(rows)[:, None] * side // rows * side + torch.arange(cols) * side // cols
        x = patches[0].flatten(1).T + self.vpm.embeddings.position_embedding(places.flatten())
        x = self.vpm.encoder(inputs_embeds=x[None]).last_hidden_state
        return self.resampler(self.vpm.post_layernorm(x)[0], rows, cols)


def tokens(lengths, grid):
    """The tokens of a picture whose parts have these lengths."""
    ids = [IMAGE] + [PICTURE] * lengths[0] + [IMAGE_END]
    for at, length in enumerate(lengths[1:]):
        ids += [LINE_BREAK] * (at > 0 and at % grid[0] == 0) + [SLICE] + [PICTURE] * length + [SLICE_END]
    return ids


def reference(entry):
    """The model of 2.6 to 4.5, its configuration, and functions for the embeddings of a picture's parts and for logits."""
    model = Reference(entry).eval()
    fill(model, 7, 0.5, torch.bfloat16)
    config = model.config.to_dict() | {"model_type": "minicpmv", "architectures": ["MiniCPMV"], "vision_config": TOWER} | entry["own"]
    config |= {"image_token_id": PICTURE}

    def embed(image):
        pictures, grid = parts(image, entry["processor"])
        return [model.embed(picture) for picture in pictures], grid

    def logits(ids, embeddings, _):
        embedded = model.llm.get_input_embeddings()(ids)
        embedded[ids == PICTURE] = embeddings
        return model.llm(inputs_embeds=embedded[None], use_cache=False).logits[0]

    return model, config, embed, logits


def published(entry):
    """The same of 4.6, from transformers."""
    config = transformers.MiniCPMV4_6Config(**entry["config"])
    config._attn_implementation = "eager"
    model = transformers.MiniCPMV4_6ForConditionalGeneration(config).eval()
    fill(model, 7, 0.5, torch.bfloat16)
    processor = transformers.MiniCPMV4_6ImageProcessor(**entry["processor"])
    config.architectures = [type(model).__name__]

    def embed(image, mode="16x"):
        made = processor(images=image, downsample_mode=mode, return_tensors="pt")
        inputs = {key: made[key] for key in ["pixel_values", "target_sizes"]}
        features = model.get_image_features(**inputs, downsample_mode=mode, return_dict=True)
        return list(features.pooler_output), made["grids"][0][::-1]

    def logits(ids, _, images):
        made = processor(images=images, return_tensors="pt")
        inputs = {key: made[key] for key in ["pixel_values", "target_sizes"]}
        return model(input_ids=ids[None], **inputs, use_cache=False).logits[0]

    return model, config.to_dict(), embed, logits


def write(name):
    entry = CONFIGS[name]
    model, config, embed, logits = (published if entry["class"] == "MiniCPMV4_6" else reference)(entry)
    weights = {key: value for key, value in model.state_dict().items() if "position_ids" not in key}
    folder = write_folder(name, weights, config, SETTINGS | entry["processor"], MARKS)
    pictures = {key: image.convert("RGB") for key, image in write_pictures(folder, entry).items()}
    images = list(pictures.values())
    ids, made, expected = [5, 6, 7], [], {}
    with torch.no_grad():
        for at, (picture, image) in enumerate(pictures.items()):
            embeddings, grid = embed(image)
            lengths = [len(part) for part in embeddings]
            made += embeddings
            expected[f"{picture}.embeddings"] = torch.cat(embeddings).float().contiguous()
            expected[f"{picture}.grid"] = torch.tensor(whole_grid(entry, image, lengths), dtype=torch.int32)
            ids += tokens(lengths, grid) + [9 + at, 11]
        if "16x" in json.dumps(config):
            (expected["fine.embeddings"],), _ = embed(images[0], "4x")
            expected["fine.grid"] = torch.tensor([side // 16 for side in reversed(images[0].size)], dtype=torch.int32)
        ids = torch.tensor(ids)
        expected["tokens"] = ids.to(torch.int32)
        expected["logits"] = logits(ids, torch.cat(made), images).float().contiguous()
    write_expected(folder, expected)


def whole_grid(entry, image, lengths):
    """Rows and columns of a picture's tokens. Those of queries and of several parts are in one row."""
    if entry["class"] != "MiniCPMV4_6" or len(lengths) > 1:
        return [1, sum(lengths)]
    side = 4 * entry["processor"]["patch_size"]
    width, height = scaled(*image.size, entry["processor"] | {"patch_size": side})
    return [height // side, width // side]


if __name__ == "__main__":
    for name in sys.argv[1:] or CONFIGS:
        write(name)
