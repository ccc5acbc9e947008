"""TensorRT's engines on a real GPU: built, stored, calibrated, opened, timed, and their outputs right.

Run on a machine with an NVIDIA GPU and TensorRT 8.6 to 10:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s tests/runtime/test_gpu_engines.py
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import needs_gpu_below_11, small, small_inputs
from zoo import ZOO

from pytest_int8acc.errors import EngineError
from pytest_int8acc.files import read_sealed
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.plan import apply, with_outputs
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.store import Store
from pytest_int8acc.runtime.trt.build import (
    UNFED,
    BuildOptions,
    BuildRequest,
    Built,
    Range,
    fit_model,
    timing_provenance,
)
from pytest_int8acc.runtime.trt.build import build as build_apart
from pytest_int8acc.runtime.trt.calibration import (
    HEADERS,
    Implicit,
    Provenance,
    check_names,
    read_cache,
    tensor_names,
    write_cache,
)
from pytest_int8acc.runtime.trt.engine import TrtEngine, open_built, open_engine, read_header
from pytest_int8acc.runtime.trt.inspector import read_layers
from pytest_int8acc.runtime.trt.latency import layer_times, measure_latency
from pytest_int8acc.runtime.trt.platform import Platform, find_platform
from pytest_int8acc.tensors import Feed

DIGITS = Path(__file__).parents[2] / "example_project"
BATCH = 120

#: TensorRT starts once for most builds.
build = partial(build_apart, workers=Workers())

pytestmark = needs_gpu_below_11


@pytest.fixture(scope="module")
def here() -> Platform:
    found, why = find_platform()
    assert found is not None, why
    assert found.can_run, found.problem
    print(f"\n{found.description}, compute capability {found.capability}, version {found.version}")
    return found


@pytest.fixture(scope="module")
def options(here: Platform) -> BuildOptions:
    """Quick builds; 8.6 without cuBLAS and cuDNN, which need not be there."""
    sources: dict[str, Any] = {"tactic_sources": ()} if here.version < (9,) else {}
    return BuildOptions(builder={"optimization_level": 0, **sources}, timeout=300)


@pytest.fixture(scope="module")
def choosing(options: BuildOptions) -> BuildOptions:
    """For implicit quantization, whose precisions TensorRT chooses by timing, and for timings kept."""
    return replace(options, builder={**options.builder, "optimization_level": 1})


@pytest.fixture(scope="module")
def store(gpu_store: Path) -> Store:
    """Shared by all workers."""
    return Store(gpu_store)


@pytest.fixture(scope="module")
def little() -> Model:
    """For builds whose network nobody looks at."""
    return small()


@pytest.fixture(scope="module")
def little_feed() -> Feed:
    return small_inputs(32)


@pytest.fixture(scope="module")
def digits() -> Model:
    return load_model(DIGITS / "digits.onnx")


@pytest.fixture(scope="module")
def digits_int8(digits: Model) -> Model:
    """The Q/DQ model, everything in INT8 that can be, the rest in FP32."""
    return apply(read_qdq(load_model(DIGITS / "digits.qdq.onnx"), original=digits))


def batches(file: str, size: int) -> list[Feed]:
    with np.load(DIGITS / "data" / file) as data:
        images = data["image"]
    return [{"image": images[i : i + size]} for i in range(0, len(images) - size + 1, size)]


@pytest.fixture(scope="module")
def feed() -> Feed:
    return batches("validation.npz", BATCH)[0]


def fixed(feed: Feed) -> dict[str, Range]:
    return {name: (array.shape,) * 3 for name, array in feed.items()}  # type: ignore[misc]


def typed(model: Model, here: Platform, *flags: str) -> dict[str, Any]:
    """Model, typing and flags, as this TensorRT wants them."""
    if here.weakly_typed:
        return {"model": fit_model(model, here), "typing": "weak", "flags": frozenset(flags)}
    return {"model": to_fp16(model).model, "typing": "strong"}


@pytest.fixture(scope="module")
def baseline(digits: Model, feed: Feed, here: Platform, options: BuildOptions, store: Store) -> Built:
    parts = typed(digits, here, "fp16")
    return build(BuildRequest(role="baseline", profiles=fixed(feed), options=options, **parts), here, store)


@pytest.fixture(scope="module")
def candidate(digits_int8: Model, feed: Feed, here: Platform, options: BuildOptions, store: Store) -> Built:
    parts = typed(digits_int8, here, "int8", "fp16")
    return build(BuildRequest(role="INT8", profiles=fixed(feed), options=options, **parts), here, store)


@pytest.fixture(scope="module")
def engines(baseline: Built, candidate: Built) -> Iterator[dict[str, TrtEngine]]:
    opened = {built.role: open_built(built) for built in (baseline, candidate)}
    yield opened
    for engine in opened.values():
        engine.close()


def sqnr(reference: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> float:
    signal = sum(float((reference[k].astype(float) ** 2).sum()) for k in reference)
    noise = sum(float(((reference[k] - found[k].astype(float)) ** 2).sum()) for k in reference)
    return 10 * math.log10(signal / noise) if noise else math.inf


def needs_weak(here: Platform) -> None:
    if not here.weakly_typed:
        pytest.skip("TensorRT 11 and later have no implicit quantization and no layer precisions")


def describe(built: Built, nodes: Model) -> str:
    layers = read_layers(built.layers, [node.name for node in nodes.graph.node])
    weighted = [layer for layer in layers if layer.kind == "weighted"]
    share = f"{sum(layer.precision == 'int8' for layer in weighted)} of {len(weighted)} weighted in INT8"
    return f"{built.role}: {built.nbytes} bytes in {built.seconds:.1f} s, {len(layers)} layers, {share}"


def precisions(built: Built, nodes: Sequence[str]) -> dict[str, str]:
    """What each weighted node ran in."""
    layers = read_layers(built.layers, nodes)
    return {node: x.precision for x in layers if x.kind == "weighted" for node in x.nodes}


def test_engines_compute_what_the_simulation_does(
    engines: dict[str, TrtEngine],
    baseline: Built,
    candidate: Built,
    digits: Model,
    digits_int8: Model,
    feed: Feed,
) -> None:
    reference = OrtEngine(digits)(feed)
    simulated = sqnr(reference, OrtEngine(to_fp16(digits_int8).model)(feed))
    found = {role: sqnr(reference, engine(feed)) for role, engine in engines.items()}
    print(f"\n{describe(baseline, digits)}; {found['baseline']:.2f} dB")
    print(f"{describe(candidate, digits)}; {found['INT8']:.2f} dB, simulated {simulated:.2f} dB")
    assert found["baseline"] > 45
    assert abs(found["INT8"] - simulated) < 1.0


def test_outputs_are_free_to_keep(engines: dict[str, TrtEngine], feed: Feed) -> None:
    engine = engines["INT8"]
    first = engine(feed)
    kept = {name: array.copy() for name, array in first.items()}
    engine({"image": np.zeros_like(feed["image"])})
    for name in first:
        np.testing.assert_array_equal(first[name], kept[name])
        np.testing.assert_array_equal(first[name], engine(feed)[name])
    assert [(o.name, first[o.name].dtype) for o in engine.outputs] == [("logits", np.float32)]


def test_the_inspector_tells_what_ran_in_int8(baseline: Built, candidate: Built, digits: Model) -> None:
    nodes = [node.name for node in digits.graph.node]
    for built, wanted in ((baseline, 0.0), (candidate, 0.5)):
        weighted = [layer for layer in read_layers(built.layers, nodes) if layer.kind == "weighted"]
        share = sum(layer.precision == "int8" for layer in weighted) / len(weighted)
        assert share == wanted if wanted == 0 else share >= wanted
        assert any(layer.nodes for layer in weighted)


def test_a_feed_that_does_not_fit_is_refused(engines: dict[str, TrtEngine], feed: Feed) -> None:
    engine = engines["INT8"]
    with pytest.raises(
        EngineError, match=r"input 'image' has shape \[1, 1, 8, 8\], outside the engine's profile"
    ):
        engine({"image": feed["image"][:1]})
    with pytest.raises(EngineError, match="is float64 and the engine takes float32; nothing is converted"):
        engine({"image": feed["image"].astype(float)})
    with pytest.raises(EngineError, match="no array for 'image'; its inputs are 'image'"):
        engine({})


def test_a_prebuilt_engine_is_opened(
    candidate: Built, engines: dict[str, TrtEngine], feed: Feed, here: Platform, tmp_path: Path
) -> None:
    path = tmp_path / "digits_int8.engine"
    shutil.copyfile(candidate.engine, path)
    header = read_header(path)
    assert (header.flavor, (header.version or ())[:3]) == ("tensorrt", here.version[:3])
    with open_engine(path, here, candidate.inputs, candidate.outputs) as engine:
        found = engine(feed)["logits"]
        assert read_layers(engine.layers)
    np.testing.assert_array_equal(found, engines["INT8"](feed)["logits"])


def test_prebuilt_engines_that_do_not_fit_are_refused(
    candidate: Built, here: Platform, tmp_path: Path
) -> None:
    content = candidate.engine.read_bytes()
    path = tmp_path / "some.engine"
    other = normalize(make_model(ZOO["plain"](), name="plain.onnx"))
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"its inputs .* are not those of the model"):
        open_engine(path, here, other.inputs, candidate.outputs)
    with pytest.raises(EngineError, match=r"its outputs .* are not those of the model"):
        open_engine(path, here, candidate.inputs, other.inputs)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        EngineError, match="cannot load this engine: it is damaged, or needs a plugin"
    ) as error:
        open_engine(path, here, candidate.inputs, candidate.outputs)
    print(f"\n{error.value}")
    path.write_bytes(content[:24] + bytes([7, 2, 1, 6]) + content[28:1000])
    with pytest.raises(EngineError, match=r"it was built by TensorRT 7\.2\.1; engines") as error:
        open_engine(path, here, candidate.inputs, candidate.outputs)
    print(error.value)


def test_dynamic_shapes_run_within_their_profile(
    little: Model, here: Platform, options: BuildOptions
) -> None:
    images = small_inputs(65)["x"]
    profile: dict[str, Range] = {"x": ((1, 3, 8, 8), (16, 3, 8, 8), (64, 3, 8, 8))}
    request = BuildRequest(role="baseline", profiles=profile, options=options, **typed(little, here, "fp16"))
    made = build(request, here)
    reference = OrtEngine(little)
    with open_built(made) as engine:
        for size in (64, 1, 16, 3):
            one = {"x": images[:size]}
            assert sqnr(reference(one), engine(one)) > 45
        with pytest.raises(
            EngineError, match=r"outside the engine's profile \[1, 3, 8, 8\] to \[64, 3, 8, 8\]"
        ):
            engine({"x": images})


def implicit_request(
    digits: Model, feed: Feed, implicit: Implicit, options: BuildOptions, **more: Any
) -> BuildRequest:
    flags = frozenset({"int8", "fp16"})
    return BuildRequest(
        digits, "INT8", fixed(feed), "weak", flags, implicit=implicit, options=options, **more
    )


@pytest.fixture(scope="module")
def implicit(digits: Model, feed: Feed, here: Platform, choosing: BuildOptions, store: Store) -> Built:
    """Calibrated in batches of another size than the engine's."""
    needs_weak(here)
    calibration = Implicit("entropy2", feeds=batches("calibration.npz", 50), data="calibration.npz")
    return build(implicit_request(digits, feed, calibration, choosing), here, store)


