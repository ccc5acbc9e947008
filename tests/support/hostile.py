"""Names that a model, a case, a file or a metric may bear, and what a runner of CI would do with a log."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from report_cases import SCHEMA, case, entry, enumerated

from pytest_int8acc import Int8accError
from pytest_int8acc.report.plain import restore, to_plain

HOSTILE = (
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "bell\x07 and\x08back\x7f",
    "a\nb",
    "a\r\nb\rc",
    "\n::error file=a.py,line=1::owned",
    "::set-output name=x::y",
    "  ::add-mask::secret",
    "x\n##[set-env name=PATH]/tmp",
    "##vso[task.setvariable variable=x]y",
    "##teamcity[testFailed name='x']",
    "tab\there\x0bthere\x0c",
    "rtl \u202egnp.exe\u2069 \u200f\u061c",
    "zero\u200bwidth\ufeff\u00adsoft",
    "line\u2028and\u2029paragraph\x85next",
    "\ufffe\uffff\U0001fffe",
    "</td><script>alert(1)</script><td>",
    "]]><!-- & -->&#x1b;&lt;",
    "a|b | **c** `d` [e](javascript:f) # g @h $i$",
    "'; touch owned; '",
    '"$(touch owned)" `touch owned` $HOME !x',
    "--option=value",
    "../../../etc/passwd",
    "..",
    "{{ 7*7 }} {% raw %} ${x} %(y)s {0} {name}",
    "'''\"\"\"\\",
    "back\\slash\\n",
    "*?[a-z]",
    "a,b:c=d;e",
    "\u540d\u524d/Conv_\u00e9\u00df \U0001f600",
    " leading and trailing ",
    "n" * 65_536,
    "spaced " * 9_000,
    "::" * 20_000,
)
#: Only where no ONNX file is asked: protobuf refuses half a pair, and C cuts a name at NUL.
NOT_IN_ONNX = ("nul\x00byte", "half \ud800 and \udfff", "")
NAMES = st.one_of(
    st.sampled_from([name for name in HOSTILE if len(name) < 1000]),
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.text(st.sampled_from(":#[]\n\r\x1b\u2028 a"), max_size=30),
)


def obeyed(log: str) -> list[str]:
    """The lines of a log that GitHub's, Azure's or TeamCity's runner takes for a command.

    As the runners do: https://github.com/actions/runner, ActionCommand.cs (``TryParseV2`` trims the line's
    start, ``TryParse`` searches ``##[``), https://github.com/microsoft/azure-pipelines-agent, Command.cs.
    """
    lines = re.split("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]", log)
    return [line for line in lines if line.strip().startswith("::") or re.search(r"##[A-Za-z]*\[", line)]


def acts(text: str) -> list[str]:
    """Characters of ``text`` that do something in a terminal, or stand for what they do not show."""
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t"})


#: Keys and values that a user has no say in.
CLOSED = (
    *("bound", "precision", "severity", "source", "verdict", "finished"),
    *("symptom", "meanings", "first_stage", "against", "together", "role", "rows"),
    *("low", "doubt", "policy", "ran", "place"),
)
WORDS = enumerated(SCHEMA)


def renamed(name: str) -> dict[str, Any]:
    """A case in which all that a user may name bears ``name``."""

    def rename(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: rename(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [rename(v, key) for v in value]
        fixed = key in CLOSED or (key in ("key", "kind", "name", "subject") and value in WORDS)
        return name if isinstance(value, str) and not fixed and value not in ("inf", "nan") else value

    plain = rename(to_plain(restore(case(written=["x"]))))
    return {
        **entry(case()),
        **{k: v for k, v in plain.items() if k != "seconds"},
        "nodeid": name,
        "settings": name,
    }


def told(text: str) -> str:
    """A text as a user sees it in a message."""
    return str(Int8accError(text))


def in_a_line(name: str) -> str:
    """A name as a user sees it, where it has one line."""
    return told(name.replace("\n", r"\n").replace("\t", r"\t"))
