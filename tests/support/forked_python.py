"""A stand-in for ``sys.executable`` whose processes are forked, with pytest and the package imported.

A start of pytest with the package takes a second of CPU time, and so does each worker of pytest-xdist. A
server imports them once. The stand-in is a small script: it sends its arguments, environment and files to the
server, which forks a process for it, and it ends as that process ends. A signal that reaches the script is
passed on. If the script is killed, its process is killed.

What a process imports, how much memory and time it takes and what a signal to its group does cannot be tested
this way.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

#: Python itself, for what cannot be tested in a forked process.
PYTHON = sys.executable
#: The script that stands for Python, without an import that takes long.
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
try:
    server.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
request = {{
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
}}
data = json.dumps(request).encode()
socket.send_fds(server, [len(data).to_bytes(8, "big")], [0, 1, 2])
server.sendall(data)
child = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big")
def pass_on(number, frame):
    os.kill(child, number)
if child:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    answer = server.recv(8, socket.MSG_WAITALL)
    status = int.from_bytes(answer, "big", signed=True) if answer else 1
    if status >= 0:
        os._exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


@contextlib.contextmanager
def forked_python(*load: str) -> Iterator[str]:
    """The path of the script; the server of its processes ends with the block.

    Args:
        load: Options with which pytest loads the package.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory(prefix="python-") as folder:
        address, script = Path(folder) / "socket", Path(folder) / "python"
        script.write_text(_CLIENT.format(python=PYTHON, address=str(address)))
        script.chmod(0o755)
        with subprocess.Popen(
            [PYTHON, __file__, str(address), str(script), *load],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield str(script)
            server.stdin.close()


def _loaded(load: list[str]) -> None:
    """Import the package in a run of pytest, which rewrites it, so that later runs find it rewritten."""

    class Plugin:
        @staticmethod
        def pytest_configure() -> None:
            import pytest_int8acc

            for module in pkgutil.walk_packages(pytest_int8acc.__path__, "pytest_int8acc."):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
            for name in ("numpy.ma", "onnxruntime", "pydantic.type_adapter", "xdist.remote", "yaml"):
                importlib.import_module(name)

    options = ["--collect-only", "-pno:cacheprovider", "-pno:faulthandler", *load]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*options, f"-c{os.devnull}", f"--rootdir={folder}", folder], plugins=[Plugin()])


class _Server:
    """Forks a process for each script that connects."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._waiting, self._wakes = os.pipe()
        for end in (self._waiting, self._wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes)
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        for file in (self._listener.fileno(), self._waiting, 0):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Serve until standard input is closed; returns in forked processes, with their request and files."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    for child in self._children:
                        os.kill(child, signal.SIGKILL)
                    os._exit(0)
                elif key.fd == self._waiting:
                    os.read(self._waiting, 1 << 12)
                    self._reap()
                elif key.fd == self._listener.fileno():
                    request = self._forked()
                    if request is not None:
                        return request
                elif key.data in self._children:  # its script was killed
                    self._selector.unregister(key.fd)
                    os.kill(key.data, signal.SIGKILL)

    def _forked(self) -> tuple[dict[str, Any], list[int]] | None:
        """Fork for the next script; its request and files in the new process, None in the server."""
        script, _ = self._listener.accept()
        length, files, _, _ = socket.recv_fds(script, 8, 3)
        request = json.loads(script.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
        is_understood = _understood(request["arguments"])
        child = os.fork() if is_understood else 0
        if is_understood and child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._waiting, self._wakes):
                os.close(end)
            self._selector.close()
            self._listener.close()
            for other in (script, *self._children.values()):
                other.close()
            return request, files
        for file in files:
            os.close(file)
        script.sendall(child.to_bytes(8, "big"))
        if child:
            self._children[child] = script
            self._selector.register(script, selectors.EVENT_READ, child)
        else:
            script.close()
        return None

    def _reap(self) -> None:
        """Tell the scripts of processes that have ended how they ended."""
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            script = self._children.pop(child)
            with contextlib.suppress(KeyError):
                self._selector.unregister(script)
            with contextlib.suppress(OSError):
                script.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
            script.close()


def _understood(arguments: list[str]) -> bool:
    """Whether these are arguments of pytest or of a worker of pytest-xdist. Others get Python itself."""
    return arguments[:2] == ["-u", "-c"] or arguments[:2] == ["-m", "pytest"] or arguments[:1] == ["-mpytest"]


def _become(request: dict[str, Any], files: list[int], base: list[str], script: str) -> None:
    """Take the place of the script's process, with what Python would set up at its start."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["ignored"] else signal.default_int_handler)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    is_unbuffered = request["arguments"][0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = _text(1, "strict", is_unbuffered)
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", is_unbuffered)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [os.getcwd(), *filter(None, path), *base]
    sys.executable = script
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    first, *rest = request["arguments"]
    if first == "-u":
        sys.argv = ["-c", *rest[2:]]
        exec(compile(rest[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = ["pytest", *(rest[1:] if first == "-m" else rest)]
        sys.exit(pytest.main())


def _text(file: int, errors: str, is_unbuffered: bool) -> io.TextIOWrapper:
    raw = open(file, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    is_line_buffered = file == 2 or os.isatty(file)
    return io.TextIOWrapper(raw, errors=errors, line_buffering=is_line_buffered, write_through=is_unbuffered)


def _ended(action: Any) -> NoReturn:
    """Do ``action`` and end the process as Python does, but for the search for unreachable objects."""
    code = 0
    try:
        action()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            code = end.code or 0
        else:
            print(end.code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 255)


def main() -> None:
    """Serve at the address of the first argument, for the script of the second; pytest gets the others."""
    address, script, *load = sys.argv[1:]
    own = {str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    base = [path for path in sys.path if path not in own]
    _loaded(load)
    gc.freeze()  # no forked process searches what they share, which would copy it
    server = _Server(address)
    print("ready", flush=True)
    request, files = server.serve()
    _ended(lambda: _become(request, files, base, script))


if __name__ == "__main__":
    main()
