"""Cuts out the smallest part of a model that shows the error of a layer at fault, and writes it as files."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.clock import current
from pytest_int8acc.errors import EngineError, Int8accError, ModelError
from pytest_int8acc.goldens.location import write_npz
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.index import captured, holders
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, replacing_models, write_model
from pytest_int8acc.graph.network import Group, Network, Precision
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.names import in_code, in_markdown
from pytest_int8acc.observers.edges import reach
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import errors
from pytest_int8acc.tensors import Array, Feed, did_you_mean

#: A cut-out part of a model shows a layer's error if the SQNR of the part is at most this many dB above the
#: SQNR in the whole model. 3 dB more SQNR is half the noise power.
CLOSE_DB = 3.0


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a model that was cut out, as float baseline and as candidate, with its inputs and outputs."""

    baseline: Model
    int8: Model
    groups: tuple[Group, ...]
    nodes: int
    inputs: Feed
    expected: Feed
    """The outputs of the part as float baseline."""
    found: Feed
    """The outputs of the part as low-precision candidate."""
    model: str
    """The name of the whole model."""
    all_nodes: int
    """The number of nodes of the whole model."""
    group: Group
    """The layer at fault, whose error the part shows."""
    rest: Precision
    samples: range
    """The samples in the batch that runs, as indices into the case's data."""
    worst: int
    """The index of the sample with the lowest SQNR."""
    whole: float
    """The SQNR, in dB, at the layer's outputs in the whole model."""

    @property
    def low(self) -> str:
        """The low format of the cut-out part, ``int8`` or ``fp8``. Files of the candidate have this name."""
        return self.group.edges[0].quantization.format.name


def shows(sqnr: float, whole: float) -> bool:
    """Whether a part with this SQNR shows the error of a whole model with the SQNR ``whole``, both in dB."""
    return sqnr <= whole + CLOSE_DB


def worst_sqnr(baseline: Mapping[str, Array], candidate: Mapping[str, Array]) -> float:
    """The SQNR, in dB, of the worst output; -inf if one cannot be computed, inf without outputs."""
    values = [METRICS["sqnr_db"](errors(baseline[n], candidate[n], 1)) for n in baseline]
    return min((-math.inf if math.isnan(value) else value for value in values), default=math.inf)


