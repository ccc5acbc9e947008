"""Finds faults of Q/DQ models and of scales without running a model. ``rules.RULES`` has the rules."""

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

#: Equal scales of all activations are reported only for at least this number of activations. Fewer scales may
#: be equal by chance.
_MANY = 4
#: Severities in the order of the report.
_ORDER = ("error", "warning", "note")


def lint(model: Model, *, float_model: Model | None = None) -> tuple[Finding, ...]:
    """Findings about a Q/DQ model: nodes that TensorRT rejects, or runs wrongly or slowly.

    Only the main graph is checked. Quantized operators are also found inside If, Loop and Scan.

    Args:
        model: The model as read from the user's file, in its own opset. It is not changed.
        float_model: The float model from which ``model`` was made. Weights of nodes with equal names are
            compared, and activations that are missing in ``model`` are found.

    Returns:
        One finding for each node and broken rule: errors first, then in the order of the rules and the graph.
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
        network: A network from ``graph.layout.quantize``, in which all that is not quantized is still in
            FP32.

    Returns:
        One finding for each tensor and broken rule, errors first. A finding names a tensor, a layer or the
        model's file.
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
            yield from checks.check_numbers(edge.tensor, edge.quantization.scale, f", read by '{edge.node}'")


def _equal_scales(network: Network) -> Iterator[Finding]:
    """A finding if all activations have the same scale, although they could have different ones."""
    scales = activation_scales(network)
    values = set(scales.values())
    if len(values) != 1 or len(scales) < _MANY:
        return
    sources = origins(network.model)
    joined = {tensor: min(tensors) for tensors in find_groups(network.model).shared for tensor in tensors}
    free = {joined.get(tensor) or _origin(tensor, sources) for tensor in scales}
    if len(free) >= _MANY:
        scale = values.pop()
        text = f"all {len(scales)} activations have the scale {scale:g}, a range of {INT8.levels * scale:g}"
        yield find("equal-scales", network.model.name, text)


def _origin(tensor: str, sources: dict[str, str]) -> str:
    while tensor in sources:
        tensor = sources[tensor]
    return tensor


def _sorted(found: list[Finding]) -> tuple[Finding, ...]:
    """The findings without duplicates, errors first, otherwise in the order of the rules."""
    rank = {rule: i for i, rule in enumerate(RULES)}
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda f: (_ORDER.index(f.severity), rank[f.rule])))
