"""What the pages show: commands print what stands below them, specs and tests in them run, links hold.

``REWRITE_GOLDEN=1 pytest tests/house/test_docs.py`` writes what the commands print now into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from plugin_support import LOAD

from pytest_int8acc import Case

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("example_project/**/*.md")})
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What pytest frames a session with; a page shows the rest.
FRAME = re.compile(
    r"=+ (test session starts|FAILURES|ERRORS) =+$|(platform|rootdir:|configfile:|plugins:|created:) "
    r"|collect|Running \d+ items|int8acc: (onnxruntime|tensorrt)|.*\[ *\d+%\]$|bringing up|^$"
)
SUMMARY = re.compile(r"=+ short test summary info =+$")


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each fenced block."""
    return ((language, text) for language, text in BLOCK.findall(page.read_text(encoding="utf-8")))


RUN = [page for page in PAGES if any(language == "console" for language, _ in blocks(page))]


def unframed(lines: Iterable[str], folder: Path) -> list[str]:
    """What a run printed, without pytest's frame and without the folder's own path, which may be cut."""
    kept: list[str] = []
    summary = False
    for line in lines:
        summary = bool(SUMMARY.match(line)) or (summary and line.startswith(("FAILED ", "ERROR ", "XFAIL ")))
        if not summary and not (FRAME.match(line) and (line or not kept or not kept[-1])):
            kept.append(narrowed(re.sub(rf"/\S*\b{re.escape(folder.name)}/", "", line.rstrip())))
    while kept and not kept[-1]:
        kept.pop()
    return kept


def narrowed(line: str, width: int = 100) -> str:
    """A line that pytest has spread over a wide terminal, as on one of ``width`` columns."""
    if title := re.fullmatch(r"([=_!-])\1+( .* )\1+", line):
        return title[2].center(width, title[1])
    if progress := re.fullmatch(r"(.*?) {2,}(\[ *\d+%\])", line):
        return progress[1].ljust(width - len(progress[2])) + progress[2]
    return line


def steady(lines: Iterable[str]) -> list[str]:
    """``lines`` without what differs from run to run and from machine to machine."""
    untimed = (re.sub(r" \(\d+:\d\d:\d\d\)", "", line) for line in lines)
    plain = (re.sub(r"\d[\d.]*(e[+-]\d+)?", "#", line) for line in untimed)
    return [re.sub(r"([=_-])\1+", r"\1", re.sub(r"\s+", " ", line)).strip() for line in plain if line.strip()]


def printed(pytester: pytest.Pytester, command: str) -> list[str]:
    """What a command prints in the present folder; pytest runs in this process."""
    folder = Path.cwd()
    name, *arguments = shlex.split(command)
    if name == "cd":
        os.chdir(arguments[0])
        return []
    if name != "pytest":
        environment = os.environ | {"COLUMNS": "100"}  # which ls obeys
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout.splitlines()
    return unframed(pytester.runpytest(*LOAD, "-p", "no:cacheprovider", *arguments).outlines, folder)


