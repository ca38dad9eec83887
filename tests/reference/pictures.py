"""Writes the fixtures of tests/fixtures/pictures.

`files/` has one small picture in every format that people have, and `files/NAME.png` beside each is what Pillow
makes of it: rotated as its EXIF data say, and drawn over white. `resized/` has ten drawings, and what the image
processor of Qwen2-VL makes of each before it normalises the pixels.

Usage: python tests/reference/pictures.py
"""

import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from transformers import Qwen2VLImageProcessor

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "pictures"


def waves(width, height, seed):
    """Smooth colours with fine noise, in place of a photograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = []
    for _ in range(3):
        value = np.zeros((height, width))
        for _ in range(6):
            fx, fy, phase = rng.uniform(-0.25, 0.25), rng.uniform(-0.25, 0.25), rng.uniform(0, 6.28)
            value += np.sin(fx * x + fy * y + phase) / (1 + 8 * abs(fx))
        value = (value - value.min()) / (np.ptp(value) + 1e-9) * 255
        channels.append(value + rng.normal(0, 4, value.shape))
    return Image.fromarray(np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8), "RGB")


def drawing(width, height, seed):
    """Sharp shapes and lines on one colour."""
    rng = np.random.default_rng(seed)
    colour = lambda: tuple(int(c) for c in rng.integers(0, 256, 3))
    image = Image.new("RGB", (width, height), colour())
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        (x0, x1), (y0, y1) = sorted(rng.integers(0, width, 2)), sorted(rng.integers(0, height, 2))
        shape = [draw.rectangle, draw.ellipse][int(rng.integers(2))]
        shape([int(x0), int(y0), int(x1), int(y1)], fill=colour(), outline=colour())
        draw.line([int(v) for v in (x0, y1, x1, y0)], fill=colour(), width=int(rng.integers(1, 4)))
    draw.text((2, height // 3), "Thermocline", fill=colour())
    return image


def over_white(image):
    """What a processor should see: rotated, and over white."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "I;16":
        return Image.fromarray((np.asarray(image).astype(np.uint32) * 255 // 65535).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def png16(image):
    """A PNG of 16 bits per channel, which Pillow does not write."""
    import zlib

    pixels = np.asarray(image).astype(np.uint16) * 257
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", image.width, image.height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_files(folder):
    folder.mkdir(parents=True, exist_ok=True)
    photo, shapes = waves(40, 28, 1), drawing(40, 28, 2)
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, 40).astype(np.uint8), (28, 1)), "L")
    clear = shapes.copy()
    clear.putalpha(alpha)
    exif = Image.Exif()
    exif[0x0112] = 6
    palette = shapes.quantize(16)
    save = lambda image, name, **options: image.save(folder / name, **options)
    (folder / "png-16-bit.png").write_bytes(png16(photo))
    save(palette, "png-palette.png")
    save(palette, "png-palette-transparent.png", transparency=3)
    save(clear, "png-transparent.png")
    save(photo.convert("L"), "png-grey.png")
    save(clear.convert("LA"), "png-grey-transparent.png")
    save(shapes.convert("1"), "png-1-bit.png")
    save(photo, "jpeg.jpg", quality=92)
    save(photo, "jpeg-progressive.jpg", quality=92, progressive=True)
    save(photo.convert("L"), "jpeg-grey.jpg", quality=92)
    save(photo.convert("CMYK"), "jpeg-cmyk.jpg", quality=92)
    save(photo, "jpeg-rotated.jpg", quality=92, exif=exif)
    save(photo, "webp.webp", quality=90)
    save(clear, "webp-lossless-transparent.webp", lossless=True)
    save(photo, "webp-animated.webp", save_all=True, append_images=[shapes], lossless=True)
    save(palette, "gif.gif")
    save(shapes.quantize(32), "gif-animated.gif", save_all=True, append_images=[photo.quantize(32)])
    save(shapes, "bmp.bmp")
    save(shapes, "tiff-lzw.tif", compression="tiff_lzw")
    save(photo, "tiff-rotated.tif", exif=exif)
    for path in sorted(folder.iterdir()):
        if not path.name.endswith(".golden.png"):
            with Image.open(path) as image:
                over_white(image).save(folder / f"{path.name}.golden.png", optimize=True)


def write_resized(folder):
    folder.mkdir(parents=True, exist_ok=True)
    processor = Qwen2VLImageProcessor(patch_size=16, size={"shortest_edge": 64 * 64, "longest_edge": 96 * 96})
    sizes = [(150, 100), (61, 47), (200, 60), (33, 170), (96, 96), (120, 119), (20, 13), (97, 64), (160, 40), (70, 140)]
    for at, (width, height) in enumerate(sizes):
        image = (waves if at % 2 else drawing)(width, height, 100 + at)
        image.save(folder / f"{at}.png", optimize=True)
        made = processor(images=image, do_rescale=False, do_normalize=False, return_tensors="pt")
        _, rows, cols = made["image_grid_thw"][0].tolist()
        pixels = made["pixel_values"].reshape(rows // 2, cols // 2, 2, 2, 3, 2, 16, 16)[:, :, :, :, :, 0]
        pixels = pixels.permute(0, 2, 5, 1, 3, 6, 4).reshape(rows * 16, cols * 16, 3)
        Image.fromarray(pixels.round().to(torch.uint8).numpy()).save(folder / f"{at}.golden.png", optimize=True)


if __name__ == "__main__":
    write_files(FOLDER / "files")
    write_resized(FOLDER / "resized")
