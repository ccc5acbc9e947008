"""Lint: finds faults of Q/DQ models and of scales without running them; ``rules.RULES`` has the rules."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.layout import find_groups, origins
from pytest_int8acc.graph.lint import checks
from pytest_int8acc.graph.lint.rules import RULES, Rule, find
from pytest_int8acc.graph.lint.view import View
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.results import Finding

__all__ = ["RULES", "Rule", "lint", "lint_scales"]

#: From this number of activations on, equal scales are reported.
_MANY = 4
_ORDER = ("error", "warning", "note")


def lint(model: Model, *, float_model: Model | None = None) -> tuple[Finding, ...]:
    """Findings in a Q/DQ model that TensorRT rejects, or runs wrongly or slowly.

    Args:
        model: The model as read from the user's file; normal form hides its opset only. It is not changed.
        float_model: The float model it was made from; its weights are compared where nodes have equal names,
            and its activations are looked for.

    Returns:
        One finding for each node and rule, errors first, otherwise in the order of the rules and the graph.
        Only the main graph is looked at, but for operators that TensorRT has no INT8 form of.
    """
    view = View(model)
    found = [*checks.check_operators(view)]
    for half in view.halves.values():
        found.extend(checks.check_half(view, half))
    found.extend(checks.check_types(view))
    for check in checks.CHECKS:
        found.extend(check(view))
    if float_model is not None:
        found.extend(checks.check_weights(view, float_model))
        found.extend(checks.check_folded(view, float_model))
    return _sorted(found)


def lint_scales(network: Network) -> tuple[Finding, ...]:
    """Findings about the scales of a network.

    Args:
        network: From ``graph.layout.quantize``, before it is put into FP16.

    Returns:
        One finding for each tensor and rule, errors first; the subject is a tensor, a layer or the file.
    """
    high = network.left_high.items()
    missing = [find("missing-scale", name, why.text) for name, why in high if why.kind == "no-scale"]
    return _sorted([*_scale_findings(network), *_equal_scales(network), *missing])


def _scale_findings(network: Network) -> Iterator[Finding]:
    seen: set[tuple[str, int | None]] = set()
    for edge in network.edges:
        key = edge.tensor, edge.quantization.axis
        if key not in seen:
            seen.add(key)
            wrong = checks.bad_numbers(edge.quantization.scale)
            if wrong:
                yield find("nonpositive-scale", edge.tensor, f"{wrong}, read by '{edge.node}'")
            yield from checks.fp16_findings(edge.tensor, edge.quantization.scale)


def _equal_scales(network: Network) -> Iterator[Finding]:
    """A finding where several tensors that could have different scales all have the same one."""
    scales = activation_scales(network)
    values = set(scales.values())
    sources = origins(network.model)
    joined = {tensor: min(tensors) for tensors in find_groups(network.model).shared for tensor in tensors}
    free = {joined.get(tensor) or _origin(tensor, sources) for tensor in scales}
    if len(free) >= _MANY and len(values) == 1:
        scale = values.pop()
        text = f"all {len(scales)} activations have the scale {scale:g}, a range of {INT8.levels * scale:g}"
        yield find("equal-scales", network.model.name, text)


def _origin(tensor: str, sources: dict[str, str]) -> str:
    while tensor in sources:
        tensor = sources[tensor]
    return tensor


def _sorted(found: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, each once, otherwise by the table's order of rules."""
    rank = {rule: i for i, rule in enumerate(RULES)}
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda f: (_ORDER.index(f.severity), rank[f.rule])))
