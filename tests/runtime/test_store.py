"""The engine store: made once, whole or not there, damaged is made again, and shared storage behind it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from child import in_child
from kills import steps

from pytest_int8acc import EngineError
from pytest_int8acc.files import read_sealed, seal
from pytest_int8acc.runtime.store import Store, open_store

KEYS = [digit * 64 for digit in "abcd"]
KEY = KEYS[0]
ENGINE = b"engine" * 10
H200 = "TensorRT 8.6.0, NVIDIA H200"
#: What lies in an entry beside its files.
MANIFEST = "int8acc-manifest.json"

pytestmark = pytest.mark.usefixtures("quick_processes")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def fill(folder: Path, data: bytes = ENGINE) -> None:
    (folder / "model.engine").write_bytes(data)
    (folder / "inspector").mkdir()
    (folder / "inspector" / "layers.json").write_text("{}")


def refuse(folder: Path) -> None:
    raise AssertionError("made again")


def content(store: Store, key: str = KEY) -> bytes:
    """What the store has, without making it."""
    with contextlib.closing(store.fetch(key, refuse)) as entry:
        return (entry.folder / "model.engine").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@contextlib.contextmanager
def running(script: str, *arguments: object, cache: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own; the user's cache folder is ``cache``."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    environment = os.environ if cache is None else {**os.environ, "XDG_CACHE_HOME": str(cache)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as child:
        try:
            yield child
        finally:
            child.kill()


def test_an_entry_is_made_once(store):
    first = store.fetch(KEY, fill)
    again = store.fetch(KEY, refuse)
    assert (first.made, again.made) == (True, False)
    assert (again.folder / "model.engine").read_bytes() == ENGINE
    assert (again.folder / "inspector/layers.json").read_text() == "{}"


def test_the_folder_is_marked_as_a_cache(store):
    store.fetch(KEY, fill)
    assert (store.folder / ".gitignore").read_text() == "*\n"
    assert (
        (store.folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )


def test_a_folder_that_holds_something_else_is_not_hidden_from_git(tmp_path):
    (tmp_path / "model.onnx").touch()
    Store(tmp_path).fetch(KEY, fill)
    assert not (tmp_path / ".gitignore").exists()


@pytest.mark.parametrize(
    "error", [EngineError("the builder crashed"), OSError("no GPU"), KeyboardInterrupt()]
)
def test_what_make_raises_passes_and_leaves_nothing(store, error):
    def fail(folder: Path) -> None:
        fill(folder)
        raise error

    with pytest.raises(type(error)) as caught:
        store.fetch(KEY, fail)
    assert caught.value is error
    assert list((store.folder / "entries").iterdir()) == list((store.folder / "temporary").iterdir()) == []
    assert store.fetch(KEY, fill).made


def test_a_disk_filled_by_make_is_one_clear_error(store):
    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(EngineError, match=r"no room left.*No space left.*--int8acc-cache-size"):
        store.fetch(KEY, fail)


def manifest(**content: object) -> Callable[[Path], object]:
    """Writes another manifest."""
    return lambda folder: (folder / MANIFEST).write_text(json.dumps(content))


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.engine", 3)


def replace_by_file(folder: Path) -> None:
    folder.rename(folder.with_name("old"))
    folder.touch()


#: What may have become of an entry.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": truncate,
    "changed": lambda folder: (folder / "model.engine").write_bytes(b"x" + ENGINE[1:]),
    "a file lost": lambda folder: (folder / "inspector" / "layers.json").unlink(),
    "manifest lost": lambda folder: (folder / MANIFEST).unlink(),
    "manifest garbled": lambda folder: (folder / MANIFEST).write_text("{"),
    "manifest of another format": manifest(format=0, files={}),
    "manifest that leads out": manifest(format=1, files={"../../x": {"sha256": "", "nbytes": 0}}),
    "a file in its place": replace_by_file,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_made_again(store, caplog, damage):
    folder = store.fetch(KEY, fill).folder
    damage(folder)
    assert store.fetch(KEY, fill).made
    assert content(store) == ENGINE
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "damaged and will be made again (" in warning


def test_the_least_recently_used_leave_first(tmp_path, caplog):
    caplog.set_level(logging.INFO, "pytest_int8acc")
    store = Store(tmp_path, limit=3 * 1000)
    for number, key in enumerate(KEYS[:2]):
        store.fetch(key, lambda folder: fill(folder, bytes(1000))).close()
        os.utime(tmp_path / "entries" / key / MANIFEST, (number, number))
    store.fetch(KEYS[0], refuse).close()  # used now
    store.fetch(KEYS[2], lambda folder: fill(folder, bytes(1000))).close()
    assert sorted(path.name for path in (tmp_path / "entries").iterdir()) == [KEYS[0], KEYS[2]]
    assert "evicted" in caplog.text


def test_what_is_in_use_or_just_made_stays(tmp_path):
    store = Store(tmp_path, limit=1)
    used = store.fetch(KEYS[0], fill)
    with running(
        """
        import sys, pathlib
        from pytest_int8acc.runtime.store import Store
        entry = Store(pathlib.Path(sys.argv[1])).fetch(sys.argv[2], lambda f: (f / "x").touch())
        print(flush=True)
        sys.stdin.read()
        """,
        tmp_path,
        KEYS[1],
    ) as child:
        child.stdout.readline()
        store.fetch(KEYS[2], fill)
        assert len(list((tmp_path / "entries").iterdir())) == 3
    used.close()
    store.fetch(KEYS[3], fill)
    assert [path.name for path in (tmp_path / "entries").iterdir()] == [KEYS[3]]
    assert not list((tmp_path / "locks").glob(f"{KEYS[1]}.*.use"))


def test_an_entry_that_nobody_holds_any_more_may_leave(tmp_path):
    store = Store(tmp_path, limit=1)
    for _ in range(3):
        entry = store.fetch(KEYS[0], fill)
        del entry
    assert len(list((tmp_path / "locks").glob("*.use"))) == 1
    store.fetch(KEYS[1], fill)
    assert [path.name for path in (tmp_path / "entries").iterdir()] == [KEYS[1]]


MAKE_SLOWLY = """
    import contextlib, sys, time, pathlib
    from pytest_int8acc.runtime.store import open_store
    log = pathlib.Path(sys.argv[2])
    def make(folder):
        with log.open("a") as file:
            file.write("made ")
        time.sleep(float(sys.argv[3]))
        (folder / "model.engine").write_bytes(b"engine" * 10)
    store = open_store(sys.argv[1], None)
    print("ready", flush=True)
    sys.stdin.readline()
    for key in "ab":
        with contextlib.closing(store.fetch(key * 64, make)) as entry:
            assert (entry.folder / "model.engine").read_bytes() == b"engine" * 10
