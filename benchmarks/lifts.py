"""What the package makes of models of opsets 7 to 12, against the files as ONNX Runtime runs them.

``python -m benchmarks.lifts`` makes models of one operator each (benchmarks/operators.py), loads each as a
case would, runs the file and the loaded form, and prints by operator how many are the same, refused, others.
``--list`` prints each that is not the same.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.operators import Array, Variant, model, operators, since, variants
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.load import lift, load_model

OPSETS = range(7, 13)
#: The greatest difference that is rounding, as a part of the greatest magnitude of an output, by its bytes.
ROUNDING = {2: 4e-3, 4: 1e-5, 8: 1e-12}


@dataclass(frozen=True)
class Outcome:
    """What became of one model."""

    op: str
    opset: int
    flavor: str
    attributes: str
    kind: str
    """``same``, ``refused``, ``other``."""
    text: str = ""


def session(model: bytes) -> onnxruntime.InferenceSession:
    """A session that keeps to itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def run(model: bytes, feed: dict[str, Array]) -> list[Array] | None:
    """What ONNX Runtime makes of it; None where it refuses the model or fails."""
    try:
        return [np.asarray(array) for array in session(model).run(None, feed)]
    except Exception:  # of any type: ONNX Runtime's errors have no common base class
        return None


def is_valid(proto: onnx.ModelProto, outputs: Sequence[Array]) -> bool:
    """Give outputs, of an If's branches too, the types of ``outputs``; True if onnx.checker takes it."""
    first = proto.graph.node[0]
    branches = [said.g.output for said in first.attribute] if first.op_type == "If" else []
    for values in (proto.graph.output, *branches):
        for value, array in zip(values, outputs, strict=True):
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, [None] * array.ndim))
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def difference(expected: Array, found: Array) -> str:
    """How ``found`` differs from ``expected`` beyond rounding; empty where it does not."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype}{list(found.shape)} in place of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        return "" if np.array_equal(expected, found) else "other values"
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(found)):
        return "other NaN or infinities"
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return "other NaN or infinities"
    size = float(np.abs(expected[finite]).max(initial=0))
    off = float(np.abs(expected[finite].astype("f8") - found[finite].astype("f8")).max(initial=0))
    if off <= ROUNDING[expected.dtype.itemsize] * size:
        return ""
    return f"off by {off:.3g} where the largest value is {size:.3g}"


def judged(
    variant: Variant, proto: onnx.ModelProto, feed: dict[str, Array], path: Path, newest: int
) -> tuple[str, str] | None:
    """The kind of outcome and a text; None where the file is not valid or does not run.

    The loaded form is lifted to the opset ``newest`` where that is newer.
    """
    expected = run(proto.SerializeToString(), feed)
    if expected is None or not is_valid(proto, expected):
        return None
    path.write_bytes(proto.SerializeToString())
    try:
        form = lift(load_model(path), newest).serialize()
    except ModelError as error:
        return "refused", str(error).replace(f"{path}: ", "").splitlines()[0]
    found = run(form, feed)
    if found is None:
        return "other", "does not run"
    if variant.random:
        pairs = [((a.shape, a.dtype), (b.shape, b.dtype)) for a, b in zip(expected, found, strict=True)]
        return next((("other", f"{b} in place of {a}") for a, b in pairs if a != b), ("same", ""))
    texts = [difference(a, b) for a, b in zip(expected, found, strict=True)]
    text = next(filter(None, texts), "")
    return ("other", text) if text else ("same", "")


def flavors(variant: Variant) -> Iterator[str]:
    """The models that are made of a variant; see ``benchmarks.operators.model``."""
    yield from ("fixed", "open")
    if variant.takes_parameters:
        yield "fed"
    if not variant.nodes:
        yield "nested"


def described(variant: Variant) -> str:
    """The attributes and the shapes of the inputs, in brief."""

    def brief(value: Any) -> str:
        return "..." if isinstance(value, onnx.TensorProto | onnx.GraphProto) else str(value)

    shapes = ["-" if x is None else str(list(getattr(x, "array", x).shape)) for x in variant.inputs]
    return " ".join([*shapes, *(f"{name}={brief(value)}" for name, value in variant.attributes.items())])


def outcomes(seed: int, share: float, newest: int, only: frozenset[str] = frozenset()) -> Iterator[Outcome]:
    """All outcomes; ``newest`` is as for ``judged``.

    An operator's variants are made in the first and in the last opset of each of its forms, and of those
    between a share; of the flavors ``fixed`` and a share of the others.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        made = ((opset, variant) for opset in OPSETS for variant in variants(opset, seed))
        for opset, variant in made:
            form, chances = since(variant.op, opset), iter(rng.random(4))
            if form is None or (only and variant.op not in only):
                continue
            ends = opset in (form, OPSETS[0], OPSETS[-1]) or since(variant.op, opset + 1) != form
            for flavor in flavors(variant):
                if next(chances) > share and not (ends and flavor == "fixed"):
                    continue
                found = judged(variant, *model(variant, opset, flavor), path, newest)
                if found is not None:
                    yield Outcome(variant.op, opset, flavor, described(variant), *found)


def main() -> None:
    """Print counts by operator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--share", type=float, default=0.2, help="of the variants beyond each form's first and last"
    )
    parser.add_argument("--lift", type=int, default=13, help="to this opset, as forms in FP8 and FP16 are")
    parser.add_argument("--only", nargs="*", default=(), help="operators")
    parser.add_argument("--list", action="store_true", help="print each that is not the same")
    options = parser.parse_args()
    os.environ["ONNXRUNTIME_DISABLE_TELEMETRY"] = "1"
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes(options.seed, options.share, options.lift, frozenset(options.only)):
        counts[outcome.op][outcome.kind] += 1
        if options.list and outcome.kind != "same":
            print(
                *(outcome.kind, outcome.op, outcome.opset, outcome.flavor, outcome.attributes, outcome.text),
                sep=" | ",
            )
    every = set(options.only) or {op for opset in OPSETS for op in operators(opset)}
    print("| operator | models | the same | refused | others |\n|---|---|---|---|---|")
    for op in sorted(counts):
        kinds = counts[op]
        print(f"| {op} | {kinds.total()} | {kinds['same']} | {kinds['refused']} | {kinds['other']} |")
    total = sum(counts.values(), Counter[str]())
    print(
        f"| all {len(counts)} | {total.total()} | {total['same']} | {total['refused']} | {total['other']} |"
    )
    left = ", ".join(sorted(every - counts.keys())) or "none"
    print(f"not run by ONNX Runtime {onnxruntime.__version__}: {left}")


if __name__ == "__main__":
    main()
