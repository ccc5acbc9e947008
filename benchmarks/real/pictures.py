"""Pictures such as the models were made for: rendered text, captchas, faces. They need Pillow and fonts.

The fonts are those of Debian's packages fonts-dejavu-core, fonts-liberation and fonts-noto-cjk.
"""

from __future__ import annotations

import io
import pydoc_data.topics
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.real.stored import Stored
from pytest_int8acc.tensors import Array

_FONTS = Path("/usr/share/fonts")
#: What documents are normalized with, channel by channel.
_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
#: First bytes of the common Chinese characters in GB 2312.
_COMMON = range(0xB0, 0xD8)

Picture = Image.Image


class Writer:
    """Draws text in fonts, sizes and greys by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        latin = [*_FONTS.glob("truetype/dejavu/*.ttf"), *_FONTS.glob("truetype/liberation/*.ttf")]
        self.latin = sorted(path for path in latin if "Math" not in path.name)
        self._chinese = sorted(_FONTS.glob("opentype/noto/*CJK*.ttc"))
        self._words = " ".join(pydoc_data.topics.topics.values()).split()

    def text(self, length: int) -> tuple[str, bool]:
        """At least ``length`` characters of Python's manual, of digits or of Chinese; whether Chinese."""
        kind = self.random.random()
        if kind < 0.3:
            return "".join(self._character() for _ in range(length // 2)), True
        if kind < 0.5:
            return "".join(self.random.choice("0123456789-./:, ") for _ in range(length)), False
        start = self.random.randrange(len(self._words) - length)
        return " ".join(self._words[start : start + length])[: length + 4], False

    def _character(self) -> str:
        code = bytes([self.random.choice(_COMMON), self.random.randrange(0xA1, 0xFA)])
        return code.decode("gb2312")

    def line(self, picture: Picture, place: tuple[int, int], size: int, length: int, ink: int) -> None:
        """Write one line of text."""
        text, chinese = self.text(length)
        font = ImageFont.truetype(str(self.random.choice(self._chinese if chinese else self.latin)), size)
        ImageDraw.Draw(picture).text(place, text, fill=ink, font=font)

    def greys(self) -> tuple[int, int]:
        """Paper and ink; in one of five pictures the ink is lighter."""
        pair = self.random.randint(170, 255), self.random.randint(0, 110)
        return pair if self.random.random() < 0.8 else (pair[1], pair[0])

    def taken(self, picture: Picture, angle: float) -> Array:
        """The picture as a camera gives it: turned, blurred, compressed; uint8 [1, height, width]."""
        corner = picture.getpixel((0, 0))
        turned = picture.rotate(
            self.random.uniform(-angle, angle), Image.Resampling.BILINEAR, fillcolor=corner
        )
        blurred = turned.filter(ImageFilter.GaussianBlur(self.random.uniform(0, 1)))
        file = io.BytesIO()
        blurred.save(file, "JPEG", quality=self.random.randint(40, 95))
        return np.asarray(Image.open(file), np.uint8)[None]


def lines(count: int, width: int, turned: bool) -> Array:
    """Lines of text of height 48, every second one upside down if ``turned``: uint8 [count, 1, 48, width]."""
    writer, found = Writer(1 + turned), list[Array]()
    for number in range(count):
        paper, ink = writer.greys()
        picture = Image.new("L", (width, 48), paper)
        size = writer.random.randint(22, 34)
        place = (writer.random.randint(2, 12), writer.random.randint(0, 44 - size))
        writer.line(picture, place, size, width // 8, ink)
        taken = writer.taken(picture, 2)
        found.append(taken[:, ::-1, ::-1] if turned and number % 2 else taken)
    return np.stack(found)


def pages(count: int, side: int, turned: bool) -> Array:
    """Pages of text, turned by a quarter of a turn each if ``turned``: uint8 [count, 1, side, side]."""
    writer, found = Writer(3 + turned), list[Array]()
    for number in range(count):
        paper, ink = writer.greys()
        picture = Image.new("L", (side, side), paper)
        top = writer.random.randint(2, 20)
        while top < side - 12:
            size = writer.random.randint(10, 28)
            if writer.random.random() < 0.8:
                place = (writer.random.randint(2, side // 3), top)
                writer.line(picture, place, size, writer.random.randint(2, side // 8), ink)
            top += size + writer.random.randint(4, 24)
        taken = writer.taken(picture, 4)
        found.append(np.rot90(taken, number % 4 if turned else 0, (1, 2)))
    return np.stack(found)


def symmetric(pixels: Array) -> Stored:
    """Three equal channels in -1 to 1."""
    return Stored(pixels, np.full((3, 1, 1), 2 / 255), -1.0)


def standardized(pixels: Array) -> Stored:
    """Three equal channels with the mean and deviation of ImageNet."""
    return Stored(pixels, 1 / 255 / _STD, -_MEAN / _STD)


def captchas(count: int) -> Stored:
    """Five coloured digits, turned, and lines across: uint8 [count, 50, 155, 3]."""
    writer, found = Writer(5), list[Array]()
    for _ in range(count):
        picture = Image.new("RGB", (155, 50), _colour(writer, 200, 255))
        for place in range(5):
            digit = Image.new("L", (40, 48))
            font = ImageFont.truetype(str(writer.random.choice(writer.latin)), writer.random.randint(28, 38))
            ImageDraw.Draw(digit).text((8, 2), str(writer.random.randrange(10)), fill=255, font=font)
            digit = digit.rotate(writer.random.uniform(-20, 20), Image.Resampling.BILINEAR)
            left = 29 * place + writer.random.randint(-3, 3)
            picture.paste(_colour(writer, 0, 140), (left, writer.random.randint(-2, 4)), digit)
        for _ in range(writer.random.randint(1, 4)):
            ends = [(writer.random.randrange(155), writer.random.randrange(50)) for _ in range(2)]
            ImageDraw.Draw(picture).line(ends, fill=_colour(writer, 60, 200), width=1)
        found.append(np.asarray(picture, np.uint8))
    return Stored(np.stack(found), 1 / 255)


def _colour(writer: Writer, low: int, high: int) -> tuple[int, ...]:
    return tuple(writer.random.randint(low, high) for _ in range(3))


def faces(wheels: Path, count: int, side: int) -> Stored:
    """Windows of 100 faces and 100 other pictures, cropped by chance: uint8 [count, 1, side, side]."""
    (path,) = wheels.glob("scikit_image-*/skimage/data/lfw_subset.npy")
    images, rng = np.load(path), random.Random(side)
    order = [number for _ in range(-(-count // len(images))) for number in rng.sample(range(200), 200)]
    found = list[Array]()
    for number in order[:count]:
        edge = rng.uniform(0, 4)
        left, top = rng.uniform(0, edge), rng.uniform(0, edge)
        box = (left, top, left + 25 - edge, top + 25 - edge)
        picture = Image.fromarray(np.uint8(images[number] * rng.uniform(150, 255)))
        sized = picture.resize((side, side), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(sized, np.uint8)[None]
        found.append(pixels[:, :, ::-1] if rng.random() < 0.5 else pixels)
    return Stored(np.stack(found), np.full((3, 1, 1), 1 / 128), -127.5 / 128)