"""


def test_workers_of_xdist_make_each_entry_once(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(
        """
        import time, uuid
        from pathlib import Path
        import pytest
        from pytest_int8acc.runtime.store import Store

        HERE = Path(__file__).parent

        @pytest.mark.parametrize("number", range(4))
        def test_fetch(number):
            def make(folder):
                (HERE / f"made-{uuid.uuid4().hex}").touch()
                time.sleep(0.2)
                (folder / "x").write_text("engine")
            assert (Store(HERE / "store").fetch("a" * 64, make).folder / "x").read_text() == "engine"
        """
    )
    pytester.runpytest_subprocess("-n2", "-p", "no:cacheprovider").assert_outcomes(passed=4)
    assert len(list(pytester.path.glob("made-*"))) == 1


def fill_in_steps(folder: Path) -> None:
    """As :func:`fill`, with half an engine on the disk at one of the steps."""
    with (folder / "model.engine").open("wb") as file:
        file.write(ENGINE[:30])
        file.flush()
        sys.audit("test.step")
        file.write(ENGINE[30:])
    (folder / "inspector").mkdir()
    (folder / "inspector" / "layers.json").write_text("{}")


def assert_sound(store: Store) -> None:
    """Nothing but whole entries, and the next fetch clears what is left; called after a kill."""
    for folder in (store.folder / "entries").glob("*"):
        assert store.fetch(folder.name, refuse)
    store.fetch(KEYS[3], fill)
    assert not list((store.folder / "temporary").iterdir())
    assert (store.folder / ".gitignore").read_text() == "*\n"


@forks
def test_killed_while_making_again_and_evicting_at_any_step(tmp_path):
    found: list[tuple[str, ...]] = []

    def prepare() -> Path:
        store = Store(tmp_path / str(len(found)))
        store.fetch(KEYS[1], fill).close()
        truncate(store.fetch(KEY, fill).folder)
        return store.folder

    def fetch() -> None:
        Store(folder, limit=1).fetch(KEY, fill_in_steps)

    folder = prepare()
    for _ in steps(fetch, inside=False):
        store = Store(folder)
        found.append(tuple(sorted(path.name[0] for path in (folder / "entries").iterdir())))
        if "b" in found[-1]:
            assert store.fetch(KEYS[1], refuse)
        store.fetch(KEY, fill)
        assert content(store) == ENGINE
        assert_sound(store)
        folder = prepare()
    assert set(found) == {("a", "b"), ("b",), ("a",)}


def test_a_folder_left_by_a_dead_process_is_cleared_and_that_of_a_living_one_is_not(store):
    with running(
        """
        import sys, pathlib
        from pytest_int8acc.runtime.store import Store
        def make(folder):
            (folder / "half").touch()
            print(flush=True)
            sys.stdin.read()
        Store(pathlib.Path(sys.argv[1])).fetch(sys.argv[2], make)
        """,
        store.folder,
        KEYS[1],
    ) as child:
        child.stdout.readline()
        store.fetch(KEYS[0], fill)
        (left,) = (store.folder / "temporary").iterdir()
        assert (left / "half").exists()
        child.kill()
        child.wait()
        store.fetch(KEYS[2], fill)
        assert not list((store.folder / "temporary").iterdir())


def test_waiting_for_another_process_is_said(store, monkeypatch):
    with running(
        """
        import sys, pathlib
        from pytest_int8acc.runtime.store import Store
        def make(folder):
            print(flush=True)
            sys.stdin.readline()
        Store(pathlib.Path(sys.argv[1])).fetch(sys.argv[2], make)
        """,
        store.folder,
        KEY,
    ) as child:
        child.stdout.readline()
        said: list[str] = []

        def go_on(message: str, *arguments: object) -> None:
            said.append(message % arguments)
            print(file=child.stdin, flush=True)

        monkeypatch.setattr("pytest_int8acc.runtime.store.logger.info", go_on)
        entry = store.fetch(KEY, refuse)
        assert not entry.made
        assert entry.waited >= 1
    assert said == ["waiting for another process, which makes engine aaaaaaaaaaaa"]


WHAT_TO_DO = r"(?s)engine store .*--int8acc-cache-dir.*--int8acc-no-cache"


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match=WHAT_TO_DO):
        Store(tmp_path / "file" / "store").fetch(KEY, fill)


@forks
def test_a_read_only_folder_is_one_clear_error(store):
    store.fetch(KEY, fill)
    folders = [store.folder, *(path for path in store.folder.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)

    def fetch() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        store.fetch(KEYS[1], fill)

    try:
        assert "Permission denied" in (text := in_child(fetch))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert "Make it writable, or name another folder with --int8acc-cache-dir" in text
    assert content(store) == ENGINE


@forks
@pytest.mark.parametrize("room", [3, 50])
def test_a_full_disk_is_one_clear_error(store, room):
    resource = pytest.importorskip("resource")

    def fetch() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # as ENOSPC: a write fails half-way
        store.fetch(KEY, fill)

    text = in_child(fetch)
    assert "no room left" in text
    assert "give a limit with --int8acc-cache-size" in text
    assert store.fetch(KEY, fill).made
    assert not list((store.folder / "temporary").iterdir())


def test_timing_caches_are_kept_by_provenance(store):
    path = store.timing_cache(H200)
    path.write_bytes(seal(b"timings"))
    assert read_sealed(store.timing_cache(H200), "timing cache") == b"timings"
    assert read_sealed(store.timing_cache("TensorRT 8.6.0, NVIDIA L4"), "timing cache") is None


def test_a_damaged_timing_cache_is_not_used(store, caplog):
    path = store.timing_cache(H200)
    path.write_bytes(seal(b"timings")[:-1])
    assert read_sealed(path, "timing cache") is None
    assert "damaged and is not used" in caplog.text


def test_the_default_folder_follows_the_user(tmp_path, monkeypatch):
    def default() -> Path:
        return open_store(None, 5).folder

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default() == tmp_path / "pytest-int8acc" / "engines"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    if platformdirs.user_cache_path("a").is_absolute():
        assert default() == tmp_path / ".cache" / "pytest-int8acc" / "engines"
    else:  # older versions take it as it is
        with pytest.raises(EngineError, match="XDG_CACHE_HOME is relative"):
            default()
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default() == tmp_path / ".cache" / "pytest-int8acc" / "engines"
    assert open_store("~/engines", None).folder == tmp_path / "engines"
    monkeypatch.setattr(os.path, "expanduser", str)  # as for a user without a home
    with pytest.raises(EngineError, match=r"no folder to keep engines in .*--int8acc-cache-dir"):
        default()


# --- shared storage


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path) -> Iterator[str]:
    """A folder in one of fsspec's file systems."""
    fsspec = pytest.importorskip("fsspec")
    yield f"memory://{tmp_path}" if request.param == "memory" else (tmp_path / "shared").as_uri()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def machine(tmp_path, url, monkeypatch) -> Callable[[str], Store]:
    """The store of ``url`` as machines see it, each with a cache folder of its own."""

    def opened(name: str) -> Store:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return open_store(url, None)

    return opened


