"""What a number format holds is said in ``graph/formats.py`` and nowhere else; held by reading the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from packages import trees

HOME = "graph/formats.py"

#: The ends of INT8, FP8 and FP16; what FP16 holds below 1 is written as a power of 2.
ENDS = {127, 128, 448, 65504}
FP16_POWERS = {"2 ** (-14)", "2 ** (-24)", "2.0 ** (-14)", "2.0 ** (-24)"}
#: Limits of NumPy's types by the files that mean the type that an array has, not the format of a layer.
LIMITS = {
    "runtime/trt/engine.py": "TensorRT's dimensions are int32",
    "scores/shares.py": "sums in float64",
    "search/ledger.py": "sums in float64",
}
NUMBERS = {
    "init/sizes.py": "usual sizes of images and sequences",
    "observers/ranges.py": "ONNX Runtime's own default of 128 bins",
}
#: Where the word is another's: of specs and calls, of TensorRT's flags and layers, of results and files.
WORDS = {
    *("spec/int8.py", "spec/load.py", "spec/models.py", "api.py"),
    *("runtime/trt/backend.py", "runtime/trt/inspector.py", "runtime/trt/engine.py"),
    *("runtime/trt/build.py", "results/engines.py"),
}


def offences(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of what belongs into ``graph/formats.py``; texts for people do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value in ENDS:
            yield node.lineno, "number", str(node.value)
        elif isinstance(node, ast.BinOp) and ast.unparse(node) in FP16_POWERS:
            yield node.lineno, "number", ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr in ("iinfo", "finfo"):
            yield node.lineno, "limits", ast.unparse(node)
        elif isinstance(node, ast.Constant) and node.value in ("int8", "uint8"):
            yield node.lineno, "word", str(node.value)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "np.int8":
            yield node.lineno, "word", "np.int8"


def test_formats_are_known_in_one_place_and_every_exception_is_needed() -> None:
    found = [(name, *offence) for name, tree in trees().items() if name != HOME for offence in offences(tree)]
    allowed = {"number": NUMBERS, "limits": LIMITS, "word": WORDS}
    assert [f"{name}:{line}: {text}" for name, line, kind, text in found if name not in allowed[kind]] == []
    for kind, names in allowed.items():
        assert {name for name, _, other, _ in found if other == kind} == set(names), "an exception too many"


@pytest.mark.parametrize(
    "line", ["x / 127", "np.iinfo(q.zero_point.dtype)", "s < 2**-24", "np.zeros((), np.int8)", "t == 'int8'"]
)
def test_the_rule_sees(line: str) -> None:
    assert len(list(offences(ast.parse(line)))) == 1
