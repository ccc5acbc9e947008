"""Which fusion makes an engine compute wrong although its ONNX model computes right: found by building.

TensorRT fuses nothing across an output of its network, so a tensor made one keeps apart what lies before and
behind it; users do so by hand (NVIDIA/TensorRT#4400). Where many outputs mend an engine, the fewest that do
are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from pytest_int8acc.answer.scales import activations
from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import computed_floats
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.scores.judge import Verdict


def fewest_outputs(
    lab: Lab, plan: Plan, culprits: Collection[str], spent: Callable[[], bool]
) -> tuple[tuple[str, ...], str]:
    """Tensors that, as outputs, make a plan meet the criteria as built; and a sentence on the result.

    Args:
        lab: Of the case.
        plan: One that fails as built, and passes by inference.
        culprits: Groups that mend the engine where they leave INT8; tensors beside them are tried first.
        spent: Whether nothing more may be built.

    Returns:
        The tensors, in topological order, built and judged on all samples, with a reserve where any have one;
        none where outputs do not help. None can be left out of those with a reserve, unless the words say
        that the search ended early.
    """
    tried: dict[tuple[str, ...], Verdict | None] = {}

    def holds(outputs: tuple[str, ...]) -> bool:
        if outputs not in tried and not spent():
            try:
                tried[outputs] = lab.prove(replace(plan, outputs=outputs)).verdict
            except EngineError:  # TensorRT 8.6 builds no INT8 network of which every tensor is an output
                tried[outputs] = None
        verdict = tried.get(outputs)
        return verdict is not None and verdict.holds

    enough = next((tensors for tensors in _sets(lab, culprits) if holds(tensors)), ())
    if enough:
        fewest_that(holds, enough)
    early = ", stopped early: the budget of builds or time is spent" if spent() else ""
    mended = [outputs for outputs, verdict in tried.items() if verdict is not None and verdict.passed]
    if not mended:
        return (), (
            "the engine fails where its model passes, and more outputs, which break fusions up, do not mend "
            f"it: {len(tried)} engines built{early}{_by_other_kernels(lab, plan, spent)}"
        )
    best = min([outputs for outputs in mended if holds(outputs)] or mended, key=len)
    return best, f"{_at_fault(lab, best)}: {len(tried)} engines built to find it{early}"


def _by_other_kernels(lab: Lab, plan: Plan, spent: Callable[[], bool]) -> str:
    """A sentence on the plan built at optimization levels at which TensorRT chooses other kernels."""
    levels, mended = [], ""
    for level in lab.measured.backend.other_levels:
        if spent():
            break
        levels.append(str(level))
        form = replace(lab.int8.under(plan), level=level)
        try:
            verdict = lab.judged(form)
        except EngineError:  # there may be no kernel at all
            continue
        if verdict.holds:
            return _mended(lab, form, "verified")
        if verdict.passed and not mended:
            mended = _mended(lab, form, "without a reserve")
    return mended or (f"; nor do the optimization levels {' and '.join(levels)}" if levels else "")


def _mended(lab: Lab, form: ModelForm, called: str) -> str:
    """A sentence: an optimization level mends the engine, with its latency."""
    latency = lab.latency(form)
    price = "" if latency is None else f", {latency.median_ms:.3g} ms"
    return f"; 'tensorrt: {{optimization_level: {form.level}}}' in the spec mends it ({called}{price})"


def fewest_that(passes: Callable[[tuple[str, ...]], bool], enough: Sequence[str]) -> tuple[str, ...]:
    """The fewest of ``enough`` that pass, in order: without any one of them they fail.

    By bisection, log2(n) + 1 trials for each: the shortest beginning that passes ends with a tensor that is
    needed. ``enough`` passes, nothing does not, and more of them never pass less.
    """
    kept: tuple[str, ...] = ()
    rest = tuple(enough)
    while rest and not (kept and passes(kept)):
        fails, least = 0, len(rest)
        while least - fails > 1:
            middle = (fails + least) // 2
            fails, least = (fails, middle) if passes((*rest[:middle], *kept)) else (middle, least)
        kept, rest = (rest[least - 1], *kept), rest[: least - 1]
    return kept


def _sets(lab: Lab, culprits: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Sets of tensors that may mend an engine: next to culprits, between layers as well, all tensors."""
    network, index = lab.int8.every, lab.int8.every.model.index
    nodes = [index.nodes[node] for group in network.groups if group.name in culprits for node in group.nodes]
    readers = [reader for node in nodes for name in node.output for reader, _ in index.readers(name)]
    adjacent = {name for node in nodes for name in (*node.input, *node.output)}
    adjacent.update(name for node in readers for name in node.output)
    every = [name for name in computed_floats(network.model) if name not in lab.int8.given.outputs]
    for chosen in (adjacent, adjacent.union(activations(network)), set(every)):
        tensors = tuple(name for name in every if name in chosen)
        if tensors:
            yield tensors


def _at_fault(lab: Lab, outputs: tuple[str, ...]) -> str:
    """A sentence that names the tensors, and the engine's layers across them where they are known."""
    makers = lab.int8.every.model.index.producer
    across = {makers[tensor].name for tensor in outputs}
    engine = next((info for info in lab.measured.backend.engines if info.role == Role.INT8), None)
    fused = [layer for layer in engine.layers if len(layer.nodes) > 1] if engine is not None else []
    layers = [layer.name for layer in fused if across.intersection(layer.nodes)]
    said = f"the engine computes wrong in what it fuses across {listed(outputs)}"
    return f"{said} (its layers {listed(layers)})" if layers else said
