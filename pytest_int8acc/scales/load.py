"""Scales from a file, whichever kind it is, for the tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_int8acc.errors import ScalesError, listed
from pytest_int8acc.scales import Scales, read_text
from pytest_int8acc.scales.ranges import ranges_of_text
from pytest_int8acc.scales.trt_cache import cache_of_text
from pytest_int8acc.tensors import did_you_mean


def load_scales(
    path: Path,
    tensors: Sequence[str],
    producers: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> Scales:
    """Read a TensorRT calibration cache or a JSON of dynamic ranges, told apart by content.

    Args:
        path: The file.
        tensors: Activations of the model that need a scale.
        producers: Tensor to the name of the node that makes it. An entry may name the node instead, since
            ranges are often listed by layer; the tensor's own name counts first. Entries for tensors or
            nodes listed here that need no scale are passed over in silence.
        origins: Tensor to the tensor it is moved from unchanged (by a Reshape, a MaxPool and the like), of
            all tensors of the model. A tensor without an entry takes the scale of its origin.

    Returns:
        Scales of those tensors that the file covers, with the coverage in the notes.

    Raises:
        ScalesError: The file cannot be read, or covers none of the tensors.
    """
    text = read_text(path)
    wanted = _with_origins(tensors, origins or {})
    makers = {t: producers[t] for t in wanted if t in producers} if producers else {}
    known = {*wanted, *makers.values()}
    found: dict[str, float] = {}
    if text.lstrip().startswith(("{", "[")):
        ranges = ranges_of_text(text, path)
        entries, source = ranges.exact(known), f"dynamic ranges of {path.name}"
        found.update(ranges.matched(wanted, known))
    else:
        cache = cache_of_text(text, path)
        entries, source = dict(cache.values), f"{path.name} ({cache.header})"
    found.update({tensor: entries[node] for tensor, node in makers.items() if node in entries})
    found.update({tensor: entries[tensor] for tensor in wanted if tensor in entries})
    for tensor in reversed(wanted):  # origins first
        origin = (origins or {}).get(tensor)
        if tensor not in found and origin in found:
            found[tensor] = found[origin]
    found = {tensor: found[tensor] for tensor in tensors if tensor in found}
    if tensors and not found:
        raise ScalesError(_no_coverage(path, list(entries), tensors))
    elsewhere = {*(producers or {}), *(producers or {}).values(), *(origins or {}).values()}
    unknown = [name for name in entries if name not in known and name not in elsewhere]
    return Scales(found, source, tuple(_coverage(found, tensors, unknown)))


def _with_origins(tensors: Sequence[str], origins: Mapping[str, str]) -> list[str]:
    """``tensors``, each before the tensors that it is moved from."""
    chain: dict[str, None] = {}
    for tensor in tensors:
        step: str | None = tensor
        while step is not None:
            chain.pop(step, None)  # moves to the end, behind all that is moved from it
            chain[step] = None
            step = origins.get(step)
    return list(chain)


def _coverage(found: Mapping[str, float], tensors: Sequence[str], unknown: Sequence[str]) -> Iterator[str]:
    missing = [tensor for tensor in tensors if tensor not in found]
    without = f"; without: {listed(missing)}" if missing else ""
    yield f"{len(found)} of {len(tensors)} tensors have a scale{without}"
    if unknown:
        near = did_you_mean(unknown[0], missing) if len(unknown) == 1 else ""
        entries = "entry names" if len(unknown) == 1 else "entries name"
        yield f"{len(unknown)} {entries} no tensor to quantize: {listed(unknown)}{near}"


def _no_coverage(path: Path, entries: Sequence[str], tensors: Sequence[str]) -> str:
    near = next((n for n in (did_you_mean(name, tensors) for name in entries[:20]) if n), "")
    return (
        f"{path}: was this made for another model? It names {listed(entries)}{near}; the model needs scales "
        f"for {listed(tensors)}. Give the file that belongs to this model, or calibrate"
    )
