"""What the README shows: its specs load and run, its tests pass, its failure reads as printed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from plugin_support import LOAD
from zoo import ZOO, sample_feed

from pytest_int8acc.spec.load import load_spec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODEL_SPEC = """
model: {name}.onnx
inputs: {{random: {{samples: 32, seed: 1}}}}
int8: {{calibrate: {{method: minmax}}}}
criteria: [{{sqnr_db: 20}}]
"""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Each fenced block of a language that begins with its file's name, and what it holds."""
    for found, text in BLOCK.findall(README):
        if found == language and text.startswith("# "):
            yield text.partition("\n")[0][2:].strip(), text


TESTS = dict(blocks("python"))
SPECS = dict(blocks("yaml"))


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """The example project without its own tests and specs, in which the README's files stand."""
    ignored = shutil.ignore_patterns("test_*", "*.int8acc.yaml", "__pycache__", "*.ini")
    shutil.copytree(ROOT / "example_project", pytester.path, dirs_exist_ok=True, ignore=ignored)
    pytester.makeini("[pytest]\n")
    return pytester


def test_there_is_something_to_test() -> None:
    assert set(TESTS) == {"test_top1.py", "test_boxes.py", "test_models.py"}
    assert set(SPECS) == {"digits.int8acc.yaml", "ratchet.int8acc.yaml", "engines.int8acc.yaml"}


@pytest.mark.parametrize("name", SPECS)
def test_its_specs_load(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SPECS[name], encoding="utf-8")
    assert [case.name for case in load_spec(tmp_path / name)] == [name.partition(".")[0]]


def test_its_specs_run(project: pytest.Pytester) -> None:
    for name, text in SPECS.items():
        fast = text.replace("method: entropy", "method: minmax")
        (project.path / name).write_text(fast, encoding="utf-8")
    arguments = ("--int8acc", "--int8acc-backend=onnxruntime", "-k", "not engines")
    recorded = project.runpytest(*LOAD, *arguments, "--int8acc-update=missing")
    recorded.assert_outcomes(passed=2, deselected=1)
    project.runpytest(*LOAD, *arguments).assert_outcomes(passed=2, deselected=1)
    assert (project.path / "__int8acc__" / "ratchet" / "ratchet.json").is_file()


def test_its_tests_pass(project: pytest.Pytester) -> None:
    for name, text in TESTS.items():
        (project.path / name).write_text(text, encoding="utf-8")
    detector = ZOO["yolo"]()
    onnx.save(detector, project.path / "detector.onnx")
    feeds = [sample_feed(detector, seed)["images"] for seed in range(8)]
    np.save(project.path / "data" / "street.npy", feeds[0])
    np.save(project.path / "data" / "street_calibration.npy", np.concatenate(feeds[1:]))
    (project.path / "models").mkdir()
    for name in re.findall(r'"(\w+)"', re.findall(r"MODELS = .*", README)[0]):
        onnx.save(ZOO[name](), project.path / "models" / f"{name}.onnx")
        (project.path / "models" / f"{name}.int8acc.yaml").write_text(MODEL_SPEC.format(name=name))
    project.runpytest(*LOAD).assert_outcomes(passed=6)


def test_its_failure_is_what_pytest_prints(pytester: pytest.Pytester) -> None:
    shutil.copytree(ROOT / "example_project", pytester.path, dirs_exist_ok=True)
    result = pytester.runpytest(*LOAD, "--runxfail", "digits_by_hand.int8acc.yaml")
    printed = next(text for found, text in BLOCK.findall(README) if "INT8 accuracy:" in text)

    def steady(line: str) -> str:
        """``line`` without what differs from run to run and from machine to machine."""
        return re.sub(r"\s+", " ", re.sub(r"\d[\d.]*", "#", line)).strip()

    shown = [steady(line) for line in printed.splitlines()]
    told = [steady(line) for line in result.outlines]
    start = told.index(shown[0])
    assert told[start : start + len(shown)] == shown


def test_no_path_of_a_machine_is_in_a_document() -> None:
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("example_project/*.md")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|Users)/", text), path.name


def test_links_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("example_project/*.md")):
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "pytest_int8acc"
    rooms = {p.name for p in package.iterdir() if p.suffix == ".py" and p.name != "__init__.py"}
    rooms |= {f"{p.parent.name}/" for p in package.glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{re.escape(room)}", text)} == set()
    listed = set(re.findall(r"\b[a-z_]+\.py\b", text)) - {"test_layers.py"}
    assert {name for name in listed if not list(package.rglob(name))} == set()
