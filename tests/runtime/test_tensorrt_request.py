"""What an engine depends on, its shapes, and what a platform refuses before anything is built."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_texts import SCHEMA
from zoo import ZOO

from pytest_int8acc import EngineError, Settings
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, make_model, save_model
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.trt.backend import TrtBackend
from pytest_int8acc.runtime.trt.build import BuildOptions, BuildRequest, fit_model, make_profiles, seen_shapes
from pytest_int8acc.runtime.trt.calibration import Implicit
from pytest_int8acc.runtime.trt.options import BUILDER_OPTIONS
from pytest_int8acc.runtime.trt.platform import Platform
from pytest_int8acc.tensors import TensorInfo

OLD = Platform("tensorrt", (8, 6, 0), "NVIDIA H100", (9, 0))
NEW = Platform("tensorrt", (11, 4, 0), "NVIDIA H100", (9, 0))
F32 = np.dtype(np.float32)


def model(name: str = "plain") -> Model:
    return make_model(ZOO[name](), name=f"{name}.onnx")


def request(**changes: Any) -> BuildRequest:
    """A weakly typed request."""
    wanted: dict[str, Any] = {
        "model": model(),
        "role": "INT8",
        "profiles": {"x": ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))},
        "typing": "weak",
        "flags": frozenset({"int8", "fp16"}),
    }
    return BuildRequest(**{**wanted, **changes})


def other_weights() -> Model:
    known = model()
    name = next(iter(known.weights))
    array = np.array(known.weights[name])
    array.flat[-1] += 1e-6
    return Model(known.proto, {**known.weights, name: array}, known.name)


def other_attribute() -> Model:
    editor = model().edit()
    next(a for n in editor.graph.node for a in n.attribute if a.name == "pads").ints[0] += 1
    return editor.done()


CHANGES: dict[str, Callable[[], dict[str, Any]]] = {
    "weights": lambda: {"model": other_weights()},
    "graph": lambda: {"model": other_attribute()},
    "profiles": lambda: {"profiles": {"x": ((1, 3, 8, 8), (2, 3, 8, 8), (8, 3, 8, 8))}},
    "flags": lambda: {"flags": frozenset({"int8"})},
    "typing": lambda: {"typing": "strong"},
    "precisions": lambda: {"precisions": {"conv0": "fp32"}},
    "outputs": lambda: {"outputs": ("a", "b")},
    "beside others": lambda: {"shares_gpu": True},
    "workspace": lambda: {"options": BuildOptions(builder={"workspace": "1G"})},
    "level": lambda: {"options": BuildOptions(builder={"optimization_level": 5})},
    "no tactics": lambda: {"options": BuildOptions(builder={"tactic_sources": ()})},
    "plugin": lambda: {"options": BuildOptions(plugins=(Path(__file__),))},
    "implicit": lambda: {"implicit": Implicit(data="a")},
    "other data": lambda: {"implicit": Implicit(data="b")},
    "algorithm": lambda: {"implicit": Implicit("minmax", data="a")},
    "cache": lambda: {"implicit": Implicit(cache=b"a", data="a")},
    "other cache": lambda: {"implicit": Implicit(cache=b"b", data="a")},
}


def key_of(platform: Platform = OLD, **changes: Any) -> str:
    return request(**changes).key(platform)


def test_every_option_of_the_spec_reaches_the_builder() -> None:
    assert set(BUILDER_OPTIONS) == set(SCHEMA["definitions"]["TensorRt"]["properties"]) - {
        "shapes",
        "plugins",
        "timeout",
    }


def test_each_option_of_the_builder_sets_something() -> None:
    """The rest of ``TensorRt`` names no option of the builder's configuration, but of TensorRT elsewhere."""
    values = {"tactic_sources": [], "workspace": "1G", "optimization_level": 2}
    made = {name: option.arguments for name, option in BUILDER_OPTIONS.items() if option.arguments}
    assert set(BUILDER_OPTIONS) - set(made) == {"obey"}
    for name, arguments in made.items():
        assert arguments(MagicMock(), values[name]), name


def test_what_a_tensorrt_lacks_is_refused_where_the_spec_sets_it() -> None:
    needing = {name: option.feature for name, option in BUILDER_OPTIONS.items() if option.feature}
    none_has_them = dataclasses.replace(OLD, flavor="rtx", version=(1, 0, 0))
    for name, feature in needing.items():
        options = SimpleNamespace(**{**dict.fromkeys(BUILDER_OPTIONS), "plugins": (), name: True})
        case = SimpleNamespace(tensorrt=options, at=lambda key: nullcontext())
        with pytest.raises(EngineError, match=f"has no {feature}"):
            TrtBackend(none_has_them, case, Settings())  # type: ignore[arg-type]


def test_keys_tell_all_that_matters_apart() -> None:
    prints = {name: key_of(**change()) for name, change in CHANGES.items()}
    prints["as it is"] = key_of()
    for field, value in {
        "version": (8, 6, 1),
        "gpu": "NVIDIA L4",
        "capability": (8, 9),
        "flavor": "rtx",
    }.items():
        prints[field] = key_of(dataclasses.replace(OLD, **{field: value}))
    assert len(set(prints.values())) == len(prints)


def test_keys_do_not_depend_on_what_does_not_matter(tmp_path: Path) -> None:
    save_model(model(), tmp_path / "other name.onnx", external_weights=True)
    again = load_model(tmp_path / "other name.onnx")
    normal = dataclasses.replace(load_and_save(tmp_path), name="a")
    assert again.name != normal.name
    wanted = key_of(model=normal)
    options = BuildOptions(timeout=5)
    flags = frozenset({"fp16", "int8"})
    assert key_of(model=again, role="fixed", options=options, flags=flags) == wanted


