"""Aligned tables and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of left-aligned columns, two spaces apart; columns whose cells are all empty are left out."""
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    widths = [max(len(line[i]) for line in (header, *rows)) for i in kept]
    return [
        "  ".join(line[i].ljust(width) for i, width in zip(kept, widths, strict=True)).rstrip()
        for line in (header, *rows)
    ]


def number(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits, more just below 1; whole ones below 1e6 in full."""
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    if 0.99 < abs(value) < 1:  # a cosine of 0.99998 is not 1
        digits = max(digits, 1 + math.ceil(-math.log10(1 - abs(value))))
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e")


def number_pair(value: float, limit: float, most: int = 17) -> tuple[str, str]:
    """Both numbers with as many significant digits, 4 to ``most``, as it takes to print them differently."""
    for digits in range(4, most + 1):
        texts = number(value, digits), number(limit, digits)
        if texts[0] != texts[1]:
            return texts
    return number(value), number(limit)


def count(n: int, thing: str) -> str:
    """Like ``1 layer`` and ``2 layers``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
