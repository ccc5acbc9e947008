import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_int8acc import CriterionError, DataError
from pytest_int8acc.data import open_dataset
from pytest_int8acc.data.scripts import load_function, run_user
from pytest_int8acc.tensors import TensorInfo

X = TensorInfo("x", np.dtype("float32"), ("N",))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> object:
    path, modules = list(sys.path), set(sys.modules)
    yield
    assert sys.path == path
    assert not {m for m in set(sys.modules) - modules if "helper" in m or "int8acc_" in m}


def test_a_function_is_loaded_and_called(tmp_path: Path) -> None:
    write(tmp_path, "metrics.py", "def add(a, b):\n    return a + b\n")
    assert load_function("metrics.py:add", tmp_path)(1, 2) == 3
    assert run_user("metrics.py:add", load_function("metrics.py:add", tmp_path), 1, 2) == 3


def test_each_load_runs_the_script_afresh(tmp_path: Path) -> None:
    write(tmp_path, "m.py", "calls = []\ndef f():\n    calls.append(1)\n    return len(calls)\n")
    one, other = load_function("m.py:f", tmp_path), load_function("m.py:f", tmp_path)
    assert [one(), one(), other()] == [1, 2, 1]


def test_folders_may_have_helpers_of_the_same_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path, f"{folder}/helper.py", f"name = '{folder}'\n")
        write(tmp_path, f"{folder}/helpers/deep.py", f"name = '{folder}'\n")
        script = "import helper\ndef now():\n    return helper.name\ndef later():\n    import helper\n"
        script += "    from helpers import deep\n    return helper.name + deep.name\n"
        write(tmp_path, f"{folder}/m.py", script)
    functions = [load_function(f"{f}/m.py:{n}", tmp_path) for f in "ab" for n in ("now", "later")]
    assert [function() for function in functions] == ["a", "aa", "b", "bb"]
    assert [function() for function in reversed(functions)] == ["bb", "b", "aa", "a"]


def test_the_callers_module_of_the_same_name_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "helper.py", "name = 'mine'\n")
    script = "import helper\ndef f():\n    import helper\n    return helper.name\n"
    write(tmp_path, "m.py", script)
    function = load_function("m.py:f", tmp_path)
    theirs = ModuleType("helper")
    monkeypatch.setitem(sys.modules, "helper", theirs)
    assert function() == "mine"
    assert sys.modules["helper"] is theirs


def test_a_helper_keeps_its_state_between_calls(tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "calls = []\n")
    write(
        tmp_path,
        "m.py",
        "def f():\n    import helper\n    helper.calls.append(1)\n    return len(helper.calls)\n",
    )
    function = load_function("m.py:f", tmp_path)
    assert [function(), function()] == [1, 2]


def test_a_generator_may_import_late_and_use_dataclasses(tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "value = 7\n")
    script = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    script += "@dataclass\nclass A:\n    x: float\n"
    script += "def load():\n    yield {'x': [A(1.0).x]}\n    import helper\n"
    write(tmp_path, "m.py", script + "    yield {'x': [float(helper.value)]}\n")
    batches = open_dataset("m.py:load", [X], base=tmp_path).batches()
    path = list(sys.path)
    assert next(batches).feed["x"].tolist() == [1]
    assert sys.path == path
    assert [batch.feed["x"].tolist() for batch in batches] == [[7]]