def stored(url: str) -> list[str]:
    """Names in shared storage."""
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in system.find(path))


def upload(url: str, data: bytes) -> None:
    """Put an archive where shared storage keeps an entry."""
    import fsspec

    system, path = fsspec.core.url_to_fs(f"{url}/entries/{KEY}.zip")
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, data)


def test_an_entry_made_by_one_machine_is_there_for_the_other(machine, url):
    assert machine("a").fetch(KEY, fill).made
    downloaded = machine("b").fetch(KEY, refuse)
    assert not downloaded.made
    assert (downloaded.folder / "model.engine").read_bytes() == ENGINE
    assert (downloaded.folder / "inspector/layers.json").read_text() == "{}"
    assert {path.name for path in downloaded.folder.iterdir()} == {MANIFEST, "inspector", "model.engine"}
    assert stored(url) == [f"{KEY}.zip"]


def test_the_local_store_comes_first(machine, url):
    import fsspec

    machine("a").fetch(KEY, fill)
    system, path = fsspec.core.url_to_fs(url)
    system.rm(path, recursive=True)
    assert content(machine("a")) == ENGINE
    assert machine("b").fetch(KEY, fill).made


def zipped(**changes: bytes) -> bytes:
    """An archive with the manifest of an entry, and other files than it says."""
    files = {"model.engine": ENGINE, "inspector/layers.json": b"{}"}
    records = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}
        for name, data in files.items()
    }
    manifest = json.dumps({"format": 1, "files": records}).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in {MANIFEST: manifest, **files, **changes}.items():
            file.writestr(name, data)
    return content.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>404</html>",
        zipped()[:-30],
        zipped()[:60],
        zipped().replace(ENGINE, ENGINE.upper()),
        zipped(**{"model.engine": ENGINE[1:]}),
        zipped(**{"model.engine": b"x" + ENGINE[1:]}),
        zipped(**{MANIFEST: b"{"}),
        zipped(**{MANIFEST: b'{"format": 1, "files": {"../../escaped": {"sha256": "", "nbytes": 0}}}'}),
    ],
    ids=["empty", "page", "no end", "start", "bits", "short", "digest", "manifest", "path"],
)
def test_a_damaged_entry_in_shared_storage_is_made_again_and_uploaded(machine, url, caplog, data):
    upload(url, data)
    assert machine("a").fetch(KEY, fill).made
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"entries/{KEY}.zip is damaged and will be made again (" in warning
    assert content(machine("b")) == ENGINE


