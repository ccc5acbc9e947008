"""Declares the settings that can be given on the command line, in a spec and in pytest's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pytest_int8acc.names import safe_url

#: Suffixes of the name of a spec file.
SUFFIXES = (".int8acc.yaml", ".int8acc.yml")

Backend = Literal["auto", "onnxruntime", "tensorrt"]
Missing = Literal["skip", "fail"]
Lint = Literal["auto", "warn", "error", "off"]
Mode = Literal["exact", "native"]
Provider = Literal["cpu", "cuda"]
When = Literal["auto", "always", "off"]
Strategy = Literal[
    "minimal", "bisect", "bisect-reverse", "linear", "linear-reverse", "worst-first", "forward"
]
Goal = Literal["accuracy", "latency"]
Kind = Literal["choice", "count", "flag", "folder", "size"]
#: The number of bytes in each unit of a size.
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def to_bytes(text: str) -> int:
    """Return a size such as ``500M`` or ``20G`` in bytes; raises ValueError for any other text."""
    size = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if size is None or not int(size[1]):
        raise ValueError(f"{text!r} is not a size like 500M or 20G")
    return int(size[1]) * _SIZES[size[2]]


def stem(name: str) -> str:
    """Return the name of a spec file without its suffix."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


class Setting:
    """One setting, as a descriptor: on an instance of ``Settings`` the attribute is the setting's value.

    ``Settings`` is not a dataclass, because creating a dataclass compiles code. That would take most of the
    plugin's import time.
    """

    def __init__(self, default: object, help: str, choices: Any = None, kind: Kind = "count") -> None:
        """Declare a setting; ``choices`` is the Literal type if the value is one of several words."""
        self.name = ""
        self.default = default
        self.help = help
        self.choices: tuple[str, ...] = get_args(choices)
        self.kind: Kind = "choice" if choices else kind

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Settings | None, owner: type) -> Any:
        return self if instance is None else instance.given.get(self.name, self.default)

    def __set__(self, instance: Settings, value: object) -> None:
        raise AttributeError(f"settings are fixed: use but({self.name}=...)")

    @property
    def flag(self) -> str:
        """The name of the command-line option, with its dashes."""
        return "--int8acc-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """The key in the pytest configuration, and the option's name inside pytest."""
        return "int8acc_" + self.name

    @property
    def expected(self) -> str:
        """The values that the setting accepts, in words for messages."""
        match self.kind:
            case "choice":
                return f"one of {', '.join(self.choices)}"
            case "count":
                return "a whole number of 1 or more"
            case "flag":
                return "true or false"
            case "folder":
                return "a folder"
            case "size":
                return "a size like 500M or 20G"

    def parse(self, value: str | int) -> str | int:
        """Return ``value`` in this setting's type; raises ValueError if the setting does not accept it."""
        if not self._accepts(value):
            raise ValueError(f"{value!r} is not {self.expected}")
        if self.kind == "size":
            return to_bytes(str(value))
        return int(value) if self.kind == "count" else value

    def _accepts(self, value: str | int) -> bool:
        """Return whether this setting accepts ``value``. Sizes are not checked here, but in ``to_bytes``."""
        match self.kind:
            case "choice":
                return value in self.choices
            case "count":
                return str(value).isdecimal() and int(value) >= 1
            case "folder":
                return bool(value)
            case "flag" | "size":
                return True

    def read(self, value: Any) -> Any:
        """Return a configured value in this setting's type; None if the value is missing or empty."""
        return None if value is None or value == "" else self.parse(value)


_setting: Any = Setting  # typed as Any, because on an instance the attribute has the type of its value