def played(pytester: pytest.Pytester, text: str) -> list[str]:
    """A console block anew: each command with what it prints."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines += [line, *printed(pytester, line[2:])]
    return lines


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a model and the example project."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "1000")  # pages show lines before a terminal wraps them
    monkeypatch.delenv("CI", raising=False)
    example = pytester.path / "example_project"
    ignored = shutil.ignore_patterns("__pycache__", "__int8acc__", "report")
    shutil.copytree(ROOT / "example_project", example, ignore=ignored)
    shutil.copy(example / "digits.onnx", pytester.path / "model.onnx")
    return pytester


@pytest.mark.parametrize("page", RUN, ids=label)
def test_what_a_page_shows_is_what_comes(page: Path, project: pytest.Pytester) -> None:
    whole = page.read_text(encoding="utf-8")
    for language, text in blocks(page):
        if language == "console":
            new = played(project, text)
            if os.environ.get("REWRITE_GOLDEN"):
                whole = whole.replace(f"```console\n{text}```", "\n".join(["```console", *new, "```"]))
            else:
                assert steady(text.splitlines()) == steady(new)
        elif language in ("yaml", "python") and text.startswith("# "):
            place = Path("example_project") if Path("example_project").is_dir() else Path()
            (place / text.partition("\n")[0][2:].strip()).write_text(text, encoding="utf-8")
    page.write_text(whole, encoding="utf-8")


def test_every_example_is_run() -> None:
    """A spec or test that a page shows is named by a command of the page, unless it needs a GPU."""
    for page in (page for page in PAGES if page.name != "ci.md"):
        commands = "\n".join(text for language, text in blocks(page) if language == "console")
        for language, text in blocks(page):
            if language in ("yaml", "python") and "backend: tensorrt" not in text:
                name = text.partition("\n")[0][2:].strip()
                assert f" {name}" in commands, f"{label(page)}: {name}"


SNIPPET = re.compile(r"`((?:int8|baseline|criteria|golden|inputs|plan|search|backend): [^`]+)`")


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_keys_in_prose_make_a_spec(page: Path) -> None:
    for text in SNIPPET.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        shown = yaml.safe_load(text)
        Case.model_validate({"name": "a", "model": "a", "inputs": "a", "int8": {"scales": "s"}, **shown})


def test_commands_that_are_not_run_install_or_need_a_gpu() -> None:
    for page in PAGES:
        bare = re.findall(
            r"^ {4}((?:pytest|pip|python|cd) .*)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        for command in bare:
            assert re.match(r"pip (install|wheel) |python |pytest -n 2|.*-m gpu", command), (
                f"{label(page)}: {command}"
            )


def test_what_a_page_installs_exists() -> None:
    """The clone, or the wheel that is built of it: the package is on no index."""
    listed = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", listed, re.MULTILINE))
    (version,) = re.findall(r'^version = "(.*)"$', PROJECT, re.MULTILINE)
    known = {".", f"pytest_int8acc-{version}-py3-none-any.whl"}
    for page in PAGES:
        installed = re.findall(r"([\w.-]+)\[([a-z,]+)\]", "\n".join(installs(page)))
        assert {what for what, _ in installed} <= known, label(page)
        assert {extra for _, named in installed for extra in named.split(",")} <= extras, label(page)
    assert "pip wheel . --no-deps -w dist" in (ROOT / "README.md").read_text(encoding="utf-8")


def installs(page: Path) -> list[str]:
    """What a page's commands give to ``pip install``."""
    return re.findall(r"pip install (.*)", page.read_text(encoding="utf-8"))


def test_no_message_names_an_extra_of_the_package() -> None:
    """A library is named as an index has it."""
    for path in (ROOT / "pytest_int8acc").rglob("*.py"):
        assert "pytest-int8acc[" not in path.read_text(encoding="utf-8"), label(path)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_no_path_of_a_machine_is_in_a_document() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|Users)/", text), label(page)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        copies = (f"{slug}-{n}" if n else slug for n in range(100))
        found.add(next(each for each in copies if each not in found))
    return found


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_somewhere(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = re.findall(r"\]\((docs/\w+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(linked) == {label(page) for page in ROOT.glob("docs/*.md")}


def test_the_picture_is_one_in_the_dark_too_and_asks_for_nothing() -> None:
    for path in ROOT.glob("docs/*.svg"):
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in text
        assert not re.search(r"(?:href|src|url\()\s*=?\s*[\"']?https?:", text)
        assert path.stat().st_size < 8192


def test_the_workflow_runs_what_is_there_on_the_oldest_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    scripts = {script for step in steps for script in re.findall(r"\.ci/\w+", step.get("run", ""))}
    assert scripts == {f".ci/{path.name}" for path in (ROOT / ".ci").iterdir()}
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)
    oldest = re.findall(r'^requires-python = ">=(.*)"$', PROJECT, re.MULTILINE)
    assert jobs["tests"]["strategy"]["matrix"]["python"][:1] == oldest
    setups = [step["with"] for step in jobs["lowest-versions"]["steps"] if "with" in step]
    assert [setup["python-version"] for setup in setups] == oldest


def test_the_package_is_typed() -> None:
    assert (ROOT / "pytest_int8acc" / "py.typed").is_file()


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "pytest_int8acc"
    rooms = {p.name for p in package.iterdir() if p.suffix == ".py" and p.name != "__init__.py"}
    rooms |= {f"{p.parent.name}/" for p in package.glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{re.escape(room)}", text)} == set()
    listed = set(re.findall(r"\b[a-z_]+\.py\b", text)) - {"test_layers.py"}
    assert {name for name in listed if not list(package.rglob(name))} == set()