def test_an_archive_writes_nothing_outside_its_folder(machine, url, tmp_path):
    upload(url, zipped(**{"../../escaped": b"x", str(tmp_path / "escaped"): b"x"}))
    machine("a").fetch(KEY, fill)
    outside = [path for path in tmp_path.rglob("*escaped*") if "entries" not in path.parts]
    assert not outside


def test_of_two_that_make_the_same_entry_one_stays_whole(machine, url):
    def make(folder: Path) -> None:
        machine("b").fetch(KEY, fill)
        fill(folder, b"another tactic")

    assert machine("a").fetch(KEY, make).made
    assert content(machine("b")) == ENGINE
    assert content(machine("c")) == b"another tactic"
    assert stored(url) == [f"{KEY}.zip"]


def test_two_processes_share_a_file_system(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    log, shared = tmp_path / "log", (tmp_path / "shared").as_uri()
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(running(MAKE_SLOWLY, shared, log, 0.1, cache=tmp_path / name))
            for name in "pq"
        ]
        for child in children:
            child.stdout.readline()
        for child in children:
            child.communicate("go\n", timeout=60)
            assert child.returncode == 0
    assert log.read_text() in ("made " * 2, "made " * 3, "made " * 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "r"))
    third = open_store(shared, None)
    assert [content(third, key) for key in KEYS[:2]] == [ENGINE] * 2


