"""What the command line, a spec and the pytest configuration may set; each setting is declared once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

#: How the name of a spec file ends.
SUFFIXES = (".int8acc.yaml", ".int8acc.yml")

Backend = Literal["auto", "onnxruntime"]
Mode = Literal["exact", "native"]
Provider = Literal["cpu", "cuda"]


def _said(help: str, choices: Any = None) -> dict[str, Any]:
    """Metadata of a setting; ``choices`` is a Literal type, or None for a whole number of 1 or more."""
    return {"help": help, "choices": get_args(choices)}


@dataclass(frozen=True)
class Settings:
    """The settings that one case runs with."""

    backend: Backend = field(
        default="auto",
        metadata=_said("runtime of the engines; auto: the best that can run here (default: auto)", Backend),
    )
    mode: Mode = field(
        default="exact",
        metadata=_said(
            "what ONNX Runtime makes of INT8; exact: Q/DQ computed unfused, the same on every CPU; native: "
            "the fused kernels that it would deploy (default: exact)",
            Mode,
        ),
    )
    provider: Provider = field(
        default="cpu", metadata=_said("where ONNX Runtime runs the engines (default: cpu)", Provider)
    )
    samples: int | None = field(
        default=None, metadata=_said("use only the first N samples of the inputs (default: all)")
    )
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where each setting's value comes from, in words."""

    def describe(self) -> str:
        """One line of all settings, each with its source."""
        return ", ".join(
            f"{s.name} {'all' if (value := getattr(self, s.name)) is None else value} "
            f"({self.sources.get(s.name, 'default')})"
            for s in SETTINGS
        )


class Setting(NamedTuple):
    """One setting as a user sees it."""

    name: str
    default: object
    help: str
    choices: tuple[str, ...]
    """Empty for a whole number of 1 or more."""

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--int8acc-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """The key in the pytest configuration, and the option's name inside pytest."""
        return "int8acc_" + self.name

    @property
    def expected(self) -> str:
        """The values accepted, in words."""
        return f"one of {', '.join(self.choices)}" if self.choices else "a whole number of 1 or more"

    def parse(self, value: str | int) -> str | int:
        """``value`` as this setting's type; ValueError where it is not an accepted one."""
        if self.choices:
            if value in self.choices:
                return value
        elif str(value).isdecimal() and int(value) >= 1:
            return int(value)
        raise ValueError(f"{value!r} is not {self.expected}")


SETTINGS = tuple(
    Setting(f.name, f.default, **f.metadata) for f in fields(Settings) if "choices" in f.metadata
)


def resolve(
    command_line: Mapping[str, Any], spec: Mapping[str, Any], configuration: Mapping[str, Any]
) -> Settings:
    """Settings by precedence: command line over spec over pytest configuration over default.

    Each mapping holds values by setting name, already parsed; an absent name or None says nothing.
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
