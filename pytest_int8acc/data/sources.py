"""Where feeds and labels come from: arrays, folders, loader scripts, Polygraphy's JSON, random numbers."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.data.files import natural, read_npy
from pytest_int8acc.data.layout import Layout, check_equal, check_names, inspect, kind
from pytest_int8acc.data.scripts import iterate_user, load_function, looking_at, run_user
from pytest_int8acc.errors import DataError
from pytest_int8acc.files import readable
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe

#: A description of the place of a feed, for messages, and the feed.
Located = tuple[str, Feed]
_ADVICE = "save inputs with: polygraphy run model.onnx --onnxrt --save-inputs inputs.json"
_OUTPUTS = ("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray")


@dataclass(frozen=True)
class RandomSource:
    """Seeded random inputs: ``samples`` rows (at least 1) from ``seed`` (at least 0)."""

    samples: int
    seed: int = 0


@dataclass(frozen=True)
class Source:
    """Raw feeds that can be read again and again."""

    read: Callable[[], Iterator[Located]]
    """Returns an iterator over one pass, which reads lazily."""
    samples: int | None = None
    """Count of samples in a pass; None where the data must be read to know it."""
    joins: bool = False
    """Whether rows are stored samples that may share a run; otherwise each feed is a run of its own."""
    is_random: bool = False
    endless: bool = False
    """Whether a pass may never end."""
    notes: tuple[str, ...] = ()


def array_source(arrays: Mapping[str, Array], layout: Layout, size: int, where: str) -> Source:
    """Feeds of ``size`` rows, sliced from ``arrays`` as needed; names, dtypes and sizes are checked now.

    There is one array per model input, at the model's rank with samples first, or with one axis more for
    feeds. Raises DataError, naming ``where``, for arrays that do not fit the model.
    """
    check_names(arrays, layout.inputs, where)
    feed = dict(arrays)
    stacked = stacked_names(feed, layout, where)
    if not stacked:
        inspect(feed, layout, where)
        rows = layout.rows(feed)
    else:
        rows = _check_stack(feed, stacked, layout, where)
    notes = tuple(
        f"{where}: '{name}' has no sample axis, so the same values go into each run"
        for name in feed
        if name not in layout.batched and name not in stacked
    )
    return Source(lambda: slices(feed, stacked, layout, size, where), rows, joins=not stacked, notes=notes)


def stacked_names(feed: Feed, layout: Layout, where: str) -> frozenset[str]:
    """Names of the arrays that hold whole feeds along axis 0; empty where samples come first.

    Raises DataError where the model has no batch axis, so samples cannot come first, but none holds feeds.
    """
    over = frozenset(
        t.name for t in layout.inputs if t.shape is not None and feed[t.name].ndim == len(t.shape) + 1
    )
    if over and layout.batched <= over:
        return over
    if not layout.batched:
        raise DataError(
            f"{where}: the model's inputs share no batch axis ({describe(layout.inputs)}), so samples "
            f"cannot be cut from arrays; give whole feeds, with one more axis in front: np.stack(feeds)"
        )
    return frozenset()


def slices(feed: Feed, stacked: frozenset[str], layout: Layout, size: int, where: str) -> Iterator[Located]:
    """Yield the feeds in arrays: one per index of the ``stacked`` arrays, or slices of ``size`` rows."""
    if stacked:
        for index in range(min(len(feed[name]) for name in stacked)):
            yield where, _pick(feed, stacked, index)
    else:
        for start in range(0, layout.rows(feed), size):
            yield where, layout.cut(feed, start, start + size)


def _pick(feed: Feed, stacked: frozenset[str], index: int) -> Feed:
    return {name: a[index, ...] if name in stacked else a for name, a in feed.items()}


def _check_stack(feed: Feed, stacked: frozenset[str], layout: Layout, where: str) -> int:
    """Return the count of samples in whole feeds; raises DataError unless the feeds fit the inputs."""
    counts = {f"'{name}'": len(feed[name]) for name in sorted(stacked)}
    check_equal(counts, f"{where}: numbers of feeds differ", "axis 0 of each must hold the same feeds")
    count = next(iter(counts.values()))
    if not count:
        raise DataError(f"{where}: is empty; give at least one feed")
    first = _pick(feed, stacked, 0)
    inspect(first, layout, where)
    return count * layout.rows(first)


def folder_source(folder: Path, layout: Layout, size: int, where: str) -> Source:
    """One of four forms, told apart by what lies in ``folder``; files are taken in natural order.

    ``<input>.npy`` for each input, samples first; many .npy files, each a sample or a batch of the one input;
    a folder of such files for each input, the n-th files together a feed; or Polygraphy's ``<index>.json``.
    Raises DataError for a folder that is empty or none of these, or whose files do not fit the model.
    """
    files = sorted(folder.glob("*.npy"), key=natural)
    names = [t.name for t in layout.inputs]
    if any(file.stem in names for file in files) or (files and len(names) > 1):
        arrays = {file.stem: read_npy(file, f"{where}/{file.name}") for file in files}
        return array_source(arrays, layout, size, where)
    if files:
        return _many({names[0]: files}, layout, size, where)
    documents = sorted(folder.glob("*.json"), key=natural)
    if documents:
        return Source(lambda: (f for file in documents for f in read_feeds(file, f"{where}/{file.name}")))
    folders = {sub.name: sorted(sub.glob("*.npy"), key=natural) for sub in folder.iterdir() if sub.is_dir()}
    found = {name: paths for name, paths in folders.items() if paths}
    if not found:
        raise DataError(
            f"{where}: no .npy files in this folder; expected {names[0]}.npy with samples first, "
            f"one file per sample, or a folder {names[0]}/ of such files"
        )
    check_names(found, layout.inputs, where)
    return _many(found, layout, size, where)


def _many(files: dict[str, list[Path]], layout: Layout, size: int, where: str) -> Source:
    """Return a source that joins the n-th file of each input: a sample, a batch, or a stack of feeds."""
    counts = {f"{name}/": len(files[name]) for name in sorted(files)}
    check_equal(counts, f"{where}: numbers of files differ", "each input needs one file per sample")
    return Source(lambda: _read_many(files, layout, size, where), joins=bool(layout.batched))


def _read_many(files: dict[str, list[Path]], layout: Layout, size: int, where: str) -> Iterator[Located]:
    several = len(files) > 1
    for paths in zip(*files.values(), strict=True):
        shown = [f"{p.parent.name}/{p.name}" if several else p.name for p in paths]
        here = f"{where}/{shown[0]}" + "".join(f" with {name}" for name in shown[1:])
        arrays = {name: read_npy(path, here) for name, path in zip(files, paths, strict=True)}
        feed = _with_axis(arrays, layout)
        yield from slices(feed, stacked_names(feed, layout, here), layout, size, here)


def _with_axis(arrays: dict[str, Array], layout: Layout) -> dict[str, Array]:
    """Return ``arrays`` with a new axis 0, if the file holds one sample without a batch axis or one feed."""
    ranks = {t.name: len(t.shape) for t in layout.inputs if t.shape is not None}
    if layout.batched:
        return {
            name: a[None] if name in layout.batched and a.ndim == ranks.get(name, 0) - 1 else a
            for name, a in arrays.items()
        }
    if all(a.ndim == ranks.get(name) for name, a in arrays.items()):
        return {name: a[None] for name, a in arrays.items()}
    return arrays


def read_feeds(path: Path, where: str) -> Iterator[Located]:
    """The feeds of one file of ``polygraphy run --save-inputs``, which is read whole.

    The format is that of polygraphy.json 0.53: a list of ``{input: array}``, or one of them; an array is
    ``{"array": base64 of a .npy file, "polygraphy_class": "ndarray"}``. It is decoded here, not by
    ``polygraphy.json.load_json``, which decodes whatever class a file names, also torch tensors.
    Raises DataError for a file that is not JSON, or not of feed dicts of NumPy arrays.
    """
    data = _parse(path, where)
    for index, feed in enumerate(data if isinstance(data, list) else [data]):
        here = f"{where}: feed {index}"
        yield here, _check_feed(feed, here)


def _parse(path: Path, where: str) -> Any:
    def decode(pairs: list[tuple[str, Any]]) -> Any:
        return _decode(dict(pairs), where)

    try:
        text = readable(path).read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=decode)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.lineno}:{error.colno}: not JSON: {error.msg}; {_ADVICE}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: not JSON that Polygraphy writes ({error}); {_ADVICE}") from error
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror}") from error


def _decode(value: dict[str, Any], where: str) -> Any:
    """Return the array that the dict encodes; the dict itself where it names no class."""
    kind = value.get("polygraphy_class")
    if not isinstance(kind, str):
        return value
    if kind in _OUTPUTS:
        raise DataError(f"{where}: holds the outputs of a run (--save-outputs), not inputs; {_ADVICE}")
    if kind == "Tensor":
        raise DataError(f"{where}: holds torch tensors; save NumPy arrays instead: tensor.numpy()")
    if kind != "ndarray":
        raise DataError(f"{where}: holds a '{kind}', expected NumPy arrays; {_ADVICE}")
    try:
        packed = io.BytesIO(base64.b64decode(value["array"], validate=True))
        array = np.load(packed, allow_pickle=False)
    except (KeyError, TypeError, binascii.Error, ValueError, EOFError, OSError, MemoryError) as error:
        raise DataError(f"{where}: an array is damaged or pickled; {_ADVICE}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where}: an array is in a form of old Polygraphy releases; {_ADVICE}")
    return array


def _check_feed(feed: Any, here: str) -> Feed:
    if not isinstance(feed, dict):
        raise DataError(
            f"{here} is of type {type(feed).__name__}, expected a dict of input name to array; {_ADVICE}"
        )
    for name, array in feed.items():
        if not isinstance(array, np.ndarray):
            raise DataError(
                f"{here}: '{name}' is of type {type(array).__name__}, expected an encoded array; {_ADVICE}"
            )
    arrays: dict[str, Array] = feed
    return arrays


def loader_source(ref: str, base: Path, what: str) -> Source:
    """The feeds of ``file.py:function``; the script is run afresh for each pass, the first time here.

    Its function yields feed dicts, as for Polygraphy. Raises DataError where it cannot be loaded.
    """
    load_function(ref, base)

    def feeds() -> Iterator[Located]:
        for index, item in enumerate(iterate_user(ref, load_function(ref, base))):
            here = f"{what}: {ref}: feed {index}"
            with looking_at(ref):
                feed = _to_feed(item, here, ref)
            yield here, feed

    return Source(feeds, endless=True)


def _to_feed(item: Any, here: str, ref: str) -> Feed:
    """Return a copy of a loader's feed, because a loader may reuse its buffers for the next feed."""
    if not isinstance(item, Mapping):
        raise DataError(f"{here} is of type {type(item).__name__}, expected a dict of input name to array")
    feed: Feed = {}
    for name, value in list(item.items()):
        if not isinstance(name, str):
            raise DataError(f"{here} has the key {name!r}, expected the name of an input")
        try:
            feed[name] = run_user(ref, np.array, value)
        except DataError as error:
            raise DataError(
                f"{here}: '{name}' of type {type(value).__name__} cannot become a NumPy array "
                f"({error}); yield NumPy arrays"
            ) from error
    return feed