def load_and_save(folder: Path) -> Model:
    save_model(model(), folder / "inline.onnx")
    return load_model(folder / "inline.onnx")


def test_a_changed_plugin_is_another_engine(tmp_path: Path) -> None:
    plugin = tmp_path / "lib.so"
    prints = set()
    for content in (b"1", b"2"):
        plugin.write_bytes(content)
        prints.add(key_of(options=BuildOptions(plugins=(plugin,))))
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("changes", "platform", "message"),
    [
        ({}, NEW, "TensorRT 11.4.0 has no weak typing: TensorRT 8.6 to 10 has it"),
        (
            {"typing": "strong", "flags": frozenset()},
            OLD,
            "8.6.0 has no strong typing: TensorRT 10 and later",
        ),
        ({"outputs": "debug"}, OLD, "has no debug tensors: TensorRT 10.12 and later"),
        (
            {"implicit": Implicit(), "typing": "strong", "flags": frozenset()},
            NEW,
            r"no implicit quantization: TensorRT 8.6 to 10 has it.*use 'int8: \{calibrate: \{\}\}'",
        ),
        ({"implicit": Implicit(cache=b"x: 1")}, OLD, "calibration cache: no calibration cache: expected"),
        (
            {"implicit": Implicit("minmax", cache=b"TRT-8600-EntropyCalibration2\nx: 1")},
            OLD,
            "a cache of algorithm entropy2, and TensorRT would ignore it under minmax",
        ),
        ({"model": model("opset21")}, OLD, "reads opset 17 at most, and the model has 21"),
        ({"options": BuildOptions(plugins=(Path("/no/lib.so"),))}, OLD, "plugins: /no/lib.so: no such file"),
    ],
)
def test_what_the_platform_cannot_do_is_said(
    changes: dict[str, Any], platform: Platform, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        request(**changes).check(platform)


def test_without_a_gpu_nothing_is_built() -> None:
    with pytest.raises(MissingBackendError, match=r"TensorRT 8.6.0 cannot build engines here: no GPU"):
        request().check(dataclasses.replace(OLD, gpu=None, problem="no GPU"))
    request().check(OLD)


@pytest.mark.parametrize(("name", "opset"), [("residual", 19), ("mobilenet", 21), ("inception", 23)])
def test_newer_opsets_are_lowered_for_old_parsers(name: str, opset: int) -> None:
    known = raise_opset(model(name), opset)
    lowered = fit_model(known, OLD)
    assert lowered.opset == 17
    assert lowered.proto.ir_version <= 8
    feed = {
        i.name: np.full([d if isinstance(d, int) else 2 for d in i.shape or ()], 0.5, i.dtype)
        for i in known.inputs
    }
    one, other = OrtEngine(known)(feed), OrtEngine(lowered)(feed)
    for output in one:
        np.testing.assert_allclose(one[output], other[output], rtol=1e-5, atol=1e-6)
    assert fit_model(known, NEW) is known


def test_an_opset_that_cannot_be_lowered_is_said() -> None:
    why = (
        r"vit_gelu.onnx: TensorRT 8.6.0 reads opset 17 at most, and opset 20 cannot be converted to it: "
        r"No Previous Version of Gelu exists. Export the model with opset 17."
    )
    with pytest.raises(EngineError, match=why):
        fit_model(model("vit_gelu"), OLD)


def image(*shape: int | str | None) -> TensorInfo:
    return TensorInfo("x", F32, shape)


def test_one_shape_in_the_data_is_the_profile() -> None:
    seen = seen_shapes([{"x": np.zeros((8, 3), np.float32)}] * 3)
    assert make_profiles([image("N", 3)], {}, seen) == {"x": ((8, 3), (8, 3), (8, 3))}


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8)


@given(shapes)
def test_several_shapes_make_a_profile_that_takes_all(found: list[tuple[int, int]]) -> None:
    profile = make_profiles([image("N", "M")], {}, {"x": Counter(found)})["x"]
    assert found.count(profile[1]) == max(map(found.count, found))
    for axis in (0, 1):
        assert (profile[0][axis], profile[2][axis]) == (
            min(s[axis] for s in found),
            max(s[axis] for s in found),
        )


def test_a_given_profile_wins_and_static_inputs_need_none() -> None:
    given = {"x": ((1, 3), (4, 3), (8, 3))}
    seen = {"x": Counter([(2, 3)])}
    inputs = [image("N", 3), TensorInfo("y", F32, (2, 2))]
    assert make_profiles(inputs, given, seen) == {**given, "y": ((2, 2),) * 3}


@pytest.mark.parametrize(
    ("given_profile", "seen", "message"),
    [
        ({"z": ((1, 3),) * 3}, [], r"no input 'z'; its inputs are x"),
        ({"x": ((2, 3), (1, 3), (4, 3))}, [], "each dimension ascending"),
        ({"x": ((1, 3, 1),) * 3}, [], r"\[1, 3, 1\] is no shape of the model's input x: float32 \[N, 3\]"),
        ({"x": ((1, 4),) * 3}, [], r"\[1, 4\] is no shape of the model's input"),
        ({"x": ((1, 3),) * 3}, [(2, 3)], r"shape \[2, 3\], outside its profile \[1, 3\]; widen"),
        ({}, [], r"dynamic and no data tells it; give 'tensorrt: \{shapes: \{x: "),
        ({}, [(2, 3), (2,)], "shapes of different ranks"),
    ],
)
def test_profiles_that_cannot_be_are_said(
    given_profile: dict[str, Any], seen: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        make_profiles([image("N", 3)], given_profile, {"x": Counter(seen)} if seen else {})
