"""Finds the fusion by which an engine gives wrong results, while its ONNX model gives right ones.

TensorRT fuses no layers across an output of its network. So making a tensor an output prevents a fusion;
users do this by hand (NVIDIA/TensorRT#4400). If an engine is right with many outputs, bisection finds the
fewest that suffice. Each trial builds an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from pytest_int8acc.answer.scales import activations
from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import computed_floats
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import ModelForm


def fewest_outputs(
    lab: Lab, plan: Plan, culprits: Collection[str], spent: Callable[[], bool]
) -> tuple[tuple[str, ...], str]:
    """The fewest tensors that, as outputs, make an engine meet the criteria, and a note on the trials.

    Args:
        lab: Builds and judges the models of the case.
        plan: A plan whose simulation passes and whose engine fails.
        culprits: Groups of layers. The engine passes if they are in high precision, so tensors next to them
            are tried first.
        spent: Returns whether no more engines may be built.

    Returns:
        The tensors in topological order; empty if outputs do not help. With these outputs the engine meets
        the criteria on all samples, if possible with a safety margin. If there is a safety margin, none of
        the tensors can be left out, unless the note says that the search ended early.
    """
    tried: dict[tuple[str, ...], Proof | None] = {}

    def holds(outputs: tuple[str, ...]) -> bool:
        if outputs not in tried and not spent():
            try:
                tried[outputs] = lab.prove(replace(plan, outputs=outputs))
            except EngineError:  # TensorRT 8.6 builds no INT8 network of which every tensor is an output
                tried[outputs] = None
        proof = tried.get(outputs)
        return proof is not None and proof.holds

    enough = next((tensors for tensors in _sets(lab, culprits) if holds(tensors)), ())
    if enough:
        fewest_that(holds, enough)
    early = ", stopped early: the budget of builds or time is spent" if spent() else ""
    mended = [outputs for outputs, proof in tried.items() if proof is not None and proof.passed]
    if not mended:
        return (), (
            "the engine fails where its model passes, and more outputs, which break fusions up, do not mend "
            f"it: {len(tried)} engines built{early}{_by_other_kernels(lab, plan, spent)}"
        )
    best = min([outputs for outputs in mended if holds(outputs)] or mended, key=len)
    return best, f"{_at_fault(lab, best)}: {len(tried)} engines built to find it{early}"


def _by_other_kernels(lab: Lab, plan: Plan, spent: Callable[[], bool]) -> str:
    """The end of a note which says whether the plan passes at other optimization levels of TensorRT."""
    levels, mended = [], ""
    for level in lab.measured.backend.other_levels:
        if spent():
            break
        levels.append(str(level))
        form = replace(lab.int8.under(plan), level=level)
        try:
            judgement = lab.judged(form)
        except EngineError:  # at some levels TensorRT finds no kernel
            continue
        if judgement.holds:
            return _mended(lab, form, "verified" if judgement.is_verified else "with a safety margin")
        if judgement.passed and not mended:
            mended = _mended(lab, form, "without a safety margin")
    return mended or (f"; nor do the optimization levels {' and '.join(levels)}" if levels else "")


def _mended(lab: Lab, form: ModelForm, called: str) -> str:
    """The end of a note which says that an optimization level makes the engine pass, and at which latency.

    ``called`` says how sure it is that the engine passes, for instance "verified".
    """
    latency = lab.latency(form)
    price = "" if latency is None else f", {latency.median_ms:.3g} ms"
    return f"; 'tensorrt: {{optimization_level: {form.level}}}' in the spec mends it ({called}{price})"


def fewest_that(passes: Callable[[tuple[str, ...]], bool], enough: Sequence[str]) -> tuple[str, ...]:
    """The fewest tensors of ``enough``, in order, with which ``passes`` is true. No tensor is needless.

    Bisection finds the shortest beginning of the list that passes; its last tensor is needed. Each needed
    tensor takes log2(n) + 1 trials. It is assumed that ``enough`` passes, the empty set fails, and more
    tensors never do harm.
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
    """Yield growing sets of tensors: those next to ``culprits``, then all quantized tensors, then all."""
    network, index = lab.int8.every, lab.int8.every.model.everywhere
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
    """A sentence that names the tensors, and the engine layers that were fused across these tensors."""
    makers = lab.int8.every.model.index.producer
    across = {makers[tensor].name for tensor in outputs}
    engine = next((info for info in lab.measured.backend.engines if info.role == Role.INT8), None)
    fused = [layer for layer in engine.layers if len(layer.nodes) > 1] if engine is not None else []
    layers = [layer.name for layer in fused if across.intersection(layer.nodes)]
    said = f"the engine computes wrong in what it fuses across {listed(outputs)}"
    return f"{said} (its layers {listed(layers)})" if layers else said
