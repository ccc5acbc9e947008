"""Mistakes in texts that users write, with what is said of each, as they stand in files of tests.

A mistake begins with a line '####' and its title. Its text follows, then lines '>>>>' with what must be said,
'|' between parts.
"""

from __future__ import annotations

from pathlib import Path

#: By title, a text and what must be said of it.
Mistakes = dict[str, tuple[str, list[str]]]


def read(folder: str, name: str) -> Mistakes:
    """The mistakes of a file in a folder of tests."""
    text = (Path(__file__).parents[1] / folder / name).read_text(encoding="utf-8")
    found: Mistakes = {}
    for part in text.split("\n#### ")[1:]:
        title, *lines = part.removesuffix("\n").split("\n")
        assert title not in found, f"{name}: two mistakes have the title {title!r}"
        said = [line.removeprefix(">>>> ") for line in lines if line.startswith(">>>> ")]
        found[title] = ("\n".join(line for line in lines if not line.startswith(">>>> ")), said)
    return found


def assert_said(message: str, said: str) -> None:
    """All parts of ``said`` are in a message."""
    for part in said.split("|"):
        assert part in message, message


def assert_told_at_places(message: str, file: str, said: list[str]) -> None:
    """Each line of a message tells one mistake of ``file``; ``said`` begin with LINE:COLUMN."""
    lines = message.splitlines()
    places = [line.split(": ", 1)[0] for line in lines]
    assert places == [f"{file}:{one.partition(' ')[0]}" for one in said], message
    for line, one in zip(lines, said, strict=True):
        assert_said(line, one.partition(" ")[2])
