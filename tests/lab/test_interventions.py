"""One thing of a culprit taken back on the board is what a model built for it gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labs import lab_of, measured
from repair_support import KINDS, READER, WIDE

from pytest_int8acc.clock import Budget
from pytest_int8acc.graph.network import Plan, TensorScale
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.vectors import Prober


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One activation with a scale far too wide."""
    network, limits = KINDS["recalibrate"]
    return lab_of(measured(tmp_path_factory.mktemp("wide"), network(), limits))


@pytest.fixture(scope="module")
def outlier(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One channel of an activation 200 times the usual."""
    network, limits = KINDS["migrate"]
    return lab_of(measured(tmp_path_factory.mktemp("outlier"), network(), limits))


@pytest.mark.parametrize(("far", "counts"), [(3, False), (4, True)])
def test_samples_that_a_limit_allows_to_flip_do_not_make_plans_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: int, counts: bool
) -> None:
    """One of ten may: of 32 three, however little it took to make them flip."""
    case = measured(tmp_path, KINDS["recalibrate"][0](), {"top1_agreement": 0.9})
    lab = lab_of(case)
    board, few = lab.simulator, lab.simulator.few
    assert len(few) == len(board.inputs) == 32
    (vectors,) = board.probe(Plan(), board.seen(), few).vectors
    before, worst = board.normalized_loss(Plan()), np.argsort(np.square(vectors).sum(axis=1))[-far:]
    farther = vectors.copy()
    farther[worst] *= 100
    monkeypatch.setattr(Prober, "vectors", lambda *_: [farther])
    after = lab_of(case).simulator.normalized_loss(Plan())
    assert (after > 10 * before) if counts else after == before


def test_channels_apart_are_a_scale_per_channel(outlier: Lab) -> None:
    trials = Interventions(outlier, [READER], Budget(outlier.clock, max_trials=10))
    piece = next(p for p in trials.pieces[READER] if p.other)
    tensor = piece.tensor
    amax = outlier.values(outlier.measured.inputs).of([tensor])[tensor].channel_amax
    assert amax is not None
    scale = np.asarray(amax / 127, np.float32)
    expected = outlier.simulator.normalized_loss(Plan(scales={tensor: TensorScale(scale, piece.axis)}))
    assert trials.rescaled(READER, piece, scale) == pytest.approx(expected, rel=1e-4)
    assert expected < 0.1 * trials.as_it_is(READER)


def test_beside_fp32_other_culprits_are_in_it(wide: Lab) -> None:
    other = next(g.name for g in wide.network.groups if g.name != WIDE)
    trials = Interventions(wide, [WIDE, other], Budget(wide.clock, max_trials=10))
    wider = wide.simulator.on(wide.network, "fp32").normalized_loss(Plan({other: "fp32"}))
    assert trials.in_fp32(WIDE) == wider


def test_alone_all_else_is_out_of_int8(wide: Lab) -> None:
    trials = Interventions(wide, [WIDE], Budget(wide.clock, max_trials=2))
    beside = trials.as_it_is(WIDE)
    high = dict.fromkeys((g.name for g in wide.network.groups if g.name != WIDE), "fp16")
    found = trials.alone().as_it_is(WIDE)
    assert found == pytest.approx(wide.simulator.normalized_loss(Plan(high)), rel=1e-6)
    assert found != beside
    assert not trials.may_go_on  # they have one budget


def test_a_users_metric_is_in_units_of_all_of_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only all samples tell what its limit allows: those of the case's own network."""
    (tmp_path / "metrics.py").write_text(
        "import numpy as np\n\n\ndef reach(outputs):\n    return float(np.abs(outputs['logits']).mean())\n"
    )
    network, _ = KINDS["recalibrate"]
    criteria = [{"metric": "metrics.py:reach", "max_drop": 0.01}]
    case = measured(tmp_path, network(), {}, criteria=criteria)
    lab = lab_of(case)
    found = Interventions(lab, [WIDE], Budget(lab.clock)).as_it_is(WIDE)
    untold = lab_of(replace(case, result=replace(case.result, metrics=())))
    assert found == pytest.approx(untold.simulator.normalized_loss(Plan()), rel=1e-5)
    told = lab_of(case).simulator
    monkeypatch.setattr(told, "trial", None)  # the verdict of the case tells
    assert told.normalized_loss(Plan()) == found


def test_a_scale_that_others_read_changes_for_the_culprit_alone(outlier: Lab) -> None:
    tensor, readers = next((t, names) for t, names in _readers(outlier).items() if len(names) > 1)
    scale = np.array(0.5, np.float32)

    def rescaled(culprits: list[str]) -> float:
        trials = Interventions(outlier, culprits, Budget(outlier.clock, max_trials=10))
        piece = next(p for p in trials.pieces[readers[0]] if tensor == p.tensor)
        return trials.rescaled(readers[0], piece, scale)

    for_all = outlier.simulator.normalized_loss(Plan(scales={tensor: TensorScale(scale)}))
    assert rescaled(readers[:1]) != pytest.approx(for_all, rel=1e-3)
    high = dict.fromkeys(readers[1:], "fp16")
    alone = outlier.simulator.normalized_loss(Plan(high, {tensor: TensorScale(scale)}))  # type: ignore[arg-type]
    assert rescaled(readers) == alone


def _readers(lab: Lab) -> dict[str, list[str]]:
    """Activation to the groups that quantize it."""
    found: dict[str, list[str]] = {}
    for group in lab.network.groups:
        for edge in group.edges:
            if edge.quantization.values is None:
                found.setdefault(edge.tensor, []).append(group.name)
    return found
