"""What FP16 cannot hold: the baseline compared with FP32, and the tensors that overflow in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from pytest_int8acc.case.runs import Runs
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import ModelError, blaming
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.results import (
    Role,
    Score,
)
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.tensors import Feed

#: Maximum number of tensors with an overflow in FP16 that an error names.
_MAX_NAMED = 3
#: Maximum number of tensors that are rounded to FP16 one by one, to find those that break a limit alone.
_TRIED = 16


def compared(judge: Judge, place: str, batches: Iterable[Mapping[Role, Feed]]) -> Runs:
    """FP32 and the baseline compared by the limits on outputs, without metrics of labels."""
    comparison = Comparison(judge, judged_only=True, metrics=False)
    runs = Runs("", (), judge, lambda _: iter(()), {(Role.FP32, Role.BASELINE): comparison})
    for found in batches:
        with blaming(place):
            comparison.add(found[Role.FP32], found[Role.BASELINE], 0)
        for role in (Role.FP32, Role.BASELINE):
            runs.look(role, found[role])
    return runs


def lost_by_baseline(runs: Runs) -> list[Score]:
    """Scores of the baseline against FP32 that miss limits of the case."""
    compared = runs.comparisons.get((Role.FP32, Role.BASELINE))
    outputs = compared.results() if compared else ()
    return [score for output in outputs for score in output.scores if not score.passed]


def refuse_overflow(
    lost: Sequence[Score], runs: Runs, model: Model, baseline: Form, inputs: Dataset, sessions: Sessions
) -> None:
    """Raise ModelError where FP16 overflows or underflows in the baseline; the message names the tensors.

    An inf need not reach an output: one that is divided by gives 0, in the baseline and in INT8 alike.
    """
    fp32 = Role.FP32 in runs.roles
    bad = sorted(runs.broken[Role.BASELINE] - runs.broken[Role.FP32]) if fp32 else []
    gone = [
        f"output '{name}' is 0 in all samples, and not in FP32"
        for name in sorted(runs.zero[Role.BASELINE] - runs.zero[Role.FP32] if fp32 else ())
    ]
    if not baseline.half or not (bad or lost or gone):
        return
    known = baseline.overflows if isinstance(baseline, ModelForm) else ()
    beyond = _overflowing(model, inputs, sessions)
    harmful = _harmful(model, list(beyond), runs.judge, inputs, sessions)
    where = [*known, *(beyond[tensor] for tensor in harmful or beyond)]
    if bad or where or gone:
        lacking = gone or [f"'{s.subject}' misses its {s.metric} against FP32" for s in lost]
        worst = f"output '{bad[0]}' is not finite" if bad else lacking[0]
        how, remedy = "an overflow", f"keep these values below {FP16.highest:g}"
        if not where:
            where = [*_vanishing(model), *_broken(baseline.model, inputs, sessions)]
            how, remedy = "numbers too small for FP16", "keep them above 6e-8"
        raise ModelError(
            f"{model.name}: in FP16 {worst}, by {how} inside the model; quantization is not the problem.\n"
            + "".join(f"  {sentence}\n" for sentence in where[:_MAX_NAMED])
            + f"Mend the model: {remedy}. 'candidate: fp16' finds what must stay in FP32; 'baseline: fp32'\n"
            "compares quantization alone, and an engine in FP16 is lost all the same."
        )


def _overflowing(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, str]:
    """Tensors whose FP32 values exceed the range of FP16, in topological order, each with a sentence."""
    tensors, makers, found = made_floats(model), model.index.producer, dict[str, str]()
    maxima = Observer(model, inputs, sessions).maxima(tensors)
    for tensor in tensors:
        if FP16.highest < maxima[tensor].amax < np.inf:
            node = makers[tensor]
            reached = f"reaches {maxima[tensor].amax:.4g}, FP16 ends at {FP16.highest:g}"
            found[tensor] = f"'{tensor}' of {node.op_type} '{node.name}' {reached}"
    return found


def _harmful(
    model: Model, tensors: Sequence[str], judge: Judge, inputs: Dataset, sessions: Sessions
) -> list[str]:
    """The tensors beyond FP16 that alone make the case miss a limit when they are rounded to FP16.

    An inf that ends in a Tanh or a Clip does no harm. At most 16 tensors are tried, and 3 returned.
    """
    plain, found = sessions.exact(model), list[str]()
    for tensor in tensors[:_TRIED]:
        engines = {Role.FP32: plain, Role.BASELINE: sessions.exact(_halved(model, tensor), optimized=False)}
        sides = compared(judge, "", (outputs for _, outputs in lock_step(engines, inputs)))
        if sides.spoilt or lost_by_baseline(sides):
            found.append(tensor)
        if len(found) == _MAX_NAMED:
            break
    return found


def _halved(model: Model, tensor: str) -> Model:
    """The model with one tensor rounded to FP16 for all its readers, and as an output."""
    editor, nodes = model.edit(), list[onnx.NodeProto]()
    wide, half, back = (editor.unique(f"{tensor}/{name}") for name in ("wide", "half", "back"))
    for node in editor.graph.node:
        nodes.append(node)
        if tensor in node.output:
            node.output[list(node.output).index(tensor)] = wide
            nodes.append(onnx.helper.make_node("Cast", [wide], [half], half, to=onnx.TensorProto.FLOAT16))
            nodes.append(onnx.helper.make_node("Cast", [half], [tensor], back, to=onnx.TensorProto.FLOAT))
    editor.set_nodes(nodes)
    return editor.done()


def made_floats(model: Model) -> list[str]:
    """FP32 tensors that nodes compute, in topological order."""
    floats = {name for name, info in model.values().items() if info.dtype == np.float32 and info.shape}
    return [name for name in model.index.producer if name in floats]


def _vanishing(model: Model) -> Iterator[str]:
    """Yields a sentence for each constant that becomes 0 in FP16, such as an epsilon."""
    for name, array in model.constants().items():
        readers = model.index.readers(name)
        if array.dtype == np.float32 and readers and array.any() and not FP16.round(array).any():
            node, _ = readers[-1]
            amax = float(np.abs(array).max())
            yield f"'{name}' of {node.op_type} '{node.name}' is {amax:.4g}, which is 0 in FP16"


def _broken(half: Model, inputs: Dataset, sessions: Sessions) -> Iterator[str]:
    """Yields a sentence for each node of a model in FP16 that makes inf or NaN of finite numbers."""
    floats = {n for n, info in half.values().items() if info.dtype in (np.float16, np.float32) and info.shape}
    made = [name for node in half.graph.node for name in node.output if name in floats]
    if not made:
        return
    maxima = Observer(half, inputs, sessions).maxima(made)
    lost = {name for name in made if not np.isfinite(maxima[name].amax)}
    for node in half.graph.node:
        bad = lost.intersection(node.output)
        if bad and not lost.intersection(node.input):
            yield f"{node.op_type} '{node.name}' makes inf or NaN of finite numbers in FP16"
