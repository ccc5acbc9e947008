"""Reads raw feeds: from files and folders, Polygraphy's saved inputs, a user's loader, or random numbers."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.data.files import find, in_gib, natural_order, read_arrays, too_much
from pytest_int8acc.data.layout import Layout, check_equal, check_names, inspect, kind
from pytest_int8acc.data.scripts import iterate_user, load_function, looking_at, user_array
from pytest_int8acc.errors import DataError
from pytest_int8acc.files import readable
from pytest_int8acc.tensors import Feed, TensorInfo, describe

#: The place of a feed, described for messages, and the feed: one array for each input.
Located = tuple[str, Feed]
_EXPECTED = "expected a dict of input name to array"
_ADVICE = "save inputs with: polygraphy run model.onnx --onnxrt --save-inputs inputs.json"
#: Polygraphy's names of classes that hold the outputs of a run. Reading them as inputs raises
#: DataError.
_OUTPUTS = ("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray")


@dataclass(frozen=True)
class RandomSource:
    """Random inputs: ``samples`` rows (at least 1) that are drawn with ``seed`` (at least 0)."""

    samples: int
    seed: int = 0


@dataclass(frozen=True)
class Source:
    """Raw feeds, which can be read several times. A feed is one array for each input of the model."""

    read: Callable[[], Iterator[Located]]
    """Returns an iterator over the feeds of one pass. A feed is read when the iterator reaches it."""
    samples: int | None = None
    """The number of samples in a pass over the data; None if it is not known before the data are read."""
    joins: bool = False
    """Whether rows are stored samples, which may be joined into one batch. Otherwise each feed is a batch."""
    is_random: bool = False
    endless: bool = False
    """Whether a pass may never end."""
    notes: tuple[str, ...] = ()
    """Remarks on the data, which the report shows."""
    files: tuple[str, ...] = ()
    """The names of the files in the order of a pass, if each file holds some of the samples; else empty."""


def open_source(
    source: str | RandomSource, layout: Layout, size: int, base: Path, what: str, most: int
) -> Source:
    """Return the feeds of ``source``; stored arrays are cut into feeds of ``size`` rows.

    Args:
        source: The source of the data, as for ``open_dataset``.
        layout: The model's inputs and their batch axis.
        size: The number of rows of a feed.
        base: The folder that ``source`` is relative to.
        what: The spec's key that names the data, for messages.
        most: Maximum number of bytes of an unpacked .npz.

    Raises:
        DataError: The source is missing, of no known kind, or does not fit the model.
    """
    if isinstance(source, RandomSource):
        return _random(source, layout, size, what)
    if ".py:" in source or source.endswith(".py"):
        return _loader(source, base, what)
    where = f"{what}: {source}"
    path = find(source, base, where)
    if path.is_dir():
        return _folder(path, layout, size, where)
    if path.suffix == ".json":
        return Source(lambda: _polygraphy_feeds(path, where))
    if path.suffix not in (".npz", ".npy"):
        raise DataError(
            f"{where}: not a kind of data this reads; expected .npz, .npy, a folder of .npy files, .json of "
            f"'polygraphy run --save-inputs', or a loader file.py:function"
        )
    arrays = read_arrays(path, where, most)
    first = layout.inputs[0].name
    if len(arrays) != 1 or len(layout.inputs) > 1 or first in arrays:
        return _arrays(arrays, layout, size, where)
    only = next(iter(arrays))
    renamed = _arrays({first: arrays[only]}, layout, size, where)
    note = f"{where}: its only array '{only}' is taken for the model's only input '{first}'"
    return replace(renamed, notes=(note, *renamed.notes))


def _arrays(arrays: Feed, layout: Layout, size: int, where: str) -> Source:
    """Return feeds of ``size`` rows that are sliced from ``arrays``; names, dtypes and sizes are checked now.

    There is one array per model input. Each array has the rank of its input, with samples on axis 0. If the
    arrays have one axis more, axis 0 counts whole feeds.
    """
    check_names(arrays, layout.inputs, where)
    stacked = _stacked_names(arrays, layout, where)
    if stacked:
        counts = {f"'{name}'": len(arrays[name]) for name in sorted(stacked)}
        check_equal(counts, f"{where}: numbers of feeds differ", "axis 0 of each must hold the same feeds")
        if 0 in counts.values():
            raise DataError(f"{where}: is empty; give at least one feed")
    first = _pick(arrays, stacked, 0)
    inspect(first, layout, where)
    rows = layout.rows(first)
    if stacked:
        rows *= len(arrays[min(stacked)])
    notes = tuple(
        f"{where}: '{name}' has no sample axis, so the same values go into each run"
        for name in arrays
        if name not in layout.batched and name not in stacked
    )
    return Source(lambda: _slices(arrays, stacked, layout, size, where), rows, not stacked, notes=notes)


def _stacked_names(arrays: Feed, layout: Layout, where: str) -> frozenset[str]:
    """Return the names of the arrays whose axis 0 counts whole feeds; empty if axis 0 counts samples.

    Raises DataError if the model has no batch axis, and the axis 0 of the arrays does not count feeds either.
    """
    stacked = frozenset(
        t.name for t in layout.inputs if t.shape is not None and arrays[t.name].ndim == len(t.shape) + 1
    )
    if stacked and layout.batched <= stacked:
        return stacked
    if not layout.batched:
        raise DataError(
            f"{where}: the model's inputs share no batch axis ({describe(layout.inputs)}), so samples "
            f"cannot be cut from arrays; give whole feeds, with one more axis in front: np.stack(feeds)"
        )
    return frozenset()


def _slices(
    arrays: Feed, stacked: frozenset[str], layout: Layout, size: int, where: str
) -> Iterator[Located]:
    """Yield feeds of ``size`` rows, or one feed for each index of axis 0 if ``stacked`` names arrays."""
    if stacked:
        for index in range(min(len(arrays[name]) for name in stacked)):
            yield where, _pick(arrays, stacked, index)
    else:
        for start in range(0, layout.rows(arrays), size):
            yield where, layout.cut(arrays, start, start + size)


def _pick(arrays: Feed, stacked: frozenset[str], index: int) -> Feed:
    return {name: array[index, ...] if name in stacked else array for name, array in arrays.items()}


def _folder(folder: Path, layout: Layout, size: int, where: str) -> Source:
    """Return the feeds of a folder in one of four forms; ``x_2`` comes before ``x_10``.

    The forms are: ``<input>.npy`` for each input, samples first; many .npy files, each a sample or a batch of
    the model's one input; a folder of such files for each input, whose n-th files together are a feed;
    Polygraphy's ``<index>.json``.
    """
    files = sorted(folder.glob("*.npy"), key=natural_order)
    names = [tensor.name for tensor in layout.inputs]
    if any(file.stem in names for file in files) or (files and len(names) > 1):
        arrays: Feed = {}
        for file in files:
            arrays |= read_arrays(file, f"{where}/{file.name}")
        return _arrays(arrays, layout, size, where)
    documents = sorted(folder.glob("*.json"), key=natural_order)
    if documents and not files:
        return Source(
            lambda: (feed for file in documents for feed in _polygraphy_feeds(file, f"{where}/{file.name}"))
        )
    files_of_inputs = {names[0]: files} if files else {}
    for subfolder in folder.iterdir() if not files else ():
        if of_input := sorted(subfolder.glob("*.npy"), key=natural_order):
            files_of_inputs[subfolder.name] = of_input
    if not files_of_inputs:
        raise DataError(
            f"{where}: no .npy files in this folder; expected {names[0]}.npy with samples first, "
            f"one file per sample, or a folder {names[0]}/ of such files"
        )
    check_names(files_of_inputs, layout.inputs, where)
    counts = {f"{name}/": len(files_of_inputs[name]) for name in sorted(files_of_inputs)}
    check_equal(counts, f"{where}: numbers of files differ", "each input needs one file per sample")
    first = next(iter(files_of_inputs.values()))
    return Source(
        lambda: _file_feeds(files_of_inputs, layout, size, where),
        joins=bool(layout.batched),
        files=tuple(file.name for file in first) if layout.batched else (),
    )


def _file_feeds(
    files_of_inputs: Mapping[str, list[Path]], layout: Layout, size: int, where: str
) -> Iterator[Located]:
    """Yield the feeds from the n-th files of all inputs, for each n.

    A file holds one sample, a batch, or a stack of feeds.
    """
    several = len(files_of_inputs) > 1
    for paths in zip(*files_of_inputs.values(), strict=True):
        names = [f"{path.parent.name}/{path.name}" if several else path.name for path in paths]
        here = f"{where}/{' with '.join(names)}"
        arrays: Feed = {}
        for name, path in zip(files_of_inputs, paths, strict=True):
            arrays[name] = read_arrays(path, here)[path.stem]
        arrays = _with_axis(arrays, layout)
        yield from _slices(arrays, _stacked_names(arrays, layout, here), layout, size, here)


def _with_axis(arrays: Feed, layout: Layout) -> Feed:
    """Return ``arrays``; an array that is a single sample without a batch axis gets a new axis 0.

    If the model has no batch axis, axis 0 counts feeds. If the arrays are one feed, each gets a new axis 0.
    """
    ranks = {t.name: len(t.shape) for t in layout.inputs if t.shape is not None}
    if layout.batched:
        lacking = {name for name in layout.batched if arrays[name].ndim == ranks.get(name, 0) - 1}
    else:
        lacking = set(arrays)
        if any(array.ndim != ranks.get(name) for name, array in arrays.items()):
            return arrays
    return {name: array[None] if name in lacking else array for name, array in arrays.items()}


def _polygraphy_feeds(path: Path, where: str) -> Iterator[Located]:
    """Yield the feeds of one file of ``polygraphy run --save-inputs``, which is read whole.

    The format is that of polygraphy.json 0.53: a list of ``{input: array}``, or one such dict. An array is
    ``{"array": base64 of a .npy file, "polygraphy_class": "ndarray"}``. ``polygraphy.json.load_json`` is not
    used, because it creates objects of any class that a file names.
    """

    def decode(pairs: list[tuple[str, Any]]) -> Any:
        return _decoded(dict(pairs), where)

    try:
        data = json.loads(readable(path).read_text(encoding="utf-8"), object_pairs_hook=decode)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.lineno}:{error.colno}: not JSON: {error.msg}; {_ADVICE}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: not JSON that Polygraphy writes ({error}); {_ADVICE}") from error
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror}") from error
    for index, feed in enumerate(data if isinstance(data, list) else [data]):
        here = f"{where}: feed {index}"
        if not isinstance(feed, dict):
            raise DataError(f"{here} is of type {type(feed).__name__}, {_EXPECTED}; {_ADVICE}")
        for name, array in feed.items():
            if not isinstance(array, np.ndarray):
                found = f"'{name}' is of type {type(array).__name__}"
                raise DataError(f"{here}: {found}, expected an encoded array; {_ADVICE}")
        yield here, feed


def _decoded(value: dict[str, Any], where: str) -> Any:
    """Return the array that ``value`` encodes; ``value`` itself if it lacks the key ``polygraphy_class``.

    Raises:
        DataError: The dict encodes no NumPy array, or a damaged one.
    """
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
        return np.load(io.BytesIO(base64.b64decode(value["array"], validate=True)), allow_pickle=False)
    except Exception as error:  # A damaged file leads to errors of many types.
        raise DataError(f"{where}: an array is damaged or pickled; {_ADVICE}") from error


def _loader(ref: str, base: Path, what: str) -> Source:
    """Return the feeds of ``file.py:function``; the script is run for each pass, and once here as a check."""
    load_function(ref, base)

    def feeds() -> Iterator[Located]:
        for index, item in enumerate(iterate_user(ref, load_function(ref, base))):
            here = f"{what}: {ref}: feed {index}"
            with looking_at(ref):
                feed = _to_feed(item, here, ref)
            yield here, feed

    return Source(feeds, endless=True)


def _to_feed(item: Any, here: str, ref: str) -> Feed:
    if not isinstance(item, Mapping):
        raise DataError(f"{here} is of type {type(item).__name__}, {_EXPECTED}")
    feed: Feed = {}
    for name, value in item.items():
        if not isinstance(name, str):
            raise DataError(f"{here} has the key {name!r}, expected the name of an input")
        feed[name] = user_array(ref, value, f"{here}: '{name}'")
    return feed


def _random(random: RandomSource, layout: Layout, size: int, where: str) -> Source:
    """Return random feeds: floats uniform in [0, 1], integers and booleans 0 or 1, as Polygraphy draws them.

    A sample's values depend on the seed, the input's position and the sample's index, not on ``size``. Raises
    DataError if the model leaves a size other than the batch size open, or if a dtype cannot be drawn.
    """
    for tensor in layout.inputs:
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
    note = f"{where}: the data are random, so the verdict says nothing about real data"
    return Source(
        lambda: _draw(random, layout, size, where), random.samples, joins=True, is_random=True, notes=(note,)
    )


def _sample_shape(tensor: TensorInfo, layout: Layout) -> tuple[int, ...]:
    """Return the shape of one sample of an input; all its sizes must be fixed."""
    dims = (tensor.shape or ())[tensor.name in layout.batched :]
    return tuple(dim for dim in dims if isinstance(dim, int))


def check_random_size(samples: int, layout: Layout, what: str, most: int) -> None:
    """Raise DataError if ``samples`` random samples have more than ``most`` bytes."""
    sizes = [t.dtype.itemsize * math.prod(_sample_shape(t, layout)) for t in layout.inputs]
    nbytes = samples * sum(sizes)
    if nbytes > most:
        text = f"{samples} random samples are {in_gib(nbytes)}, {too_much(most)}; or draw fewer"
        raise DataError(f"{what}: {text}")


def _draw(random: RandomSource, layout: Layout, size: int, where: str) -> Iterator[Located]:
    """Yield feeds of ``size`` rows.

    An input without a batch axis is drawn once. If no input has a batch axis, all are drawn for each feed.
    """
    streams = {t.name: np.random.default_rng([random.seed, i]) for i, t in enumerate(layout.inputs)}
    step = size if layout.batched else 1
    feed: Feed = {}
    for start in range(0, random.samples, step):
        rows = min(step, random.samples - start)
        for tensor in layout.inputs:
            batched = tensor.name in layout.batched
            if batched or not layout.batched or start == 0:
                shape = _sample_shape(tensor, layout)
                values = np.asarray(streams[tensor.name].random((rows, *shape) if batched else shape))
                values = values if kind(tensor.dtype) == "float" else np.asarray(values >= 0.5)
                feed[tensor.name] = values.astype(tensor.dtype)
        yield where, dict(feed)
