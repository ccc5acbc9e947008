"""Text as images for the networks of rapidocr; run in an environment with numpy and pillow.

    python -m benchmarks.cost.render FOLDER

writes rec.npz (24 lines of 48x320), cls.npz (48 lines of 48x192, every second upside down) and det.npz (10
pages of 480x640), each ``x`` in float32 [N, 3, height, width], scaled from -1 to 1 as rapidocr does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
_LETTERS = list("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789   ")


def text(rng: np.random.Generator, length: int) -> str:
    """Random letters, digits and spaces."""
    return "".join(rng.choice(_LETTERS, length))


def line(rng: np.random.Generator, width: int) -> Pixels:
    """One line of dark text on a light ground, 48 pixels high."""
    image = Image.new("RGB", (width, 48), tuple(rng.integers(180, 256, 3).tolist()))
    font = ImageFont.load_default(size=int(rng.integers(22, 36)))
    ink = tuple(rng.integers(0, 90, 3).tolist())
    ImageDraw.Draw(image).text((6, int(rng.integers(2, 10))), text(rng, width // 14), ink, font)
    return _noisy(rng, image)


def page(rng: np.random.Generator) -> Pixels:
    """Lines of several sizes on 480x640."""
    image = Image.new("RGB", (640, 480), tuple(rng.integers(180, 256, 3).tolist()))
    draw, y = ImageDraw.Draw(image), int(rng.integers(10, 40))
    while y < 430:
        size = int(rng.integers(16, 44))
        corner = (int(rng.integers(5, 120)), y)
        draw.text(
            corner, text(rng, int(rng.integers(6, 24))), (20, 20, 40), ImageFont.load_default(size=size)
        )
        y += int(size * rng.uniform(1.3, 2.5))
    return _noisy(rng, image)


def _noisy(rng: np.random.Generator, image: Image.Image) -> Pixels:
    noise = rng.normal(0, 6, (image.height, image.width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)


def feed(images: list[Pixels]) -> NDArray[np.float32]:
    """Images as the networks take them."""
    return (np.stack(images).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


def main() -> None:
    """Render and write."""
    folder, rng = Path(sys.argv[1]), np.random.default_rng(0)
    turned = [line(rng, 192)[:: (-1) ** i, :: (-1) ** i] for i in range(48)]
    np.savez(folder / "rec.npz", x=feed([line(rng, 320) for _ in range(24)]))
    np.savez(folder / "cls.npz", x=feed(turned))
    np.savez(folder / "det.npz", x=feed([page(rng) for _ in range(10)]))


if __name__ == "__main__":
    main()