def test_a_folder_that_is_importable_anyway_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "shared_by_all.py", "value = []\n")
    write(tmp_path, "m.py", "import shared_by_all\ndef f():\n    return shared_by_all.value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    value = load_function("m.py:f", tmp_path)()
    assert sys.modules["shared_by_all"].value is value
    monkeypatch.delitem(sys.modules, "shared_by_all")


@pytest.mark.parametrize(
    ("script", "ref", "parts"),
    [
        (None, "loaders.py:load", ["loaders.py:load: no such file"]),
        ("", "loader.py:load", ["no such file", "did you mean 'loaders.py'?"]),
        ("", "loaders.py", ["names no function", "loaders.py:function"]),
        ("", "loaders.py:", ["names no function", "loaders.py:function"]),
        ("", "loaders:load", ["names no function"]),
        ("def load(:\n", "loaders.py:load", ["loaders.py:1: SyntaxError: "]),
        ("x = 1\n  y = 2\n", "loaders.py:load", ["loaders.py:2: IndentationError: "]),
        ("\nimport not_there\n", "loaders.py:load", ["loaders.py:2: ModuleNotFoundError: ", "'not_there'"]),
        ("\n\n1 / 0\n", "loaders.py:load", ["loaders.py:3: ZeroDivisionError: division by zero"]),
        ("raise SystemExit(3)\n", "loaders.py:load", ["loaders.py:1: SystemExit: 3"]),
        ("def laod(): pass\n", "loaders.py:load", ["has no 'load'", "did you mean 'laod'?", "it has laod"]),
        ("x = 1\n", "loaders.py:load", ["has no 'load'", "it has no functions"]),
        ("load = 3\n", "loaders.py:load", ["'load' is of type int", "expected a function"]),
        ("x = '\0'\n", "loaders.py:load", ["loaders.py:load", "null bytes"]),
    ],
)
def test_scripts_that_cannot_be_loaded(
    tmp_path: Path, script: str | None, ref: str, parts: list[str]
) -> None:
    if script is not None:
        write(tmp_path, "loaders.py", script)
    with pytest.raises(CriterionError) as caught:
        load_function(ref, tmp_path, CriterionError)
    for part in parts:
        assert part in str(caught.value)


def test_a_folder_named_like_a_script(tmp_path: Path) -> None:
    (tmp_path / "m.py").mkdir()
    with pytest.raises(DataError, match=r"m.py is no Python file"):
        load_function("m.py:f", tmp_path)


def test_the_innermost_line_of_the_users_folder_is_blamed(tmp_path: Path) -> None:
    write(tmp_path, "sub/helper.py", "import json\n\ndef parse(text):\n    return json.loads(text)\n")
    write(tmp_path, "sub/m.py", "import helper\ndef f():\n    return helper.parse('{')\n")
    with pytest.raises(DataError, match=r"^sub/helper.py:4: JSONDecodeError: .*\(in sub/m.py:f\)$"):
        run_user("sub/m.py:f", load_function("sub/m.py:f", tmp_path))
    write(tmp_path, "sub/broken.py", "def (\n")
    write(tmp_path, "sub/n.py", "import broken\n")
    with pytest.raises(DataError, match=r"^sub/broken.py:1: SyntaxError"):
        load_function("sub/n.py:f", tmp_path)


def test_a_library_below_the_users_folder_is_not_blamed(tmp_path: Path) -> None:
    write(tmp_path, "site-packages/lib_helper.py", "def f():\n    raise OSError('disk')\n")
    script = "import sys, pathlib\nlib = str(pathlib.Path(__file__).parent / 'site-packages')\n"
    script += "sys.path.append(lib)\nimport lib_helper\nsys.path.remove(lib)\ndef f():\n    lib_helper.f()\n"
    write(tmp_path, "m.py", script)
    with pytest.raises(DataError, match=r"^m.py:7: OSError: disk"):
        run_user("m.py:f", load_function("m.py:f", tmp_path))
    del sys.modules["lib_helper"]


def test_any_callable_can_be_run() -> None:
    def metric(outputs: object) -> None:
        raise ValueError

    with pytest.raises(CriterionError, match=r"^test_scripts.py:\d+: ValueError \(in metric\)$"):
        run_user("metric", metric, 1, error=CriterionError)
    with pytest.raises(CriterionError, match=r"^sum: TypeError: "):
        run_user("sum", sum, 1, error=CriterionError)


def test_an_indexed_loader_is_iterated(tmp_path: Path) -> None:
    script = "class L:\n  def __getitem__(self, i):\n    return [{'x': [0.0]}, {'x': [1.0]}][i]\n"
    write(tmp_path, "m.py", script + "def load():\n    return L()\n")
    batches = open_dataset("m.py:load", [X], base=tmp_path).batches()
    assert [batch.feed["x"].tolist() for batch in batches] == [[0], [1]]