@forks
def test_killed_while_uploading_at_any_step(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    found: list[bool] = []

    def machine(name: str) -> Store:
        here = tmp_path / str(len(found))
        monkeypatch.setenv("XDG_CACHE_HOME", str(here / name))
        return open_store((here / "shared").as_uri(), None)

    for _ in steps(lambda: machine("a").fetch(KEY, fill_in_steps), inside=False):
        seen = (tmp_path / str(len(found)) / "shared" / "entries" / f"{KEY}.zip").exists()
        assert machine("c").fetch(KEY, fill).made is not seen
        assert content(machine("d")) == ENGINE
        found.append(seen)
    assert found == sorted(found)
    assert set(found) == {False, True}


NOTHING = FileNotFoundError()
FAILURES: dict[str, dict[str, Exception | None]] = {
    "opened": {"__init__": ConnectionError("no route to host")},
    "asked": {"get_file": TimeoutError("timed out")},
    "no bucket": {"get_file": NOTHING, "makedirs": FileNotFoundError("The specified bucket does not exist")},
    "written": {"get_file": NOTHING, "makedirs": None, "put_file": PermissionError("403 Forbidden")},
}


@pytest.mark.parametrize("failures", FAILURES.values(), ids=FAILURES)
def test_storage_that_fails_costs_one_warning(tmp_path, caplog, failures, monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def failing(error: Exception | None) -> Callable[..., None]:
        def method(*args: object, **kwargs: object) -> None:
            if error is not None:
                raise error

        return method

    methods = {name: failing(error) for name, error in failures.items()}
    kind = type("Unreachable", (fsspec.AbstractFileSystem,), methods)
    fsspec.register_implementation("unreachable", kind, clobber=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = open_store("unreachable://joe:hunter2@host/engines", None)
    for key in KEYS[:2]:
        assert store.fetch(key, fill).made
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "unreachable://***@host/engines" in warning
    assert f"Engines are kept in {store.folder} alone" in warning
    assert tmp_path in store.folder.parents
    assert content(store) == ENGINE


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense://x", "shared storage nonsense://x fails: ValueError: Protocol not known: nonsense"),
        ("dropbox://x", "shared storage dropbox://x fails: ImportError: DropboxFileSystem requires"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_clear_error(url, said):
    pytest.importorskip("fsspec")
    with pytest.raises(EngineError, match=said):
        open_store(url, None)


def test_without_fsspec_a_url_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(EngineError, match=r"s3://\*\*\*@b/c: .*pip install fsspec"):
        open_store("s3://user:secret@b/c", None)
    assert open_store(str(tmp_path), None).fetch(KEY, fill).made