def test_implicit_quantization_calibrates_and_writes_its_cache(
    implicit: Built, digits: Model, feed: Feed, here: Platform, tmp_path: Path
) -> None:
    with open_built(implicit) as engine:
        found = sqnr(OrtEngine(digits)(feed), engine(feed))
    print(f"\nimplicit {describe(implicit, digits)}; {found:.2f} dB")
    assert found > 20
    assert implicit.calibration is not None
    text = implicit.calibration.decode()
    print(text[:200])
    assert text.splitlines()[0].endswith(HEADERS["entropy2"])
    wanted = Provenance.of(digits, Implicit("entropy2", data="calibration.npz"), here)
    write_cache(tmp_path / "c.cache", implicit.calibration, wanted)
    assert read_cache(tmp_path / "c.cache", wanted, tensor_names(digits)) == (implicit.calibration, "")
    other = normalize(make_model(ZOO["residual"]()))
    with pytest.raises(EngineError, match="of another model"):
        read_cache(tmp_path / "c.cache", Provenance.of(other, Implicit(), here), tensor_names(other))


def test_a_cache_is_read_and_layer_precisions_are_obeyed(
    implicit: Built, digits: Model, feed: Feed, here: Platform, choosing: BuildOptions, store: Store
) -> None:
    nodes = [node.name for node in digits.graph.node]
    weighted = [node.name for node in digits.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    held = {weighted[1]: "fp32", weighted[2]: "fp16"}
    calibration = Implicit("entropy2", cache=implicit.calibration)
    made = build(implicit_request(digits, feed, calibration, choosing, precisions=held), here, store)
    assert set(made.notes) <= {UNFED}
    assert made.calibration == implicit.calibration
    found, free = precisions(made, nodes), precisions(implicit, nodes)
    print(f"\nheld {held}: { ({n: (free.get(n), found.get(n)) for n in weighted}) }")
    assert {node: found[node] for node in held} == held


@pytest.mark.parametrize("algorithm", ["minmax", "entropy", "legacy"])
def test_other_calibrators_write_their_own_header(
    algorithm: Any, little: Model, little_feed: Feed, here: Platform, options: BuildOptions
) -> None:
    needs_weak(here)
    feeds = [small_inputs(50, seed) for seed in (1, 2)]
    calibration = Implicit(algorithm, feeds=feeds, data="random")
    made = build(implicit_request(little, little_feed, calibration, options), here)
    assert made.calibration is not None
    print(f"\n{algorithm}:\n{made.calibration.decode()}")
    check_names(made.calibration, "its cache", algorithm, tensor_names(little))
    with open_built(made) as engine:
        found = sqnr(OrtEngine(little)(little_feed), engine(little_feed))
    print(f"\n{algorithm}: {found:.2f} dB, built in {made.seconds:.1f} s")
    assert found > 5


def test_fp32_is_held_in_a_quantized_network(
    digits_int8: Model, digits: Model, feed: Feed, here: Platform, options: BuildOptions
) -> None:
    needs_weak(here)
    last = [node.name for node in digits.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")][-1]
    high = apply(read_qdq(load_model(DIGITS / "digits.qdq.onnx"), original=digits, exclude=(last,)))
    flags = frozenset({"int8", "fp16"})
    made = build(
        BuildRequest(high, "fixed", fixed(feed), "weak", flags, precisions={last: "fp32"}, options=options),
        here,
    )
    assert precisions(made, [last]) == {last: "fp32"}


def test_inner_tensors_can_be_had(
    little: Model, little_feed: Feed, here: Platform, options: BuildOptions
) -> None:
    inner, (output,) = little.graph.node[0].output[0], little.outputs
    request = BuildRequest(
        role="layers",
        profiles=fixed(little_feed),
        outputs=(inner,),
        options=options,
        **typed(little, here, "fp16"),
    )
    made = build(request, here)
    with open_built(made) as engine:
        assert set(engine(little_feed)) == {output.name}
        found = engine.run_all(little_feed)
    assert set(found) == {inner, output.name}
    expected = OrtEngine(with_outputs(little, [inner]))(little_feed)
    assert sqnr({inner: expected[inner]}, found) > 40


def test_int64_inputs_are_narrowed_where_the_engine_is(here: Platform, options: BuildOptions) -> None:
    model = normalize(make_model(ZOO["embedding"](), name="embedding.onnx"))
    tokens = {"tokens": np.arange(12, dtype=np.int64).reshape(2, 6) % 8}
    request = BuildRequest(
        role="baseline", profiles=fixed(tokens), options=options, **typed(model, here, "fp16")
    )
    made = build(request, here)
    with open_built(made) as engine:
        assert sqnr(OrtEngine(model)(tokens), engine(tokens)) > 40


def test_latency_is_measured_in_turn(engines: dict[str, TrtEngine], feed: Feed) -> None:
    expected = {role: engine(feed)["logits"] for role, engine in engines.items()}
    first, second = (measure_latency(engines, feed, runs=200) for _ in range(2))
    for role in engines:
        one, other = first[role], second[role]
        print(
            f"\n{role}: {one.median_ms:.4f} ms ({one.low_ms:.4f} to {one.high_ms:.4f}), "
            f"again {other.median_ms:.4f}"
        )
        assert 0 < one.low_ms <= one.median_ms <= one.high_ms < 100
        assert one.runs == 200
        assert other.median_ms == pytest.approx(one.median_ms, rel=1)
        np.testing.assert_array_equal(engines[role](feed)["logits"], expected[role])
    timed = measure_latency(engines, feed, seconds=0.5)["INT8"]
    assert timed.runs >= 20
    assert timed.runs * timed.median_ms < 2000


def test_layers_are_timed(engines: dict[str, TrtEngine], candidate: Built, feed: Feed) -> None:
    times = layer_times(engines["INT8"], feed)
    names = {layer.name for layer in read_layers(candidate.layers)}
    print(f"\n{sum(times.values()):.4f} ms in {len(times)} layers")
    assert times
    assert all(ms >= 0 for ms in times.values())
    assert len(names & set(times)) >= len(names) // 2


def test_the_store_builds_once_and_keeps_timings(
    little: Model, little_feed: Feed, here: Platform, choosing: BuildOptions, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    request = BuildRequest(
        role="baseline", profiles=fixed(little_feed), options=choosing, **typed(little, here, "fp16")
    )
    first = build(request, here, store)
    again = build(request, here, store)
    assert (first.stored, again.stored) == (False, True)
    assert again.layers == first.layers
    timings = store.timing_cache(timing_provenance(here))
    known = read_sealed(timings, "timing cache")
    assert known
    with open_built(again) as engine:
        assert sqnr(OrtEngine(little)(little_feed), engine(little_feed)) > 45
    half = {"x": little_feed["x"][:16]}
    other = BuildRequest(role="half", profiles=fixed(half), options=choosing, **typed(little, here, "fp16"))
    second = build(other, here, store)
    print(f"\nbuilt in {first.seconds:.1f} s, with a timing cache {second.seconds:.1f} s")
    assert not second.stored
    assert len(read_sealed(timings, "timing cache") or b"") >= len(known)


def test_a_builder_killed_half_way_leaves_nothing_bad(
    little: Model,
    little_feed: Feed,
    here: Platform,
    options: BuildOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process dies while it builds, and again when the engine file is there but not vouched for."""
    store = Store(tmp_path / "store")
    request = BuildRequest(
        role="baseline", profiles=fixed(little_feed), options=options, **typed(little, here, "fp16")
    )
    head = "import os, signal, sys, threading\nif any('runtime.worker' in w for w in sys.orig_argv):\n"
    die = "os.kill(os.getpid(), signal.SIGKILL)"
    moments = {
        "early": f"    threading.Timer(1.0, lambda: {die}).start()\n",
        "late": "    real = os.replace\n"
        f"    os.replace = lambda a, b: {die} if str(b).endswith('meta.json') else real(a, b)\n",
    }
    for moment, code in moments.items():
        (tmp_path / moment).mkdir()
        (tmp_path / moment / "sitecustomize.py").write_text(head + code)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / moment)
            with pytest.raises(EngineError, match="ended by SIGKILL"):
                build_apart(request, here, store)
        assert not list((tmp_path / "store").rglob("engine.plan"))
    made = build(request, here, store)
    assert not made.stored
    with open_built(made) as engine:
        assert sqnr(OrtEngine(little)(little_feed), engine(little_feed)) > 45
