#!/usr/bin/env python3
"""Makes every icon file from the two drawings: png/*.png, thermocline.ico and thermocline.icns.

Run it after a change of a drawing. Needs rsvg-convert and icotool (Debian: librsvg2-bin, icoutils).
"""

import struct
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Up to this many pixels the drawing without shades is used.
SMALL = 32

# hicolor's sizes, in pixels.
PNG = (16, 24, 32, 48, 64, 128, 256, 512, 1024)
ICO = (16, 24, 32, 48, 64, 128, 256)

# Each entry is a PNG; a size occurs twice where it is also half a size for dense screens.
ICNS = (
    ("icp4", 16), ("icp5", 32), ("ic11", 32), ("ic12", 64), ("ic07", 128),
    ("ic13", 256), ("ic08", 256), ("ic14", 512), ("ic09", 512), ("ic10", 1024),
)  # fmt: skip

# Of a macOS icon the drawing takes 824 pixels of 1024; the rest is margin.
MAC_SCALE = 824 / 1024


def draw(size: int, to: Path, scale: float = 1.0) -> Path:
    """The drawing as a PNG of `size` pixels, of which the drawing takes `scale` in the middle."""
    inner = round(size * scale / 2) * 2
    margin = (size - inner) // 2
    drawing = HERE / ("thermocline-small.svg" if size <= SMALL else "thermocline.svg")
    page = [f"--page-width={size}", f"--page-height={size}", f"--left={margin}", f"--top={margin}"]
    subprocess.run(["rsvg-convert", f"--width={inner}", f"--height={inner}", *page, f"--output={to}", drawing], check=True)
    return to


def icns(folder: Path) -> bytes:
    """An Apple icon: a header, then (type, length with this header, PNG) for each entry; big-endian."""
    files = {size: draw(size, folder / f"mac-{size}.png", MAC_SCALE).read_bytes() for _, size in ICNS}
    body = b"".join(kind.encode() + struct.pack(">I", 8 + len(files[size])) + files[size] for kind, size in ICNS)
    return b"icns" + struct.pack(">I", 8 + len(body)) + body


def main() -> None:
    (HERE / "png").mkdir(exist_ok=True)
    drawn = {size: draw(size, HERE / f"png/{size}.png") for size in PNG}
    # 256 pixels as a PNG, less as bitmaps, which is what every version of Windows and its tools read.
    bitmaps = [drawn[size] for size in ICO if size < 256]
    ico = ["icotool", "--create", f"--output={HERE / 'thermocline.ico'}", *bitmaps, f"--raw={drawn[256]}"]
    subprocess.run(ico, check=True)
    with tempfile.TemporaryDirectory() as folder:
        (HERE / "thermocline.icns").write_bytes(icns(Path(folder)))
        # The dock of a program that runs without a bundle.
        draw(512, HERE / "png/mac-512.png", MAC_SCALE)


if __name__ == "__main__":
    main()
