"""The templates of specs, as files, and the blocks that loader scripts are assembled from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template


def render(name: str, values: Mapping[str, str | None]) -> str:
    """Return the template file ``<name>.template`` with values in place of ``$placeholders``.

    A line with a placeholder that has no value, or the value None, is left out. A line may therefore begin
    with a placeholder whose value is empty and which only decides whether the line is written.
    """
    text = Path(__file__).with_name(f"{name}.template").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"\$\{?(\w+)", line)
        if all(values.get(name) is not None for name in names):
            lines.append(Template(line).substitute(values))
    return "".join(lines)


RANDOM = '''\
"""Inputs for a first run, made up. TODO: load real data instead."""

import warnings

import numpy as np

# Input: its shape in one run, its dtype, its least and its greatest value.
# {how}
INPUTS = {{
{inputs}
}}
RUNS = {runs}


def load_data():
    """Yields a dict of input name to array for each run; the same on each call."""
    warnings.warn("the inputs are made up, so the verdict says nothing about real data", stacklevel=1)
    rng = np.random.default_rng(0)
    for _ in range(RUNS):
        yield {{name: draw(rng, *told) for name, told in INPUTS.items()}}
'''

DRAW = '''

def draw(rng, shape, dtype, low, high):
    """Values from low to high, evenly spread."""
    if np.dtype(dtype).kind == "f":
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
    return np.asarray(rng.integers(low, high, shape, endpoint=True)).astype(dtype)
'''

HEAD = '''\
"""The model's inputs, from data of yours. Each TODO marks a guess."""

{imports}from pathlib import Path

import numpy as np
{libraries}
PLACE = Path(__file__).parent / {place!r}
# At most so many are compared, and so many others calibrated on.
COMPARED, CALIBRATED = {compared}, {calibrated}
'''

PILLOW = """
try:
    from PIL import Image
except ModuleNotFoundError:
    raise ModuleNotFoundError("images are read with Pillow: pip install pillow") from None
"""

SOUNDFILE = """
try:
    import soundfile
except ModuleNotFoundError:
    raise ModuleNotFoundError("audio is read with soundfile: pip install soundfile") from None
"""

FILES = """\
SUFFIXES = {suffixes!r}
INPUT = {name!r}
"""

IMAGE_SIZE = """\
# {how}
MODE, HEIGHT, WIDTH = {mode!r}, {height}, {width}
"""

WAVE_SIZE = """\
# TODO: the rate that the model was trained at; {found}
RATE = {rate}
# {how}
LENGTH = {length}
"""

OTHERS = """\
# The other inputs. TODO: made up; their shape in one run, their dtype, their least and their greatest value.
# {how}
OTHERS = {{
{inputs}
}}
"""

BODY = '''

def load_data():
    """Yields a dict of input name to array for each run; the same on each call."""
    for item in compared():
        yield feed(item)


def load_calibration():
    """As load_data, of which it takes nothing."""
    for item in some(items()[1::2], CALIBRATED):
        yield feed(item)


def compared():
    return some(items()[::2], COMPARED)


def some(found, most):
    """At most so many of them, evenly spread."""
    return found[:: max(1, -(-len(found) // most))]
'''

MADE_UP = '''

def made_up():
    """The other inputs, the same for each run."""
    rng = np.random.default_rng(0)
    return {name: draw(rng, *told) for name, told in OTHERS.items()}
'''

FILE_ITEMS = '''

def items():
    """The files, in order."""
    return sorted(path for path in PLACE.rglob("*") if path.suffix.lower() in SUFFIXES)


def feed(path):
    return {{INPUT: read(path)}}{others}
'''

READ_IMAGE = '''

def read(path):
    """One image as the model takes it."""
    # It takes {taken}
    with Image.open(path) as image:
        image = image.convert(MODE).resize((WIDTH, HEIGHT))  # TODO: cut or padded as the model was trained
    pixels = np.asarray(image).reshape(HEIGHT, WIDTH, {channels}){scale}
{mean}{moved}    return pixels.astype({dtype!r}){rows}
'''

MEAN = """\
    # pixels = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]  # as torchvision's models are trained
"""

READ_WAVE = '''

def read(path):
    """The beginning of one recording as the model takes it."""
    # It takes {taken}
    samples, rate = decode(path)
    if rate != RATE:  # TODO: a resampler of yours; this one has no filter
        samples = np.interp(np.arange(0, len(samples), rate / RATE), np.arange(len(samples)), samples)
    samples = np.pad(samples[:LENGTH], (0, max(0, LENGTH - len(samples))))
    return samples.reshape({shape}).astype({dtype!r})
'''

READ_FEATURES = '''

def read(path):
    """One recording as the model takes it."""
    samples, rate = decode(path)
    raise NotImplementedError("TODO: make of the samples what the model takes: " {taken!r})
'''

DECODE_WAV = '''

def decode(path):
    """Samples from -1 to 1, the mean of all channels, and how many there are in a second."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path.name} is not of 16 bits: read it with soundfile (pip install soundfile)")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return samples.reshape(-1, file.getnchannels()).mean(axis=1) / 32768, file.getframerate()
'''

DECODE = '''

def decode(path):
    """Samples from -1 to 1, the mean of all channels, and how many there are in a second."""
    samples, rate = soundfile.read(path, always_2d=True)
    return samples.mean(axis=1), rate
'''

STORED = """\
# As they are stored they do not fit: {problem}
# TODO: the stored array of each input.
ARRAYS = {{{matched}}}
STORED = {stored}
"""

STORED_ITEMS = '''

def items():
    """The stored samples, by number."""
    return range(min(len(STORED[array]) for array in ARRAYS.values()))


def feed(number):
    return {{name: prepare(name, STORED[array][number]) for name, array in ARRAYS.items()}}{others}
'''

PREPARE = '''

def prepare(name, sample):
    """One stored sample as the model takes it. TODO: all that is done here is a guess."""
{blocks}
'''

LABELS = '''

def load_labels():
    """The class of each sample that load_data gives, by number."""
    return np.array([{one} for item in compared()])
'''

TOP1 = '''

def top1(outputs, labels):
    """The share of samples whose greatest output is at the label's place."""
    return float(np.mean(outputs[{output!r}].argmax(axis=-1) == labels))
'''

#: What labels by number come from.
FOLDERS = """\
# TODO: the model's numbers of the classes; here the folders in order, as torchvision's ImageFolder has it.
CLASSES = sorted(path.name for path in PLACE.iterdir() if path.is_dir())
"""
LINES = """\
# TODO: the model's numbers of the classes; here their lines, from 0.
CLASSES = [line.strip() for line in (Path(__file__).parent / {file!r}).open(encoding="utf-8") if line.strip()]
"""
TEXT = """\
# TODO: the label of each file; here the last word of its line.
LINES = (Path(__file__).parent / {file!r}).read_text(encoding="utf-8").splitlines()
LISTED = dict(line.rsplit(maxsplit=1) for line in LINES if line.strip())
"""
JSON = """\
# TODO: the label of each file.
LISTED = json.loads((Path(__file__).parent / {file!r}).read_text(encoding="utf-8"))
"""
NAMED = """\
# TODO: the model's numbers of the classes; here their names in order.
CLASSES = sorted(set(LISTED.values()))
"""
