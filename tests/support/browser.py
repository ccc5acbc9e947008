"""Chromium without a window, driven over a pipe by the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: Chromium drops keys that come before a page is first painted, unless ``--allow-pre-commit-input`` is given.
FLAGS = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe"),
    *("--allow-pre-commit-input", "--disable-background-networking"),
)
#: Key to its code for Windows, by which Chromium knows it, and the text it types.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " ")}


class Page:
    """One page; what it asks the network for is in ``requests``."""

    def __init__(self, out: BinaryIO, into: BufferedReader) -> None:
        self._out, self._into, self._id, self._session, self._rest = out, into, 0, "", b""
        self.requests: list[str] = []
        self.file = Path()
        """What tests open, for those that share a page."""
        self._loaded = False
        (target,) = (t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What a command gives, once it is done."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (told := self._read()).get("id") != self._id:
            pass
        assert "error" not in told, told
        return told["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._into.read1(1 << 16)
            assert more, "Chromium has gone"
            self._rest += more
        data, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(data)
        if told.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["params"]["request"]["url"])
        self._loaded |= told.get("method") == "Page.loadEventFired"
        return told

    def open(self, path: Path, width: int = 1366, height: int = 768, *, place: str = "") -> None:
        """Show a file in a window of that size; a narrow one is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._loaded = False
        self.call("Page.navigate", url="about:blank")
        while not self._loaded:
            self._read()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri() + place)
        while not self._loaded:
            self._read()
        # Two frames later the page has been painted, and Chromium drops no key.
        self.value("new Promise(painted => requestAnimationFrame(() => requestAnimationFrame(painted)))")

    def media(self, media: str = "", scheme: str = "light") -> None:
        """As for print or screen, light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def value(self, expression: str) -> Any:
        """What JavaScript gives."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key; ``modifiers`` 8 is Shift."""
        code, text = KEYS[key]
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self.call("Browser.close")

    def pdf(self) -> bytes:
        """The page printed on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True, **size)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own; it ends with the block."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    command = [str(CHROMIUM), *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
    # Chromium reads from 3 and writes to 4
    moved = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", moved, "bash", *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    with os.fdopen(ours_out, "wb") as out, os.fdopen(ours_in, "rb") as into:
        try:
            page = Page(out, into)
            yield page
            page.close()
        finally:
            process.kill() if process.poll() is None else None
            process.wait(30)
