"""Records as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.regressions.record import NEAR, Record
from benchmarks.tables import table


def by_kind(records: Sequence[Record]) -> str:
    """One line per kind of fault, and their sum."""
    faults = [r for r in records if r.shows != "healthy"]
    header = ["fault", "planted", "harmless", "detected", "precision", "recall", "minimal", "cause named"]
    header += ["fix: INT8", "mixed", "FP16", "reason", "neither", "trials", "s"]
    kinds = dict.fromkeys(r.kind for r in faults)
    rows = [_row(kind, [r for r in faults if r.kind == kind]) for kind in kinds]
    return table(header, [*rows, _row("**all**", faults)])


def _row(name: str, records: Sequence[Record]) -> list[object]:
    moved = [r for r in records if r.moves]
    proofs = [r.proof for r in moved if r.proof is not None]
    searched = [r for r in moved if r.verdict == "failed"]
    fixes = [sum(r.fix == kind for r in searched) for kind in ("INT8", "mixed", "FP16")]
    reasoned = sum(not r.fix and bool(r.reason) for r in searched)
    return [
        name,
        len(records),
        len(records) - len(moved),
        f"{sum(r.detected for r in moved)} of {len(moved)}",
        _mean(p.precision for p in proofs),
        _mean(p.recall for p in proofs),
        f"{sum(p.minimal for p in proofs)} of {len(proofs)}",
        f"{sum(r.named for r in moved)} of {len(moved)}",
        *fixes,
        reasoned,
        len(searched) - sum(fixes) - reasoned,
        _mean(float(r.trials) for r in searched),
        _mean(r.seconds for r in moved),
    ]


def summary(records: Sequence[Record]) -> str:
    """The figures that the corpus is there for, one per line."""
    faults, healthy = ([r for r in records if (r.shows == "healthy") == w] for w in (False, True))
    moved = [r for r in faults if r.moves]
    alarms = [r for r in healthy if r.verdict != "passed"]
    missed = [r for r in moved if not r.detected]
    shown = [r for r in moved if r.shows == "criteria"]
    near = [r for r in faults if r.near]
    wrong = [r for r in faults if not r.moves and r.verdict in ("failed", "crashed")]
    proofs = [r.proof for r in moved if r.proof is not None]
    certain = [(r.culprits, r.proof.certain) for r in moved if r.proof is not None]
    hits = sum(len(set(c) & set(a)) for a, c in certain)
    innocent = [c for r in moved if r.proof for c in r.culprits if c not in r.planted]
    named = [r for r in moved if r.causes_judged]
    told = [r for r in moved if r.headline is not None]
    lines = [
        f"faults: {len(faults)}, of them harmless {len(faults) - len(moved)}, to be found {len(moved)}",
        f"detected: {len(moved) - len(missed)} of {len(moved)}"
        f" ({sum(r.detected for r in shown)} of {len(shown)} that move a criterion)" + _names(missed),
        f"failed although the second opinion sees the criteria met: {len(wrong)}" + _names(wrong),
        f"within {NEAR} dB of a limit, so that FP16 decides:" + (_names(near)[1:] or " none"),
        f"healthy: {len(healthy)}, false alarms {len(alarms)}" + _names(alarms),
        f"healthy with a finding of severity error or warning: {_names(_warned(healthy))[2:] or 'none'}",
        f"culprits, mean over {len(proofs)} entries: precision {_mean(p.precision for p in proofs)}, "
        f"recall {_mean(p.recall for p in proofs)}; sufficient {sum(p.sufficient for p in proofs)}, "
        f"minimal {sum(p.minimal for p in proofs)}, as light as any known "
        f"{sum(p.lightest for p in proofs)}, measure proven by trying all "
        f"{sum(p.proven for p in proofs)}",
        f"groups that break the criteria alone: {hits} of {sum(len(c) for _, c in certain)} named; "
        f"named and not planted: {len(innocent)} of {sum(len(a) for a, _ in certain)}",
        f"cause named: {sum(r.named for r in moved)} of {len(moved)} entries; of culprits "
        f"{sum(r.causes_right for r in named)} of {sum(r.causes_judged for r in named)}",
        f"headlines without a false word: {sum(bool(r.headline) for r in told)} of {len(told)}"
        + _names([r for r in told if not r.headline]),
        _fixes(moved),
        f"plans written: {sum(r.plans for r in records)}, of them those that give the verified model bit for "
        f"bit when they are read back: {sum(r.plans_alike for r in records)}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _fixes(moved: Sequence[Record]) -> str:
    searched = [r for r in moved if r.verdict == "failed"]
    possible = [r for r in searched if r.int8_fix]
    without = [r for r in searched if not r.fix and not r.reason]
    fixed = sum(bool(r.fix) for r in searched)
    return (
        f"failed cases that leave with a verified fix: {fixed} of {len(searched)}; "
        f"in INT8 {sum(r.fix == 'INT8' for r in possible)} of {len(possible)} where one is known to exist; "
        f"with neither fix nor reason {len(without)}" + _names(without)
    )


def _warned(records: Iterable[Record]) -> list[Record]:
    return [r for r in records if any(f.startswith(("error", "warning")) for f in r.findings)]


def _names(records: Sequence[Record]) -> str:
    return ": " + ", ".join(r.name for r in records) if records else ""


def _mean(values: Iterable[float]) -> str:
    known = [v for v in values if not math.isnan(v)]
    return f"{sum(known) / len(known):.3g}" if known else "-"


def by_entry(records: Sequence[Record]) -> str:
    """One line per entry."""
    header = [
        "entry",
        "margin dB",
        "verdict",
        "named",
        "culprits",
        "least",
        "precision",
        "recall",
        "fix",
        "s",
    ]
    rows = [
        [
            r.name,
            "-" if r.margin is None else r.margin,
            r.verdict,
            "yes" if r.named else "no",
            len(r.culprits),
            len(r.proof.least) if r.proof else "-",
            r.proof.precision if r.proof else "-",
            r.proof.recall if r.proof else "-",
            r.fix or "-",
            r.seconds,
        ]
        for r in records
    ]
    return table(header, rows)
