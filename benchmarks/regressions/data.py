"""Inputs of the corpus's networks, all made of the digits in benchmarks/models/digits.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_int8acc.tensors import Array, Feed

MODELS = Path(__file__).parents[1] / "models"
#: What colour images are normalized with, channel by channel.
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
#: Side of the canvas that a detector sees, in pixels; a digit takes 8.
CANVAS = 16
#: Digits in a line of text; columns of it are one class each: none, or a digit.
LINE, CLASSES = 4, 11
#: Words: padding, the first one of a text, and one for each look of 2x2 pixels; how many a text has.
VOCABULARY, STEPS = 2 + 3**4, 17
_INK = np.array([0.9, 0.6, 0.2], np.float32)
_PAPER = np.array([0.1, 0.2, 0.45], np.float32)


def pixels(part: str) -> Array:
    """The images of ``calibration`` (128) or ``validation`` (528), uint8 [count, 1, 8, 8] in 0 to 16."""
    with np.load(MODELS / "digits.npz") as data:
        return data[part]


def labels() -> Array:
    """The digit of each validation image, int8 [528]."""
    with np.load(MODELS / "digits.npz") as data:
        return data["labels"]


def gray(images: Array, seed: int = 0) -> Array:
    """float32 [n, 1, 8, 8] in 0 to 1."""
    return images.astype(np.float32) / 16


def rows(images: Array, seed: int = 0) -> Array:
    """Rows of an image as a sequence: float32 [n, 8 columns, 8 steps] in 0 to 1."""
    return images[:, 0].astype(np.float32).transpose(0, 2, 1) / 16


def noisy(images: Array, seed: int = 0) -> Array:
    """Gray images under Gaussian noise of 0.25, float32 [n, 1, 8, 8]."""
    rng = np.random.default_rng([seed, 1])
    return gray(images) + 0.25 * rng.standard_normal(images.shape).astype(np.float32)


def colour(images: Array, seed: int = 0) -> Array:
    """Orange ink on blue paper, each image a little different, normalized: float32 [n, 3, 8, 8]."""
    rng = np.random.default_rng([seed, 2])
    ink, paper = (
        (base + 0.08 * rng.standard_normal((len(images), 3))).astype(np.float32)[..., None, None]
        for base in (_INK, _PAPER)
    )
    return normalized(np.clip(paper + gray(images) * (ink - paper), 0, 1))


def normalized(images: Array) -> Array:
    """Colour images of 0 to 1, less the mean, over the deviation."""
    return (images - MEAN) / STD


def denormalized(images: Array) -> Array:
    """Colour images back in 0 to 1."""
    return images * STD + MEAN


def corners(count: int, seed: int = 0) -> Array:
    """Where ``canvas`` puts the digits: row and column of the upper left pixel, int64 [count, 2]."""
    return np.random.default_rng([seed, 3]).integers(0, CANVAS - 8 + 1, (count, 2))


def canvas(images: Array, seed: int = 0) -> Array:
    """A digit somewhere on paper, normalized: float32 [n, 3, 16, 16]."""
    rng = np.random.default_rng([seed, 2])
    ink = np.zeros((len(images), 1, CANVAS, CANVAS), np.float32)
    for image, place, (y, x) in zip(gray(images), ink, corners(len(images), seed), strict=True):
        place[:, y : y + 8, x : x + 8] = image
    shades = 0.08 * rng.standard_normal((2, len(images), 3, 1, 1))
    paper = _PAPER[:, None, None] + shades[0]
    return normalized(np.clip(paper + ink * (_INK[:, None, None] + shades[1] - paper), 0, 1)).astype(
        np.float32
    )


def lined(count: int, seed: int = 0) -> Array:
    """Which images make each line of text: int64 [count, ``LINE``], the first its own."""
    others = np.random.default_rng([seed, 4]).integers(0, count, (count, LINE - 1))
    return np.concatenate([np.arange(count)[:, None], others], 1)


def line(images: Array, seed: int = 0) -> Array:
    """Digits side by side, float32 [n, 1, 8, 8 * ``LINE``] in 0 to 1."""
    chosen = gray(images)[lined(len(images), seed), 0]
    return chosen.transpose(0, 2, 1, 3).reshape(len(images), 1, 8, 8 * LINE)


def words(images: Array, seed: int = 0) -> Array:
    """2x2 pixels as words, blank ones at the end as padding (0): int64 [n, ``STEPS``]."""
    looks = np.digitize(images[:, 0], (4, 11)).reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4)
    codes = looks.reshape(-1, STEPS - 1, 4) @ 3 ** np.arange(4)
    kept = np.flip(np.cumsum(np.flip(codes, 1), 1), 1) > 0
    return np.concatenate([np.ones((len(codes), 1), np.int64), np.where(kept, codes + 2, 0)], 1)


def begun(images: Array, seed: int = 0) -> Array:
    """Words without the last one, which nothing follows: int64 [n, ``STEPS`` - 1]."""
    return words(images)[:, :-1]


#: Network to what makes its input of digits.
INPUTS = {
    "cnn": gray,
    "resnet": gray,
    "mobilenet": gray,
    "vit": gray,
    "mlp": gray,
    "mixer": gray,
    "tcn": rows,
    "unet": noisy,
    "inception": colour,
    "detector": canvas,
    "encoder": words,
    "decoder": begun,
    "recognizer": line,
    "swin": gray,
    "efficient": colour,
    "convnext": colour,
}
#: Names of inputs other than ``image``.
NAMES = {"encoder": "tokens", "decoder": "tokens"}


def samples(network: str, part: str, count: int) -> Feed:
    """The first ``count`` samples of ``calibration`` or ``validation`` as a feed of the network."""
    seed = {"calibration": 1, "validation": 2}[part]
    name = NAMES.get(network, "image")
    return {name: np.ascontiguousarray(INPUTS[network](pixels(part)[:count], seed))}