def random_source(random: RandomSource, layout: Layout, size: int, where: str) -> Source:
    """Floats uniform in [0, 1], integers and booleans 0 or 1: the ranges of Polygraphy's data loader.

    A sample's values depend on the seed, the input's position and the sample's index, not on ``size``. Raises
    DataError where the model does not fix a size beyond the batch axis, or a dtype cannot be drawn.
    """
    if random.samples < 1 or random.seed < 0:
        raise DataError(f"{where}: expected samples of at least 1 and a seed of at least 0")
    for tensor in layout.inputs:
        _check(tensor, layout, where)
    note = f"{where}: the data are random, so the verdict says nothing about real data"
    return Source(
        lambda: _draw(random, layout, size, where), random.samples, joins=True, is_random=True, notes=(note,)
    )


def _check(tensor: TensorInfo, layout: Layout, where: str) -> None:
    if tensor.shape is None:
        raise DataError(f"{where}: the shape of '{tensor.name}' is unknown; give real data")
    if kind(tensor.dtype) == "other":
        raise DataError(f"{where}: cannot draw {tensor.dtype} for '{tensor.name}'; give real data")
    for axis, dim in enumerate(tensor.shape):
        if not isinstance(dim, int) and not (axis == 0 and tensor.name in layout.batched):
            named = f"'{dim}' " if dim else ""
            raise DataError(
                f"{where}: dimension {named}(axis {axis}) of '{tensor.name}' has no fixed size "
                f"(the model takes {tensor}); give real data"
            )


def _draw(random: RandomSource, layout: Layout, size: int, where: str) -> Iterator[Located]:
    """Yield feeds of ``size`` rows; other inputs are drawn once, or per feed where none is batched."""
    streams = {t.name: np.random.default_rng([random.seed, i]) for i, t in enumerate(layout.inputs)}
    step = size if layout.batched else 1
    feed: Feed = {}
    for start in range(0, random.samples, step):
        rows = min(step, random.samples - start)
        for tensor in layout.inputs:
            if tensor.name in layout.batched or not layout.batched or not start:
                feed[tensor.name] = _values(tensor, rows, tensor.name in layout.batched, streams[tensor.name])
        yield where, dict(feed)


def _values(tensor: TensorInfo, rows: int, batched: bool, stream: np.random.Generator) -> Array:
    dims = tuple(dim for dim in (tensor.shape or ())[batched:] if isinstance(dim, int))
    values = np.asarray(stream.random((rows, *dims) if batched else dims))
    return np.asarray(values if kind(tensor.dtype) == "float" else values >= 0.5).astype(tensor.dtype)
