"""Writes tests/fixtures/preprocessing: ten pictures, and what the image processor of each tower makes of them.

    python3 preprocessing.py FAMILY ...       (without names: all)

Some processors make most pictures larger, and others smaller. `FAMILY.json` has a processor's settings. `expected.safetensors` has
`FAMILY.N.size`, width and height of picture N, and `FAMILY.N.samples`: every 101st sample of its pixels, row by row, before they are
normalised. Of a sliced picture, both are of the overview and then of the slices. FAMILY is a folder of tests/fixtures/towers, from which
the other sizes come.
"""

import json
import sys

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

import minicpmv
from make_golden import MODELS
from pictures import drawing, waves
from towers import CONFIGS

FOLDER = MODELS.parent / "preprocessing"
EVERY = 101
PROCESSORS = {
    "qwen3-vl": {"size": {"shortest_edge": 65536, "longest_edge": 16777216}},
    "qwen2_5-vl": {"size": {"shortest_edge": 3136, "longest_edge": 12544}},
    "gemma3": {},
    "gemma4": {"max_soft_tokens": 280},
    "gemma4-unified": {"max_soft_tokens": 280},
    "pixtral": {"size": {"longest_edge": 224}},
    "minicpm-v2_6": {"scale_resolution": 112},
    "minicpm-v4_6": {"scale_resolution": 128},
}


def gradient(width, height):
    y, x = np.mgrid[0:height, 0:width]
    channels = [x * 255 / (width - 1), y * 255 / (height - 1), (x + y) * 255 / (width + height - 2)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8), "RGB")


def noise(width, height, seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8), "RGB")


def checks(width, height):
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(((x + y) % 2 * 255).astype(np.uint8), "L").convert("RGB")


def page(width, height):
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for line in range(0, height, 14):
        draw.text((4, line), f"{line}: the quick brown fox jumps over the lazy dog, {line * line} times", fill="black")
    return image


def rays(width, height):
    image = Image.new("RGB", (width, height), "ivory")
    draw = ImageDraw.Draw(image)
    for at in range(0, width, 9):
        draw.line([at, 0, width - at, height], fill=(at % 256, 40, 200), width=1 + at % 3)
    return image


PICTURES = [
    waves(211, 140, 1),
    waves(97, 260, 2),
    gradient(320, 200),
    noise(61, 47, 3),
    page(500, 170),
    rays(301, 299),
    drawing(900, 24, 4),
    drawing(20, 640, 5),
    checks(255, 96),
    drawing(13, 9, 6),
]


def pixels(made, settings, vision):
    """The pixels of a processed picture, `[height, width, 3]`, from 0 to 255."""
    values = made["pixel_values"]
    if "image_grid_thw" in made:
        side = settings["patch_size"]
        _, rows, cols = made["image_grid_thw"][0].tolist()
        values = values.reshape(rows // 2, cols // 2, 2, 2, 3, 2, side, side)[:, :, :, :, :, 0]
        values = values.permute(0, 2, 5, 1, 3, 6, 4).reshape(rows * side, cols * side, 3)
    elif "image_position_ids" in made:
        cols, rows = (made["image_position_ids"][0].amax(0) + 1).tolist()
        side = round((values.shape[-1] // 3) ** 0.5)
        values = values[0, : rows * cols].reshape(rows, cols, side, side, 3).permute(0, 2, 1, 3, 4).reshape(rows * side, cols * side, 3)
    else:
        values = values[0].permute(1, 2, 0)
    if settings.get("do_normalize", "gemma4" not in vision):
        values = values * torch.tensor(settings["image_std"]) + torch.tensor(settings["image_mean"])
    return (values * 255).round().clamp(0, 255).to(torch.uint8)


def sliced(made, side):
    """The pixels of a processed picture's overview and slices, from 0 to 255."""
    values, first = made["pixel_values"][0] * 0.5 + 0.5, 0
    for rows, cols in made["target_sizes"].tolist():
        length = rows * cols * side
        part = values[:, :, first : first + length].reshape(3, side, rows, cols, side)
        first += length
        yield (part.permute(2, 1, 3, 4, 0).reshape(rows * side, cols * side, 3) * 255).round().clamp(0, 255).to(torch.uint8)


def processed(family, settings, picture):
    """The pixels of each part of a picture, `[height, width, 3]`."""
    if family == "minicpm-v2_6":
        return [torch.tensor(np.asarray(part)) for part in minicpmv.parts(picture, settings)[0]]
    kind = getattr(transformers, "MiniCPMV4_6ImageProcessor" if family == "minicpm-v4_6" else settings["image_processor_type"])
    processor = kind(**{key: value for key, value in settings.items() if key != "image_processor_type"})
    made = processor(images=picture, return_tensors="pt")
    return list(sliced(made, settings["patch_size"])) if family == "minicpm-v4_6" else [pixels(made, settings, family)]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "expected.safetensors"
    expected = load_file(path) if path.exists() else {}
    for at, picture in enumerate(PICTURES):
        picture.save(FOLDER / f"{at}.png", optimize=True)
    for family in sys.argv[1:] or PROCESSORS:
        base = CONFIGS[family]["processor"] if family in CONFIGS else minicpmv.SETTINGS | minicpmv.CONFIGS[family]["processor"]
        settings = base | PROCESSORS[family]
        (FOLDER / f"{family}.json").write_text(json.dumps(settings, indent=2) + "\n")
        for at, picture in enumerate(PICTURES):
            try:
                made = processed(family, settings, picture)
            except ValueError as error:
                print(family, at, error)
                continue
            sizes = [side for part in made for side in (part.shape[1], part.shape[0])]
            expected[f"{family}.{at}.size"] = torch.tensor(sizes, dtype=torch.int32)
            expected[f"{family}.{at}.samples"] = torch.cat([part.flatten() for part in made])[::EVERY].contiguous()
        print(family, [expected[f"{family}.{at}.size"].tolist() for at in range(len(PICTURES)) if f"{family}.{at}.size" in expected])
    save_file(expected, path)