def write_piece(folder: Path, piece: Piece, sessions: Sessions, root: Path | None = None) -> None:
    """Write the folder of a cut-out part. The files are read again and run before they replace older ones.

    Raises:
        EngineError: The files do not run, or do not show the error.
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
    """Run the written models again, and return a description of the runtime.

    Raises:
        EngineError: The outputs differ from the written outputs, or do not show the error.
    """
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
    """The lines of a Markdown table, one for each quantized tensor."""
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


logger = logging.getLogger("pytest_int8acc")
#: Maximum number of attempts to leave a node or a group out of the cut-out part. Each attempt runs the part
#: once, to test whether it still shows the error.
_SPARED = 16
#: Approximate number of tensors that one run of the whole model returns: inputs of the cut-out part, and
#: tensors before them. These are needed if the part is extended, and then the whole model need not run again.
_AHEAD = 64


def reduce(
    model: Model,
    network: Network,
    group: str,
    feed: Feed,
    rest: Precision,
    folder: Path,
    *,
    samples: range = range(1),
    worst: int = 0,
    sessions: Sessions = CPU,
    root: Path | None = None,
) -> Path:
    """Write the smallest part of a model around a group that shows the group's error, and check the files.

    The folder gets ``float.onnx`` (the part of the baseline) and ``int8.onnx`` (or ``fp8.onnx``), the inputs
    in ``inputs.npz`` and ``inputs.json`` (Polygraphy's format), the outputs in ``expected.npz`` and
    ``int8.npz``, and ``README.md``.

    Args:
        model: The case's float model. It is the baseline if it has the nodes and tensors of the network.
            Otherwise the float model of the network is the baseline.
        network: The candidate's network in FP32.
        group: The name of the layer at fault.
        feed: The inputs of one run of the whole model.
        rest: The precision of nodes that are not quantized.
        folder: The folder. It is created if it does not exist. Files with these names are replaced.
        samples: The indices of the samples in ``feed``, for the README.
        worst: The index of the worst sample, for the README.
        sessions: Opens the models.
        root: The report folder. No symbolic link may lead out of it. With None, links are followed.

    Returns:
        ``folder``.

    Raises:
        ModelError: There is no such group, or its outputs have no error.
        EngineError: A model does not run, or the files do not show the error.
        Int8accError: The folder cannot be written.
    """
    logger.info("%s: cutting out the smallest piece that shows the error of '%s'", network.model.name, group)
    network = _by_main_nodes(network)
    whole = _Whole(model, network, rest, sessions)
    search = _Search(whole, _group(network, group), feed)
    write_piece(folder, search.finished(search.smallest(), samples, worst), sessions, root)
    return folder


def _by_main_nodes(network: Network) -> Network:
    """The network, in which a group inside an If, Loop or Scan has the If, Loop or Scan as its only node.

    A cut-out part consists of nodes of the main graph, so it contains an If, Loop or Scan as a whole.
    """
    around = holders(network.model.graph)
    groups = (
        replace(group, nodes=(around[group.nodes[0]].name,)) if group.is_inner else group
        for group in network.groups
    )
    return replace(network, groups=tuple(groups))


class _Whole:
    """The whole model, as baseline and as candidate. Any tensor can be read, and any part can be cut out."""

    def __init__(self, model: Model, network: Network, rest: Precision, sessions: Sessions) -> None:
        self.network, self.rest, self.sessions = network, rest, sessions
        self.baseline = model if _agree(model, network.model) else network.model
        self.index = network.model.index
        self.nodes, self.producer = self.index.nodes, self.index.producer
        self.inputs = {info.name for info in network.model.inputs}
        self.types = value_types(network.model)

    def read(self, tensors: Sequence[str], feed: Feed) -> tuple[Feed, Feed]:
        """The values of tensors in the baseline and in the candidate."""
        infos = [helper.make_tensor_value_info(name, self.types[name], None) for name in tensors]
        baseline = self.as_run(_with_outputs(self.baseline, infos))
        int8 = self.quantized(_with_outputs(self.network.model, infos))
        return self.once(baseline, feed), self.once(int8, feed)

    def quantized(self, model: Model, nodes: AbstractSet[str] | None = None) -> Model:
        """``model`` with Q/DQ in those groups whose nodes are all in ``nodes``; None for all groups."""
        groups = [g for g in self.network.groups if nodes is None or nodes >= set(g.nodes)]
        return self.as_run(apply(replace(self.network, model=model, groups=tuple(groups))))

    def as_run(self, model: Model) -> Model:
        """The model as it runs: in FP16 if nodes that are not quantized run in FP16, else unchanged."""
        return to_fp16(model).model if self.rest == "fp16" else model

    def once(self, model: Model, feed: Feed) -> Feed:
        """The outputs of one run. The feed may hold more inputs than the model has."""
        engine = self.sessions.exact(model)
        return engine({info.name: feed[info.name] for info in engine.inputs})

    def borders(self, nodes: AbstractSet[str]) -> list[str]:
        """The tensors, except constants, that these nodes read but do not compute, in order of reading."""
        made = {name for node in nodes for name in self.nodes[node].output}
        read = [name for node in self.ordered(nodes) for name in _reads(self.nodes[node])]
        known = self.inputs | self.producer.keys()  # without the inner tensors of bodies of Loop, If and Scan
        return [name for name in dict.fromkeys(read) if name in known and name not in made]

    def closed(self, nodes: AbstractSet[str]) -> set[str]:
        """The nodes, and earlier nodes whose results cannot be inputs of a part, as their type is unknown."""
        grown = set(nodes)
        while untyped := [name for name in self.borders(grown) if name not in self.types]:
            grown.update(self.producer[name].name for name in untyped)
        return grown

    def results(self, nodes: AbstractSet[str]) -> list[str]:
        """The tensors that ``nodes`` compute, and that other nodes read or the model outputs."""
        kept = {info.name for info in self.network.model.outputs}
        for node in self.network.model.graph.node:
            if node.name not in nodes:
                kept.update(_reads(node))
        return [name for node in self.ordered(nodes) for name in self.nodes[node].output if name in kept]

    def ordered(self, nodes: AbstractSet[str]) -> list[str]:
        """The nodes in topological order."""
        return sorted(nodes, key=self.index.order.__getitem__)

    def ahead(self, tensors: Sequence[str]) -> list[str]:
        """The given tensors and tensors computed before them, the nearest first, about ``_AHEAD`` in all."""
        found = [name for name in tensors if name in self.producer]
        for name in found:
            more = _reads(self.producer[name])
            found.extend(t for t in dict.fromkeys(more) if t in self.producer and t not in found)
            if len(found) >= _AHEAD:
                break
        return [name for name in found if name in self.types]


@dataclass(frozen=True, eq=False)
class _Cut:
    """A part of the candidate, run on the values that the baseline computes at its inputs."""

    nodes: frozenset[str]
    inputs: Feed
    int8: Model
    found: Feed
    sqnr: float
    """The SQNR, in dB, of the worst output."""


class _Search:
    """Grows a part of the model from one group until it shows the error, then removes needless nodes."""

    def __init__(self, whole: _Whole, group: Group, feed: Feed) -> None:
        self.whole, self.group, self.feed = whole, group, feed
        self.outputs = [name for name in whole.results(set(group.nodes)) if name in whole.types]
        self.members = {node: set(g.nodes) for g in whole.network.groups for node in g.nodes}
        self.expected, found = whole.read(self.outputs, feed)
        self.sqnr = worst_sqnr(self.expected, found)
        self._values: dict[str, tuple[Feed, Feed]] = {}
        if self.sqnr == math.inf:
            raise ModelError(
                f"{whole.network.model.name}: quantization leaves no error at the outputs of '{group.name}'; "
                "reduce a group that the report names as a culprit"
            )

    def smallest(self) -> _Cut:
        """The smallest part found. Nodes are added until it shows the error, then needless nodes are removed.

        Raises:
            EngineError: The part does not show the error even with everything that is computed before the
                group.
        """
        growth, parts, short = self._growth(), [set(self.group.nodes)], 0
        cut = self._cut(parts)
        while not shows(cut.sqnr, self.sqnr):
            short = len(parts)
            parts.extend(islice(growth, short))
            if len(parts) == short:
                raise EngineError(
                    f"{self.whole.network.model.name}: all that is computed before '{self.group.name}', run "
                    f"by itself, has an SQNR of {cut.sqnr:.1f} dB instead of {self.sqnr:.1f}: the error "
                    "depends on how the model is run"
                )
            cut = self._cut(parts)
            logger.info("grown to %d nodes: SQNR %.1f dB of %.1f", len(cut.nodes), cut.sqnr, self.sqnr)
        while len(parts) - short > 1:
            middle = (short + len(parts)) // 2
            trial = self._cut(parts[:middle])
            if shows(trial.sqnr, self.sqnr):
                parts, cut = parts[:middle], trial
            else:
                short = middle
        return self._trimmed(parts, cut)

    def _growth(self) -> Iterator[set[str]]:
        """Yield the nodes that are added to the part in each step: a single node, or all nodes of a group."""
        nodes = self.whole.closed(set(self.group.nodes))
        while grown := self._before(nodes):
            yield grown
            nodes = self.whole.closed(nodes | grown)

    def _trimmed(self, parts: list[set[str]], cut: _Cut) -> _Cut:
        """The part without nodes that are not needed to show the error.

        Nodes near the layer at fault are tried first.
        """
        tried = 0
        for part in parts[1:]:
            if tried == _SPARED or part.isdisjoint(cut.nodes):
                continue
            tried += 1
            fewer = [other for other in parts if other is not part]
            trial = self._cut(fewer)
            if shows(trial.sqnr, self.sqnr):
                parts, cut = fewer, trial
        return cut

    def _before(self, nodes: AbstractSet[str]) -> set[str]:
        """The nodes to add next: the group of the node that computes the input with the greatest error.

        If that node belongs to no group, only the node is added. Empty if no node is left.
        """
        made = [name for name in self.whole.borders(nodes) if name in self.whole.producer]
        harmed = {name: worst_sqnr(*self._value(name, made)) for name in made}
        name = min(harmed, key=harmed.__getitem__, default=None)
        if name is None:
            return set()
        node = self.whole.producer[name].name
        return self.members.get(node, {node}) - nodes | {node}

    def _value(self, name: str, more: Sequence[str]) -> tuple[Feed, Feed]:
        """The values of a tensor in the baseline and in the candidate.

        The same run also reads the tensors of ``more`` and some before them, which may be needed next.
        """
        if name not in self._values:
            missing = [t for t in self.whole.ahead([name, *more]) if t not in self._values]
            baseline, int8 = self.whole.read(missing, self.feed)
            self._values.update({t: ({t: baseline[t]}, {t: int8[t]}) for t in missing})
        return self._values[name]

    def _cut(self, parts: Sequence[set[str]]) -> _Cut:
        current().check()
        whole = self.whole
        nodes = _leading_to(whole, whole.closed({node for part in parts for node in part}), self.outputs)
        borders = whole.borders(nodes)
        inputs = {n: self.feed[n] if n in whole.inputs else self._value(n, borders)[0][n] for n in borders}
        model = whole.quantized(_part(self._ending(whole.network.model), nodes, inputs), nodes)
        found = whole.once(model, inputs)
        return _Cut(frozenset(nodes), inputs, model, found, worst_sqnr(self.expected, found))

    def finished(self, cut: _Cut, samples: range, worst: int) -> Piece:
        """The part as a ``Piece``, with the baseline of the same nodes, and facts about the whole model."""
        whole = self.whole
        baseline = whole.as_run(_part(self._ending(whole.baseline), cut.nodes, cut.inputs))
        groups = tuple(g for g in whole.network.groups if cut.nodes.issuperset(g.nodes))
        expected = whole.once(baseline, cut.inputs)
        return Piece(
            baseline=baseline,
            int8=cut.int8,
            groups=groups,
            nodes=len(cut.nodes),
            inputs=cut.inputs,
            expected=expected,
            found=cut.found,
            model=whole.network.model.name,
            all_nodes=len(whole.nodes),
            group=self.group,
            rest=whole.rest,
            samples=samples,
            worst=worst,
            whole=self.sqnr,
        )

    def _ending(self, model: Model) -> Model:
        """The model with the outputs of the layer at fault in place of the model's outputs."""
        types, arrays = self.whole.types, self.expected
        infos = [helper.make_tensor_value_info(n, types[n], arrays[n].shape) for n in self.outputs]
        return _with_outputs(model, infos)


def _group(network: Network, name: str) -> Group:
    known = {group.name: group for group in network.groups}
    if name not in known:
        raise ModelError(f"{network.model.name}: no group is named '{name}'{did_you_mean(name, known)}")
    return known[name]


def _agree(first: Model, second: Model) -> bool:
    """Whether both models have the same nodes and tensors, so that both can be cut at the same tensors."""

    def outline(model: Model) -> set[tuple[str, str, tuple[str, ...]]]:
        return {(node.name, node.op_type, tuple(node.output)) for node in model.graph.node}

    return outline(first) == outline(second)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    yield from sorted(captured(node))


def _leading_to(whole: _Whole, nodes: AbstractSet[str], outputs: Sequence[str]) -> set[str]:
    """The nodes among ``nodes`` on which the outputs depend."""
    kept: set[str] = set()
    pending = list(outputs)
    while pending:
        node = whole.producer.get(pending.pop())
        if node is not None and node.name in nodes and node.name not in kept:
            kept.add(node.name)
            pending.extend(_reads(node))
    return kept


def _with_outputs(model: Model, infos: Sequence[onnx.ValueInfoProto]) -> Model:
    """The model with the outputs ``infos`` in place of the model's outputs."""
    editor = model.edit()
    del editor.graph.output[:]
    editor.graph.output.extend(infos)
    return editor.done()


def _part(model: Model, nodes: AbstractSet[str], inputs: Feed) -> Model:
    """The model reduced to ``nodes``. Its inputs have the names, types and shapes of ``inputs``."""
    editor = model.edit()
    editor.set_nodes([node for node in editor.graph.node if node.name in nodes])
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    del editor.graph.input[:]
    editor.graph.input.extend(infos)
    return editor.done()
