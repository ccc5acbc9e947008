"""A folder of .npy files, or of Polygraphy's JSON files, as feeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_int8acc.data.arrays import array_source, slices, stacked_names
from pytest_int8acc.data.conform import check_names
from pytest_int8acc.data.files import natural, read_npy
from pytest_int8acc.data.layout import Layout
from pytest_int8acc.data.polygraphy_json import read_feeds
from pytest_int8acc.data.source import Located, Source
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array


def folder_source(folder: Path, layout: Layout, size: int, where: str) -> Source:
    """One of four forms, told apart by what lies in ``folder``; files are taken in natural order.

    ``<input>.npy`` for each input, samples first; many .npy files, each a sample or a batch of the one input;
    a folder of such files for each input, the n-th files together a feed; or Polygraphy's ``<index>.json``.

    Raises:
        DataError: The folder is empty or fits none of these, or its files do not fit the model.
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
        return Source(lambda: _documents(documents, where))
    folders = {sub.name: sorted(sub.glob("*.npy"), key=natural) for sub in folder.iterdir() if sub.is_dir()}
    found = {name: paths for name, paths in folders.items() if paths}
    if not found:
        raise DataError(
            f"{where}: no .npy files in this folder; expected {names[0]}.npy with samples first, "
            f"one file per sample, or a folder {names[0]}/ of such files"
        )
    check_names(found, layout.inputs, where)
    return _many(found, layout, size, where)


def _documents(files: list[Path], where: str) -> Iterator[Located]:
    for file in files:
        yield from read_feeds(file, f"{where}/{file.name}")


def _many(files: dict[str, list[Path]], layout: Layout, size: int, where: str) -> Source:
    """The n-th file of each input together as a sample, a batch, or a stack of feeds."""
    counts = {name: len(paths) for name, paths in files.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}/ {count}" for name, count in sorted(counts.items()))
        raise DataError(f"{where}: numbers of files differ ({listed}); each input needs one file per sample")
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
    """A file may hold one sample without its batch axis, or one feed of a model that has none."""
    ranks = {t.name: len(t.shape) for t in layout.inputs if t.shape is not None}
    if layout.batched:
        return {
            name: a[None] if name in layout.batched and a.ndim == ranks.get(name, 0) - 1 else a
            for name, a in arrays.items()
        }
    if all(a.ndim == ranks.get(name) for name, a in arrays.items()):
        return {name: a[None] for name, a in arrays.items()}
    return arrays
