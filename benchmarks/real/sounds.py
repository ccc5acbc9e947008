"""Speech and tones, and what the wheels' own networks make of them. Speech needs espeak-ng."""

from __future__ import annotations

import io
import pydoc_data.topics
import random
import subprocess
import wave
from pathlib import Path

import numpy as np
import onnxruntime
from scipy.signal import resample_poly

from benchmarks.real.stored import Stored
from pytest_int8acc.tensors import Array

RATE = 16000
_LANGUAGES = ("en-us", "en-gb", "en-gb-scotland", "de", "fr-fr", "es", "it")
_VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m7", "f1", "f2", "f3", "f4", "f5", "klatt", "Annie", "Andy")
#: Samples of a clip: two and a half seconds.
_CLIP = RATE * 5 // 2


def session(path: Path) -> onnxruntime.InferenceSession:
    """A session without warnings on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def spoken(text: str, rng: random.Random) -> Array:
    """``text`` in a voice by chance: float32 at 16 kHz, up to 1."""
    voice = f"{rng.choice(_LANGUAGES)}+{rng.choice(_VARIANTS)}"
    pace = ["-s", str(rng.randint(120, 200)), "-p", str(rng.randint(15, 85))]
    command = ["espeak-ng", "--stdout", "-v", voice, *pace, text]
    done = subprocess.run(command, capture_output=True, check=True)
    # espeak-ng writes no length into the header of a stream
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
    heard = np.frombuffer(done.stdout[44:], np.int16) / 32768
    return resample_poly(heard, RATE, rate).astype(np.float32)


def clips(count: int, word: str, seed: int) -> Array:
    """Speech in noise, 2.5 s each: float32 [count, 40000]; four of ten say ``word``, one says nothing."""
    rng, words = random.Random(seed), " ".join(pydoc_data.topics.topics.values()).split()
    noise = np.random.default_rng(seed)
    found = np.zeros((count, _CLIP), np.float32)
    for number, row in enumerate(found):
        start = rng.randrange(len(words) - 8)
        text = word if number % 10 < 4 else " ".join(w for w in words[start : start + 8] if w.isalpha())
        if number % 10 < 9 and text:
            said = spoken(text, rng)[:_CLIP]
            begin = rng.randint(0, max(0, _CLIP - len(said)))
            row[begin : begin + len(said)] = said * rng.uniform(0.2, 1.0) / max(np.abs(said).max(), 1e-3)
        hiss = np.cumsum(noise.standard_normal(_CLIP)) if rng.random() < 0.5 else noise.standard_normal(_CLIP)
        hiss -= np.convolve(hiss, np.ones(200) / 200, "same")
        row += (hiss / hiss.std() * 10 ** rng.uniform(-4, -1.7)).astype(np.float32)
    return np.clip(found, -1, 1)


def _windows(wheels: Path, waves: Array) -> Array:
    """Spectra of openwakeword: float32 [count, 16, 76, 32, 1], each window 80 ms after the one before."""
    spectrum = session(next(wheels.glob("openwakeword-*/**/melspectrogram.onnx")))
    found = list[Array]()
    for row in waves:
        (mel,) = spectrum.run(None, {spectrum.get_inputs()[0].name: row[None] * np.float32(32767)})
        bands = np.asarray(mel).squeeze() / 10 + 2
        found.append(np.stack([bands[8 * i : 8 * i + 76] for i in range(16)])[..., None])
    return np.array(found, np.float32)


def spectra(wheels: Path, count: int) -> dict[str, Stored]:
    """One window of a spectrum from each clip: float16 [count, 76, 32, 1]."""
    windows = _windows(wheels, clips(count, "hey jarvis", 11))
    chosen = np.random.default_rng(11).integers(0, 16, count)
    return {"input_1": Stored(windows[np.arange(count), chosen].astype(np.float16))}


def wake_words(wheels: Path, count: int) -> dict[str, Stored]:
    """The last 16 embeddings of clips that say 'hey jarvis' or something else: float16 [count, 16, 96]."""
    embedding = session(next(wheels.glob("openwakeword-*/**/embedding_model.onnx")))
    name, found = embedding.get_inputs()[0].name, list[Array]()
    for windows in _windows(wheels, clips(count, "hey jarvis", 12)):
        (rows,) = embedding.run(None, {name: windows})
        found.append(np.asarray(rows).reshape(16, 96))
    return {"x.1": Stored(np.array(found, np.float16))}


def frames(wheels: Path, count: int) -> dict[str, Stored]:
    """Frames of silero-vad by chance, and the state before each: int16 [n, 576], float16 [n, 2, 128].

    A frame has 512 samples after the last 64 of the frame before it.
    """
    network = session(next(wheels.glob("silero_vad-*/**/silero_vad_openvino_16k.onnx")))
    rng, inputs, states = np.random.default_rng(13), list[Array](), list[Array]()
    for row in clips(-(-count // 8), "this is a sentence", 13):
        state = np.zeros((2, 1, 128), np.float32)
        chosen = set(rng.choice(np.arange(2, _CLIP // 512 - 1), 8, replace=False).tolist())
        for number in range(1, _CLIP // 512 - 1):
            frame = row[512 * number - 64 : 512 * number + 512]
            frame = np.round(frame * 32767) / np.float32(32767)
            if number in chosen:
                inputs.append(np.int16(np.round(frame * 32767)))
                states.append(state[:, 0].astype(np.float16))
            _, state = network.run(None, {"input": frame[None].astype(np.float32), "state": state})
    return {
        "input": Stored(np.array(inputs)[:count], 1 / 32767),
        "state": Stored(np.array(states)[:count]),
    }


def tones(_: Path, count: int) -> dict[str, Stored]:
    """A quarter of a second of speech, or of a note of an instrument: int16 [count, 4096]."""
    rng, noise = random.Random(14), np.random.default_rng(14)
    said, found = clips(-(-count // 2), "la la la la la la", 14), list[Array]()
    for number in range(count):
        if number % 2:
            row = said[number // 2]
            loud = np.convolve(row**2, np.ones(4096), "valid")
            start = int(np.argmax(loud)) if rng.random() < 0.8 else rng.randrange(len(loud))
            found.append(row[start : start + 4096])
        else:
            found.append(_note(rng, noise))
    return {"audio": Stored(np.int16(np.round(np.array(found) * 32767)), 1 / 32767)}


def _note(rng: random.Random, noise: np.random.Generator) -> Array:
    """Up to twelve overtones with vibrato that fade, in noise."""
    time = np.arange(4096) / RATE
    pitch, fall = 2 ** rng.uniform(np.log2(60), np.log2(1500)), rng.uniform(0.6, 2)
    bent = time + 0.001 * rng.random() * np.sin(2 * np.pi * rng.uniform(3, 7) * time)
    parts = (np.sin(2 * np.pi * pitch * k * bent + rng.uniform(0, 6)) / k**fall for k in range(1, 13))
    sound = np.sum(list(parts), 0) * np.exp(-time * rng.uniform(0, 8))
    loud = sound / np.abs(sound).max() * rng.uniform(0.1, 0.9)
    return np.clip(loud + 10 ** rng.uniform(-4, -2) * noise.standard_normal(4096), -1, 1)
