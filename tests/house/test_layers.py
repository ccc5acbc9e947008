"""The house's rules, held by reading the imports: they run downward, and few rooms know a heavy library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packages import trees

import pytest_int8acc

ROOT = Path(pytest_int8acc.__file__).parent
PACKAGE = ROOT.name

#: From the top; a room imports from rooms below it.
ROOMS_DOWNWARD = (
    *("plugin", "api", "init", "answer", "report", "fix", "lab", "case"),
    *("goldens", "search", "observers", "runtime", "scores", "spec", "data", "graph"),
    *("settings", "clock", "results", "tensors", "files", "errors", "names"),
)
FLOOR = {room: number for number, room in enumerate(ROOMS_DOWNWARD)}

#: Library: the rooms that may import it.
ONLY_IN = {
    "onnxruntime": {"runtime"},
    "tensorrt": {"runtime"},
    "tensorrt_rtx": {"runtime"},
    "polygraphy.backend": {"runtime"},
    "fsspec": {"runtime"},
    "pytest": {"plugin"},
    "_pytest": set(),
    "xdist": set(),
}
#: Room: the libraries that it may not import, wherever in a module.
NOT_IN = {
    "search": {"onnx", "pytest"},
    "spec": {"numpy", "onnx"},
    "graph": {"onnxruntime", "tensorrt", "polygraphy"},
}
#: Modules on the way of every pytest run: nothing beyond pytest and the standard library.
LIGHT = ("__init__", "plugin", "settings", "clock", "errors", "names", "files", "results", "report")
#: The rooms that ``report/`` sees.
SEEN_BY_REPORT = {"report", "results", "errors", "names", "files", "tensors"}
#: Modules of these rooms that are imported when a test first asks for a fixture.
AT_FIRST_USE = {"plugin.workbench"}
#: What they may import when pytest starts; the time of the import is measured below.
HEAVY = {
    *("numpy", "onnx", "onnxruntime", "tensorrt", "polygraphy", "yaml", "pydantic", "filelock"),
    *("fsspec", "jinja2"),
}


@pytest.fixture(scope="module")
def modules() -> list[tuple[str, str, ast.Module]]:
    """Room, dotted name and syntax tree of every module of the package."""
    split = {name.removesuffix(".py"): tree for name, tree in trees().items()}
    return [(name.partition("/")[0], name.replace("/", "."), tree) for name, tree in split.items()]


@pytest.fixture(scope="module")
def byte_code(workers_folder: Path) -> Path:
    """Where new interpreters keep byte code."""
    return workers_folder / "byte code"


def imports(tree: ast.AST, *, top_only: bool = False) -> Iterator[str]:
    """Dotted names of all that ``tree`` imports, ``from a import b`` as ``a.b``."""
    for node in ast.iter_child_nodes(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they lead"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, library: str) -> bool:
    return name == library or name.startswith(library + ".")


def test_imports_run_downward(modules):
    for room, name, tree in modules:
        if room == "__init__":
            continue
        assert room in FLOOR, f"{name}: a new room; say in ROOMS_DOWNWARD where it stands"
        for imported in imports(tree):
            if not is_in(imported, PACKAGE):
                continue
            other = imported.split(".")[1]
            assert other in FLOOR, f"{name} imports {imported}: name the module that defines it"
            assert other == room or FLOOR[other] > FLOOR[room], (
                f"{name} imports {imported}, which is not below it"
            )


def test_no_modules_import_each_other(modules):
    """Not by an import within a function or for types either."""
    trees = {f"{PACKAGE}.{name.removesuffix('.__init__')}": tree for _, name, tree in modules}
    needs = {}
    for module, tree in trees.items():
        # ``from a import b`` names module ``a.b``, or ``b`` within ``a``.
        found = {name if name in trees else name.rpartition(".")[0] for name in imports(tree)}
        needs[module] = (found & trees.keys()) - {module}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import each other: {' -> '.join(error.args[1])}")


def test_libraries_stay_in_their_rooms(modules):
    for room, name, tree in modules:
        for imported in imports(tree):
            for library, rooms in ONLY_IN.items():
                assert not is_in(imported, library) or room in rooms, f"{name} imports {imported}"
            for library in NOT_IN.get(room, ()):
                assert not is_in(imported, library), f"{name} imports {imported}"


def test_report_sees_results_and_nothing_else(modules):
    for room, name, tree in modules:
        if room == "report":
            for imported in imports(tree):
                library = imported.split(".")[0]
                ours = imported.split(".")[1] if library == PACKAGE else ""
                known = library in sys.stdlib_module_names | {"pydantic", "jinja2"} or ours in SEEN_BY_REPORT
                assert known, f"{name} imports {imported}"


def test_light_modules_import_nothing_heavy_at_the_top(modules):
    for room, name, tree in modules:
        if room in LIGHT and name not in AT_FIRST_USE:
            for imported in imports(tree, top_only=True):
                library, *inner = imported.split(".")
                light = library in sys.stdlib_module_names | {"pydantic"} or library == "pytest"
                assert light or (library == PACKAGE and inner[0] in LIGHT), (
                    f"{name} imports {imported} at the top"
                )


def test_the_tests_can_see_a_breach():
    tree = ast.parse("def f():\n    from onnxruntime import InferenceSession\nimport _pytest.nodes")
    assert list(imports(tree)) == ["_pytest.nodes", "onnxruntime.InferenceSession"]
    assert list(imports(tree, top_only=True)) == ["_pytest.nodes"]


def fresh_python(code: str, cache: Path) -> str:
    """What ``code`` prints in a new interpreter that keeps byte code in ``cache``."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_entry_point_loads_nothing_heavy(byte_code):
    loaded = fresh_python(
        f"import sys, {PACKAGE}.plugin.hooks, {PACKAGE}.plugin.items;"
        f"print(sorted({HEAVY!r} & set(sys.modules)))",
        byte_code,
    )
    assert loaded == "[]"


def test_the_entry_point_costs_two_milliseconds_at_most_where_pytest_takes_130(byte_code):
    code = (
        "import time, gc; gc.disable(); clock = time.process_time; start = clock(); import pytest;"
        f"between = clock(); import {PACKAGE}.plugin.hooks, {PACKAGE}.plugin.fixtures;"
        "print(between - start, clock() - between)"
    )
    fresh_python(code, byte_code)  # writes byte code
    floors, costs = [], []
    for _ in range(20):  # a busy machine only adds to what is measured: the least of many tries counts
        floor, cost = map(float, fresh_python(code, byte_code).split())
        floors.append(floor)
        costs.append(cost)
        if len(costs) >= 3 and min(costs) / min(floors) <= 2 / 130:
            return
    assert min(costs) / min(floors) <= 2 / 130


def test_a_case_that_passes_does_not_load_what_follows_one_that_fails(byte_code):
    rooms = [f"{PACKAGE}.{room}" for room in ("answer.steps", "fix", "lab", "report.view")]
    code = (
        f"import sys, {PACKAGE}.answer, {PACKAGE}.plugin.items;"
        f"print(sorted(set({rooms!r}) & set(sys.modules)))"
    )
    assert fresh_python(code, byte_code) == "[]"


@pytest.mark.parametrize("name", pytest_int8acc.__all__)
def test_public_names_load_on_first_use(name):
    assert getattr(pytest_int8acc, name).__name__ == name
    assert name in dir(pytest_int8acc)


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        _ = pytest_int8acc.chek
