"""Which layers lose time in INT8, and which sets of them are worth an engine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.search.speed import GroupWork, closed, losses, sets_to_try


def group(name: str, macs: float = 1.0, elements: float = 1.0, before: str = "") -> GroupWork:
    """A group of the nodes ``name`` and ``name.relu``, between the nodes ``name.q`` and ``name.softmax``."""
    nodes, around = frozenset({name, f"{name}.relu"}), frozenset({f"{name}.q", f"{name}.softmax"})
    return GroupWork(name, nodes, macs, elements, frozenset(before.split()), around)


@st.composite
def networks(draw: st.DrawFn) -> tuple[GroupWork, ...]:
    """Groups in topological order, of which each reads up to two earlier ones."""
    count = draw(st.integers(1, 24))
    sizes = st.sampled_from((0.0, 1.0, 2.0, 3.5))
    found: list[GroupWork] = []
    for number in range(count):
        names = [earlier.name for earlier in found[-3:]]
        before = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
        found.append(group(f"g{number}", draw(sizes), draw(sizes), " ".join(before)))
    return tuple(found)


@st.composite
def engines(draw: st.DrawFn, groups: tuple[GroupWork, ...]) -> list[LayerTime]:
    """Layers of one or more groups, copies, layers of no group, and regions."""
    nodes = [node for one in groups for node in (*one.nodes, *one.around)]
    names = st.lists(st.sampled_from([*nodes, "softmax"]), max_size=3).map(tuple)
    times = st.floats(1e-3, 10)
    return draw(st.lists(st.builds(LayerTime, names, times, st.booleans()), max_size=12))


@given(st.data())
def test_the_order_of_layers_does_not_matter(data: st.DataObject) -> None:
    groups = data.draw(networks())
    low, high = data.draw(engines(groups)), data.draw(engines(groups))
    lost = losses(groups, low, high)
    shuffled = random.Random(0)
    shuffled.shuffle(low)
    shuffled.shuffle(high)
    assert losses(groups, low, high) == lost
    assert set(lost) == {one.name for one in groups}


@given(networks(), st.floats(1e-3, 10), st.floats(1e-3, 10))
def test_the_losses_of_one_region_add_up(groups: tuple[GroupWork, ...], fast: float, slow: float) -> None:
    """As in TensorRT 8.6, which tells a transformer as one layer."""
    lost = losses(groups, [LayerTime((), fast, True)], [LayerTime(("g0",), slow, True)])
    assert math.fsum(lost.values()) == pytest.approx(fast - slow, abs=1e-9)


def test_times_go_to_the_groups_that_layers_compute() -> None:
    groups = (group("a"), group("b", macs=3), group("c", elements=3), group("d"))
    low = [
        LayerTime(("a.q",), 0.5),  # a standalone quantizer in front of a
        LayerTime(("a", "a.relu", "b.q"), 1.0),  # a writes INT8 for b
        LayerTime(("b",), 1.0),
        LayerTime(("softmax",), 7.0),  # in FP16 in both engines
        LayerTime(("c", "d"), 4.0),
    ]
    high = [LayerTime(("a", "a.relu", "b"), 4.0), LayerTime(("softmax",), 7.0), LayerTime(("c", "d"), 4.0)]
    assert losses(groups, low, high) == {"a": 0.5, "b": -2.0, "c": 1.0, "d": -1.0}


def test_what_only_the_baseline_fuses_costs_time() -> None:
    """The baseline computes attention in one layer; between the products in INT8 a Softmax is left alone."""
    groups = (group("qk"), group("av", before="qk"))
    low = [LayerTime(("qk",), 0.5), LayerTime(("qk.softmax",), 1.0), LayerTime(("av",), 0.5)]
    high = [LayerTime(("qk", "qk.softmax", "av"), 1.5)]
    assert losses(groups, low, high) == {"qk": 0.75, "av": -0.25}
    regions = [replace(layer, is_region="." in layer.nodes[0]) for layer in low]
    assert losses(groups, regions, [replace(high[0], is_region=True)]) == {"qk": 0.75, "av": -0.25}


def test_what_one_engine_does_not_tell_loses_nothing() -> None:
    groups = (group("a"), group("b"))
    assert losses(groups, [LayerTime(("a",), 2.0), LayerTime(("b",), 9.0)], [LayerTime(("a",), 1.0)]) == {
        "a": 1.0,
        "b": 0.0,
    }


def test_within_a_region_products_of_activations_lose_most() -> None:
    """A block of a ViT-S with 196 tokens: products of 0.5 and values of 2 to 4 against products of 4."""
    groups = (
        *(group(name, 1, 1) for name in ("query", "key", "value")),
        group("qk", 0.51, 2, "query key"),
        group("av", 0.51, 4.1, "qk value"),
        group("out", 1, 1, "av"),
        group("fc1", 4, 1),
        group("fc2", 4, 4, "fc1"),
    )
    lost = losses(groups, [LayerTime((), 0.913, True)], [LayerTime((), 0.861, True)])
    assert {name for name, ms in lost.items() if ms > 0} == {"qk", "av"}
    sets = sets_to_try(groups, lost)
    assert sets[:2] == (frozenset({"qk", "av"}), frozenset({"av"}))
    assert frozenset({"query", "key", "value", "qk", "av", "out"}) in sets


@given(st.data())
def test_sets_are_worth_an_engine(data: st.DataObject) -> None:
    groups = data.draw(networks())
    times = st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0))
    lost = {one.name: data.draw(times) for one in groups}
    most = data.draw(st.integers(1, 12))
    sets = sets_to_try(groups, lost, most=most)
    assert len(sets) == len(set(sets)) <= most
    losers = {name for name, ms in lost.items() if ms > 0}
    assert losers or not sets
    total = sum(one.macs for one in groups)
    for names in sets:
        left = [one for one in groups if one.name not in names]
        assert left
        assert not total or sum(one.macs for one in left) / total > 0.2, "so much of the work stays in INT8"
        between = {one.name for one in groups if is_between(groups, one, names)}
        assert names & losers
        assert losers <= names or {name for name in names if lost[name] <= 0} <= between
        assert len(names) > 1 or names <= losers


@given(st.data())
def test_gaps_are_closed(data: st.DataObject) -> None:
    groups = data.draw(networks())
    names = frozenset(data.draw(st.sets(st.sampled_from([one.name for one in groups]), min_size=1)))
    found = closed(groups, names)
    assert names <= found
    assert not [one.name for one in groups if one.name not in found and is_between(groups, one, found)]
    assert all(is_between(groups, one, found) for one in groups if one.name in found - names)


def test_a_set_without_gaps_is_tried_before_the_same_with_gaps() -> None:
    chain = [group(f"g{place}", before=f"g{place - 1}" if place else "") for place in range(5)]
    sets = sets_to_try(chain, {"g0": -1.0, "g1": 1.0, "g2": -1.0, "g3": 1.0, "g4": -1.0})
    assert sets[:2] == (frozenset({"g1", "g2", "g3"}), frozenset({"g1", "g3"}))


def is_between(groups: Sequence[GroupWork], one: GroupWork, names: frozenset[str]) -> bool:
    """Whether a group reads one of the groups ``names``, and another of them reads it."""
    readers = {other.name for other in groups if one.name in other.before}
    return bool(one.before & names and readers & names)
