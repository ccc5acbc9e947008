"""A piece of a model that shows an error, as a folder of files that can be run again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_int8acc.errors import EngineError, Int8accError
from pytest_int8acc.goldens.outputs import write_npz
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, replacing_models, write_model
from pytest_int8acc.graph.network import Group, Precision
from pytest_int8acc.names import in_code, in_markdown
from pytest_int8acc.observers.edges import reach
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.scores.metrics import sqnr_db
from pytest_int8acc.scores.sums import errors
from pytest_int8acc.tensors import Array, Feed

#: A piece shows an error where its SQNR is at most so many dB above the whole model's: half the noise power.
CLOSE_DB = 3.0


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a model in both forms, with the inputs it was cut at, what it gives, and its origin."""

    baseline: Model
    int8: Model
    groups: tuple[Group, ...]
    nodes: int
    inputs: Feed
    expected: Feed
    """Outputs of ``baseline``."""
    found: Feed
    """Outputs of ``int8``."""
    model: str
    """The whole model's name."""
    all_nodes: int
    """Of the whole model."""
    group: Group
    """The culprit."""
    rest: Precision
    samples: range
    """Those run at once, as indices into the case's data."""
    worst: int
    """The one of them that the piece is for."""
    whole: float
    """SQNR at the culprit's outputs in the whole model, in dB."""

    @property
    def low(self) -> str:
        """The format that it is quantized to, ``int8`` or ``fp8``, as files are named."""
        return self.group.edges[0].quantization.format.name


def shows(sqnr: float, whole: float) -> bool:
    """True where an error has at least half the power of the whole model's; both in dB."""
    return sqnr <= whole + CLOSE_DB


def worst_sqnr(baseline: Mapping[str, Array], candidate: Mapping[str, Array]) -> float:
    """SQNR in dB of the output with the least; -inf where it cannot be computed, inf without outputs."""
    values = [sqnr_db(errors(baseline[n], candidate[n], 1, full=False)) for n in baseline]
    return min((-math.inf if math.isnan(value) else value for value in values), default=math.inf)


def write_piece(folder: Path, piece: Piece, sessions: Sessions, root: Path | None = None) -> None:
    """Write the folder; its files were read again, run and seen to hold before any takes its place.

    Raises:
        EngineError: The files do not run, or do not show the error again.
        Int8accError: The folder cannot be written, or a link leads out of ``root``.
    """
    from polygraphy.json import to_json

    try:
        with replacing_models(folder, root) as drafts:
            write_model(piece.baseline, drafts / "float.onnx")
            write_model(piece.int8, drafts / f"{piece.low}.onnx")
            arrays = {"inputs": piece.inputs, "expected": piece.expected, piece.low: piece.found}
            for name, feed in arrays.items():
                write_npz(drafts / f"{name}.npz", feed.items())
            (drafts / "inputs.json").write_text(to_json([piece.inputs]), encoding="utf-8")
            runtime = _check(drafts, folder, piece, sessions)
            (drafts / "README.md").write_text(_readme(piece, runtime), encoding="utf-8")
    except OSError as error:
        raise Int8accError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _check(drafts: Path, folder: Path, piece: Piece, sessions: Sessions) -> str:
    """The files give the outputs that lie beside them, and those show the error; what they were run by."""
    with np.load(drafts / "inputs.npz") as stored:
        feed = dict(stored)
    outputs = []
    for model, file in (("float.onnx", "expected.npz"), (f"{piece.low}.onnx", f"{piece.low}.npz")):
        engine = sessions.exact(load_model(drafts / model))
        found = engine(feed)
        with np.load(drafts / file) as stored:
            same = all(
                np.array_equal(found[n], stored[n], equal_nan=stored[n].dtype.kind == "f") for n in found
            )
        if not same:
            raise EngineError(f"{folder / model}: gives other outputs than {file} when it is run again")
        outputs.append(found)
    reached = worst_sqnr(*outputs)
    if not shows(reached, piece.whole):
        raise EngineError(f"{folder}: shows an SQNR of {reached:.1f} dB instead of {piece.whole:.1f}")
    return engine.description


def _readme(piece: Piece, runtime: str) -> str:
    errors = [
        np.abs(piece.expected[n].astype(np.float64) - piece.found[n].astype(np.float64)).ravel()
        for n in piece.expected
    ]
    joined = np.concatenate(errors)
    greatest = float(joined[np.isfinite(joined)].max(initial=0.0))
    samples = f"sample {piece.worst} of the case's data"
    if len(piece.samples) != 1:
        samples += f",\nrun at once with samples {piece.samples[0]} to {piece.samples[-1]}"
    facts = {"rest": piece.rest.upper(), "samples": samples, "model": in_code(piece.model)}
    return _README.format(
        **vars(piece) | facts | {"groups": len(piece.groups)},
        low=piece.low,
        format=piece.low.upper(),
        name=in_code(piece.group.name),
        op_type=in_markdown(piece.group.op_type),
        sqnr=worst_sqnr(piece.expected, piece.found),
        close=CLOSE_DB,
        greatest=greatest,
        atol=f"{greatest / 2:.3g}",
        scales="\n".join(dict.fromkeys(_scale_lines(piece))),
        runtime=runtime,
    )


def _scale_lines(piece: Piece) -> Iterator[str]:
    """One line of a table for each quantized tensor."""
    for group in piece.groups:
        for edge in group.edges:
            scale = np.asarray(edge.quantization.scale, np.float64)
            text = f"{scale:.6g}" if scale.size == 1 else f"{scale.min():.6g} to {scale.max():.6g}"
            kind, most = edge.quantization.format.name, f"{reach(edge.quantization):.6g}"
            yield f"| {in_code(edge.tensor)} | {in_code(edge.node)} | {kind} | {text} | {most} |"


_README = """# Error of {name} in {format}

Cut out of {model}: {nodes} of {all_nodes} nodes, {groups} of them quantized layers, around the {op_type}
{name}. `float.onnx` is the baseline ({rest}), `{low}.onnx` the same piece with Q/DQ, the rest {rest}.
Inputs: what the baseline computes there for {samples}.

| | SQNR at the outputs of {name} |
| --- | --- |
| whole model, all in {format} | {whole:.1f} dB |
| this piece | {sqnr:.1f} dB |

The piece counts as showing the error up to {close:g} dB above the whole model's SQNR, half the noise power.
Greatest difference here: {greatest:.6g}.
Run with {runtime}: Q/DQ unfused, FP16 rounded operator by operator.

| quantized tensor | read by | type | scale | reach |
| --- | --- | --- | --- | --- |
{scales}

## Files

- `inputs.npz`, `inputs.json`: inputs (NumPy, and for `polygraphy run --load-inputs`).
- `expected.npz`: outputs of `float.onnx`. `{low}.npz`: outputs of `{low}.onnx`.

## To run it again

    polygraphy run float.onnx --onnxrt --load-inputs inputs.json --save-outputs float.json
    polygraphy run {low}.onnx --onnxrt --graph-optimization-level ORT_ENABLE_BASIC \\
        --load-inputs inputs.json --load-outputs float.json --rtol 0 --atol {atol}
    polygraphy run {low}.onnx --trt --strongly-typed --load-inputs inputs.json --load-outputs float.json \\
        --rtol 0 --atol {atol}

The tolerance is half the greatest difference: the second and third command fail as long as the error is
there. Without `--graph-optimization-level` (of Polygraphy 0.53.6 and later) ONNX Runtime fuses Q/DQ into its
own kernels.
"""
