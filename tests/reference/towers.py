"""Writes the fixtures of tests/fixtures/towers: small vision models of seeded random weights, and what transformers makes of pictures.

    OMP_NUM_THREADS=1 python3 towers.py NAME ...       (without names: all)

Each folder has `whole.png`, whose sides need no resizing, `resized.png`, and `expected.safetensors`: the embeddings and deepstack
additions of each picture, and the logits of a prompt with both pictures.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file

from make_golden import MODELS, SAME, fill
from pictures import drawing, waves

TOWERS = MODELS.parent / "towers"
TEXT = {
    "vocab_size": 384,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
QWEN3_5_TEXT = TEXT | {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}
GEMMA4_TEXT = TEXT | {
    "sliding_window": 32,
    "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "tie_word_embeddings": True,
}
GEMMA_TOKENS = {"image_token_id": 380, "boi_token_id": 381, "eoi_token_id": 382}
PIXTRAL_MARKS = {384: "[IMG]", 385: "[IMG_BREAK]", 386: "[IMG_END]"}
QWEN_TOKENS = {"image_token_id": 380, "video_token_id": 381, "vision_start_token_id": 382, "vision_end_token_id": 383}
QWEN_TOWER = {
    "depth": 3,
    "hidden_size": 64,
    "num_heads": 4,
    "intermediate_size": 96,
    "num_position_embeddings": 25,
    "out_hidden_size": 48,
}
HALF = [0.5, 0.5, 0.5]
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_DEVIATION = [0.26862954, 0.26130258, 0.27577711]
QWEN_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 4096, "longest_edge": 16384},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": HALF,
    "image_std": HALF,
}
CONFIGS = {
    "qwen3-vl": {
        "class": "Qwen3VL",
        "config": QWEN_TOKENS
        | {
            "text_config": TEXT
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
            "vision_config": QWEN_TOWER | {"deepstack_visual_indexes": [0, 2]},
        },
        "processor": QWEN_PROCESSOR,
        "whole": (96, 64),
        "resized": (200, 150),
    },
    "qwen2_5-vl": {
        "class": "Qwen2_5_VL",
        "config": QWEN_TOKENS
        | {
            "text_config": {key: value for key, value in TEXT.items() if key != "head_dim"}
            | {"num_attention_heads": 3, "num_key_value_heads": 1}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}},
            "vision_config": {
                "depth": 3,
                "hidden_size": 64,
                "num_heads": 4,
                "intermediate_size": 96,
                "out_hidden_size": 48,
                "patch_size": 14,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
        },
        "processor": QWEN_PROCESSOR
        | {"patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_DEVIATION},
        "whole": (84, 140),
        "resized": (200, 90),
    },
    "gemma3": {
        "class": "Gemma3",
        "config": GEMMA_TOKENS
        | {
            "mm_tokens_per_image": 4,
            "text_config": TEXT | {"sliding_window": 32, "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "image_size": 64,
                "patch_size": 8,
                "vision_use_head": False,
            },
        },
        "processor": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 64, "width": 64},
            "image_mean": HALF,
            "image_std": HALF,
        },
        "whole": (64, 64),
        "resized": (150, 90),
        "types": "token_type_ids",
    },
    "gemma4": {
        "class": "Gemma4",
        "config": GEMMA_TOKENS
        | {
            "text_config": GEMMA4_TEXT,
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 16,
                "intermediate_size": 96,
                "patch_size": 8,
                "pooling_kernel_size": 3,
                "position_embedding_size": 256,
                "use_clipped_linears": True,
                "standardize": True,
            },
            "audio_config": None,
        },
        "processor": {
            "image_processor_type": "Gemma4ImageProcessor",
            "patch_size": 8,
            "max_soft_tokens": 70,
            "pooling_kernel_size": 3,
            "image_mean": [0.0] * 3,
            "image_std": [1.0] * 3,
        },
        "whole": (168, 240),
        "resized": (150, 90),
        "pooling": 3,
    },
    "gemma4-unified": {
        "class": "Gemma4Unified",
        "config": GEMMA_TOKENS
        | {
            "text_config": GEMMA4_TEXT,
            "vision_config": {
                "patch_size": 4,
                "pooling_kernel_size": 3,
                "mm_embed_dim": 64,
                "mm_posemb_size": 128,
                "output_proj_dims": 64,
            },
            "audio_config": None,
        },
        "processor": {
            "image_processor_type": "Gemma4UnifiedImageProcessor",
            "patch_size": 4,
            "max_soft_tokens": 70,
            "pooling_kernel_size": 3,
            "do_normalize": False,
            "image_mean": [0.0] * 3,
            "image_std": [1.0] * 3,
        },
        "published": lambda name: gemma4_unified_names(name),
        "whole_pictures": True,
        "whole": (84, 120),
        "resized": (150, 90),
    },
    "pixtral": {
        "class": "Mistral3",
        "config": {
            "image_token_id": 384,
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
            "text_config": TEXT | {"model_type": "mistral", "vocab_size": 387, "sliding_window": None, "rms_norm_eps": 1e-5},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "image_size": 128,
                "patch_size": 8,
                "hidden_act": "silu",
            },
        },
        "processor": {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 128},
            "patch_size": {"height": 16, "width": 16},
            "image_mean": CLIP_MEAN,
            "image_std": CLIP_DEVIATION,
        },
        "tokens": PIXTRAL_MARKS,
        "row_ends": [385, 386],
        "whole": (96, 64),
        "resized": (200, 90),
    },
    "pixtral-llava": {
        "class": "Llava",
        "config": {
            "image_token_id": 384,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "text_config": TEXT | {"model_type": "mistral", "vocab_size": 387, "num_hidden_layers": 1, "sliding_window": None},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 48,
                "image_size": 64,
                "patch_size": 8,
                "hidden_act": "gelu",
            },
        },
        "processor": {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 64},
            "patch_size": {"height": 8, "width": 8},
            "image_mean": CLIP_MEAN,
            "image_std": CLIP_DEVIATION,
        },
        "tokens": PIXTRAL_MARKS,
        "row_ends": [385, 386],
        "whole": (64, 48),
        "resized": (70, 130),
    },
    "qwen3_5": {
        "class": "Qwen3_5",
        "config": QWEN_TOKENS
        | {
            "text_config": QWEN3_5_TEXT,
            "vision_config": QWEN_TOWER | {"num_position_embeddings": 16},
        },
        "processor": QWEN_PROCESSOR,
        "whole": (64, 64),
        "resized": (75, 130),
    },
}


# What processors return that models do not take.
DROPPED = ["num_crops", "num_soft_tokens_per_image"]


def fill_limits(model):
    """Limits of values and standardisation, which are buffers (Gemma 4)."""
    generator = torch.Generator().manual_seed(8)
    for name, value in model.named_buffers():
        if name.endswith(("_min", "_max")):
            sign = -1 if name.endswith("_min") else 1
            value.copy_(torch.tensor(sign * 1.5).to(torch.bfloat16))
        elif name.endswith(("std_bias", "std_scale")):
            value.copy_((1 + 0.3 * torch.randn(value.shape, generator=generator)).to(torch.bfloat16))


def gemma4_unified_names(name):
    """The published name of a tensor, which the library renames."""
    name = name.replace("embed_vision.multimodal_embedder.", "embed_vision.")
    return name if "embedding_projection" in name else name.replace("embed_vision.", "vision_embedder.")


def add_tokens(path, tokens):
    """Adds special tokens, content by id, to a tokenizer."""
    tokenizer = json.loads(path.read_text())
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": at, "content": content} | kinds for at, content in tokens.items()]
    if tokens:
        path.write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")


def write_folder(name, weights, config, settings, tokens):
    """Writes what a published folder has, with weights in BF16. Returns the folder."""
    folder = TOWERS / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    for file in SAME:
        shutil.copy(MODELS / "qwen3" / file, folder / file)
    add_tokens(folder / "tokenizer.json", tokens)
    return folder


def write_pictures(folder, entry):
    """Writes the pictures of an entry, and returns them by name."""
    pictures = {}
    for at, name in enumerate(["whole", "resized"]):
        (waves if at else drawing)(*entry[name], 40 + at).save(folder / f"{name}.png", optimize=True)
        pictures[name] = Image.open(folder / f"{name}.png")
    return pictures


def write_expected(folder, expected):
    save_file(expected, folder / "expected.safetensors")
    shapes = {key: list(value.shape) for key, value in expected.items()}
    figures = [float(expected["whole.embeddings"].abs().max()), float(expected["logits"].std())]
    print(folder.name, shapes, "largest embedding", figures[0], "logits", figures[1])


def deepstack(features):
    """Additions to the first layers of the text model, if the tower has them."""
    return getattr(features, "deepstack_features", None) or []


def write(name):
    entry = CONFIGS[name]
    config = getattr(transformers, entry["class"] + "Config")(**entry["config"])
    config._attn_implementation = "eager"
    model = getattr(transformers, entry["class"] + "ForConditionalGeneration")(config).eval()
    fill(model, 7, 0.5, torch.bfloat16)
    fill_limits(model)
    rename = entry.get("published", str)
    weights = {rename(key): value for key, value in model.state_dict().items()}
    config.architectures = [type(model).__name__]
    folder = write_folder(name, weights, config.to_dict(), entry["processor"], entry.get("tokens", {}))
    kind = getattr(transformers, entry["processor"]["image_processor_type"])
    processor = kind(**{key: value for key, value in entry["processor"].items() if key != "image_processor_type"})
    ids, made, expected = [5, 6, 7], [], {}
    pictures = write_pictures(folder, entry)
    for at, (picture, image) in enumerate(pictures.items()):
        inputs = processor(images=image, return_tensors="pt")
        made.append(inputs)
        with torch.no_grad():
            features = model.get_image_features(**{key: value for key, value in inputs.items() if key not in DROPPED}, return_dict=True)
        embeddings = features.pooler_output
        embeddings = embeddings if torch.is_tensor(embeddings) else embeddings[0]
        expected[f"{picture}.embeddings"] = embeddings.reshape(-1, embeddings.shape[-1]).float().contiguous()
        for layer, added in enumerate(deepstack(features)):
            added = added if torch.is_tensor(added) else added[0]
            expected[f"{picture}.deepstack.{layer}"] = added.float().contiguous()
        if "image_grid_thw" in inputs:
            rows, cols = (inputs["image_grid_thw"][0, 1:] // 2).tolist()
        elif "image_position_ids" in inputs:
            cols, rows = ((inputs["image_position_ids"][0].amax(0) + 1) // entry.get("pooling", 1)).tolist()
        elif "image_sizes" in inputs:
            side = entry["processor"]["patch_size"]["height"]
            rows, cols = [size // side for size in inputs["image_sizes"][0].tolist()]
        else:
            rows = cols = int(len(embeddings.reshape(-1, embeddings.shape[-1])) ** 0.5)
        expected[f"{picture}.grid"] = torch.tensor([rows, cols], dtype=torch.int32)
        image_token = entry["config"]["image_token_id"]
        if "row_ends" in entry:
            between, last = entry["row_ends"]
            ids += (([image_token] * cols + [between]) * rows)[:-1] + [last]
        else:
            ids += [image_token] * (rows * cols)
        ids += [9 + at, 11]
    ids = torch.tensor(ids)
    if "image_sizes" in inputs:
        # The processor pads pictures of different sizes.
        inputs = processor(images=list(pictures.values()), return_tensors="pt")
    else:
        inputs = {key: torch.cat([it[key] for it in made]) for key in made[0]}
    types = (ids == entry["config"]["image_token_id"]).long()
    with torch.no_grad():
        inputs = {key: value for key, value in inputs.items() if key not in DROPPED}
        if "row_ends" not in entry:
            inputs[entry.get("types", "mm_token_type_ids")] = types[None]
        if entry.get("whole_pictures"):
            # The masks of generation, in which only layers with a window read whole pictures.
            embedded, positions = torch.zeros(1, len(ids), TEXT["hidden_size"]), torch.arange(len(ids))[None]
            inputs["attention_mask"] = model.create_masks_for_generate(
                model.config, embedded, None, None, positions, mm_token_type_ids=types[None]
            )
        logits = model(input_ids=ids[None], **inputs, use_cache=False).logits[0]
    expected["tokens"], expected["logits"] = ids.to(torch.int32), logits.float().contiguous()
    write_expected(folder, expected)


if __name__ == "__main__":
    for name in sys.argv[1:] or CONFIGS:
        write(name)
