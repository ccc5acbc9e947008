"""Inputs like those that the models were made for: rendered text, files, sounds."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.regressions import data
from pytest_int8acc.tensors import Array

#: Samples to judge on, and as many to calibrate with.
COUNT = 48
#: Bytes that magika takes from a file's beginning and from its end, and what stands for no byte.
_ENDS, _NONE = 1024, 256
_RATE = 16000


def text_lines(_: Path) -> Array:
    """Lines of four digits on grey paper, every second one upside down: float32 [96, 3, 48, 192], -1 to 1."""
    rng = np.random.default_rng(0)
    lines = data.line(data.pixels("validation"), 2)[: 2 * COUNT]
    large = np.kron(lines, np.ones((6, 6), np.float32))[:, :, :48, :192]
    large = np.where(np.arange(2 * COUNT)[:, None, None, None] % 2, large[:, :, ::-1, ::-1], large)
    grey = (1 - large) * (0.6 + 0.4 * rng.random((2 * COUNT, 1, 1, 1)))
    grey = np.clip(grey + 0.03 * rng.standard_normal(large.shape), 0, 1)
    return ((np.repeat(grey, 3, 1) - 0.5) / 0.5).astype(np.float32)


def files(_: Path, count: int = 2 * COUNT) -> Array:
    """First and last bytes of files of Python's own library: int32 [count, 2048]."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in root.rglob("*.*") if "site-packages" not in p.parts and p.is_file())
    random.Random(0).shuffle(paths)
    contents = (path.read_bytes() for path in paths if path.stat().st_size > 64)
    rows = np.full((count, 2 * _ENDS), _NONE, np.int32)
    for row, content in zip(rows, contents, strict=False):
        head, tail = content[:_ENDS].lstrip(), content[-_ENDS:].rstrip()
        row[: len(head)] = np.frombuffer(head, np.uint8)
        row[2 * _ENDS - len(tail) :] = np.frombuffer(tail, np.uint8)
    return rows


def sounds(model: Path) -> Array:
    """Features of voice-like sounds by the wheel's own networks: float32 [n, 16, 96]."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    spectrum, embedding = (
        onnxruntime.InferenceSession(model.with_name(f"{name}.onnx"), options)
        for name in ("melspectrogram", "embedding_model")
    )
    rng, found = np.random.default_rng(0), list[Array]()
    for _ in range(2 * COUNT):
        wave = _voice(rng)[None]
        (mel,) = spectrum.run(None, {spectrum.get_inputs()[0].name: wave})
        bands = np.asarray(mel).squeeze() / 10 + 2
        windows = np.stack([bands[i : i + 76] for i in range(0, len(bands) - 76, 8)])[..., None]
        name = embedding.get_inputs()[0].name
        rows = [embedding.run(None, {name: window[None].astype(np.float32)})[0] for window in windows[:16]]
        found.append(np.concatenate([np.asarray(row).reshape(1, 96) for row in rows]))
    return np.array(found, np.float32)


def _voice(rng: np.random.Generator) -> Array:
    """Two and a half seconds of five overtones that swell and tremble, in noise; float32 at 16 kHz."""
    time = np.arange(_RATE * 5 // 2) / _RATE
    pitch, tremble, swell = rng.uniform(80, 1200), rng.uniform(1, 6), rng.uniform(1, 4)
    bent = time * (1 + 0.1 * np.sin(2 * np.pi * tremble * time))
    wave = sum(np.sin(2 * np.pi * pitch * k * bent) / k for k in range(1, 6))
    wave = wave * np.abs(np.sin(2 * np.pi * swell * time))
    loud = wave / np.abs(wave).max() * rng.uniform(2000, 20000)
    return (loud + 200 * rng.standard_normal(len(time))).astype(np.float32)


#: Model file to what makes its inputs.
SAMPLES: Mapping[str, Callable[[Path], Array]] = {
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": text_lines,
    "model.onnx": files,
    "hey_jarvis_v0.1.onnx": sounds,
    "hey_mycroft_v0.1.onnx": sounds,
}
