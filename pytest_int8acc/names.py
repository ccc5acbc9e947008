"""Names and texts of others, as people and files take them: what is in them shows and does nothing."""

from __future__ import annotations

import re

#: A longer run of characters without a space is cut in the middle, and so is a longer text.
_RUN, _TEXT = 400, 4000
#: What runners of CI obey in a log: ``::command`` where a line starts, ``##[command]`` or ``##vso[`` anywhere
#: (github.com/actions/runner, ActionCommand.cs; github.com/microsoft/azure-pipelines-agent, Command.cs).
_COMMAND = r"^(\s*):(?=:)|#(?=#[A-Za-z]*\[)"


def shown(text: str) -> str:
    r"""``text`` as one line for people: ``\n`` or ``\x1b`` for what is not printable, no command, no end.

    What is printable, short and no command stays as it is; so shown twice is shown once.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if "::" in text or "##" in text:
        text = re.sub(_COMMAND, lambda found: f"{found[1] or ''}\\x{ord(found[0][-1]):02x}", text)
    if len(text) > _RUN:
        text = re.sub(rf"\S{{{_RUN + 1},}}", lambda found: _cut(found[0], _RUN), text)
    return _cut(text, _TEXT)


def shown_lines(text: str) -> str:
    """Each line of ``text`` as :func:`shown`, tabs kept."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def in_markdown(text: str) -> str:
    """``text`` such that Markdown and HTML show it as it is, in one line, in a cell of a table too."""
    import html

    plain = html.escape(shown(" ".join(text.split())), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~:@$-])", r"\\\1", plain)


def in_code(name: str) -> str:
    """``name`` as Markdown's code, in a cell of a table too; else as :func:`in_markdown`."""
    return in_markdown(name) if set("`|") & set(name) or not name.strip() else f"`{shown(name)}`"


def file_name(name: str) -> str:
    """``name`` as the name of a file or folder anywhere: 100 of ``A-Za-z0-9_.-`` at most, no dot in front."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "unnamed"
    return plain if len(plain) <= 100 else f"{plain[:80]}-{digest(name)}"


def digest(name: str) -> str:
    """What tells long names apart: 8 hex digits."""
    import hashlib  # as html above: not wanted where pytest starts

    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _cut(text: str, most: int) -> str:
    """``text`` of at most ``most`` characters: its beginning, a digest of all of it, its end."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}...[{digest(text)}, {len(text)} characters]...{text[-most // 6 :]}"