class Settings:
    """The settings with which one case runs. An attribute gives the value of the setting with its name."""

    backend: Backend = _setting(
        "auto", "runtime of the engines; auto: the best that can run here (default: auto)", Backend
    )
    mode: Mode = _setting(
        "exact",
        "what ONNX Runtime makes of INT8; exact: Q/DQ computed unfused, the same on every CPU; native: "
        "the fused kernels that it would deploy (default: exact)",
        Mode,
    )
    provider: Provider = _setting("cpu", "where ONNX Runtime runs the engines (default: cpu)", Provider)
    samples: int | None = _setting(None, "use only the first N samples of the inputs (default: all)")
    search: When = _setting(
        "auto",
        "when to search the layers that must leave INT8; auto: where a case fails (default: auto)",
        When,
    )
    strategy: Strategy = _setting("minimal", "how to search (default: minimal)", Strategy)
    max_builds: int = _setting(8, "engines that one search may build, the proof included (default: 8)")
    max_seconds: int = _setting(
        300, "end all that follows a verdict after N seconds, with what is known by then (default: 300)"
    )
    certify: bool = _setting(
        False, "prove on engines of its own that each culprit must leave INT8", kind="flag"
    )
    report: str | None = _setting(
        None,
        "write report.json, report.html, and for each failed case the fixed model and its plan",
        kind="folder",
    )
    missing: Missing = _setting(
        "skip", "what a case does whose backend is not there (default: skip)", Missing
    )
    lint: Lint = _setting(
        "auto",
        "what becomes of Q/DQ that TensorRT rejects; error: the case is an ERROR; warn: said in the report; "
        "auto: error, and warn with backend onnxruntime (default: auto)",
        Lint,
    )
    layers: bool = _setting(
        False,
        "show the error of every layer, of cases that pass, too; with TensorRT also between two engines "
        "built to show their tensors",
        kind="flag",
    )
    calibrations: bool = _setting(False, "compare all calibration methods on each case", kind="flag")
    reduce: bool = _setting(
        False,
        "write the smallest piece of the model that shows a culprit's error into the report folder",
        kind="flag",
    )
    cache_dir: str | None = _setting(
        None,
        "where engines, and trials of a search that was cut off, are kept: a folder or an fsspec URL "
        "(default: the user's cache)",
        kind="folder",
    )
    cache_size: int = _setting(
        20 << 30, "how much the engine store may hold, like 500M (default: 20G)", kind="size"
    )
    no_cache: bool = _setting(
        False, "build every engine, choose every range and try every plan anew, and keep none", kind="flag"
    )

    def __init__(self, *, sources: Mapping[str, str] | None = None, **given: Any) -> None:
        """Keep the given values; settings that are not given have their defaults.

        Args:
            sources: Maps the name of a setting to a description of where its value comes from.
            **given: Values by the name of the setting.

        Raises:
            TypeError: There is no such setting.
        """
        unknown = [name for name in given if not isinstance(getattr(type(self), name, None), Setting)]
        if unknown:
            raise TypeError(f"unknown setting {unknown[0]!r}: {', '.join(s.name for s in SETTINGS)}")
        self.given: Mapping[str, Any] = given
        self.sources: Mapping[str, str] = sources or {}

    def but(self, **changes: Any) -> Settings:
        """Return a copy with some values changed."""
        return Settings(sources=self.sources, **{**self.given, **changes})

    def describe(self) -> str:
        """Return one line with all settings and their sources; passwords in URLs are hidden."""
        parts = []
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            text = "none" if value is None else safe_url(str(value))
            parts.append(f"{setting.name} {text} ({self.sources.get(setting.name, 'default')})")
        return ", ".join(parts)


SETTINGS = tuple(value for value in vars(Settings).values() if isinstance(value, Setting))


def resolve(
    command_line: Mapping[str, Any], spec: Mapping[str, Any], configuration: Mapping[str, Any]
) -> Settings:
    """Return the settings by precedence: command line, then spec, then pytest configuration, then default.

    Each mapping has parsed values by the name of the setting. None means the same as a missing name.
    """
    values: dict[str, Any] = {}
    sources = {}
    for setting in SETTINGS:
        for given, source in (
            (command_line, setting.flag),
            (spec, "spec"),
            (configuration, f"ini {setting.ini}"),
        ):
            if given.get(setting.name) is not None:
                values[setting.name] = given[setting.name]
                sources[setting.name] = source
                break
    return Settings(**values, sources=sources)
