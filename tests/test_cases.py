"""Each case file: its projects are built, pytest runs on them, and report.json says what the file expects.

No sentence of the report stands against a trial of the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import pytest
from case_files import (
    KEYS,
    STAND_INS,
    CaseFile,
    case_files,
    differences,
    facts,
    merged,
    run,
    run_together,
    stand_in,
    write,
)
from contradictions import contradictions

pytestmark = pytest.mark.usefixtures("quick_processes")

#: Keys of a later step that change the project.
WRITTEN = KEYS - {"about", "spec", "options", "workers", "expect", "expect only", "then", "variants"}
FILES = {file: tuple(cases) for file, cases in groupby(case_files(), lambda case: case.file)}


@pytest.mark.parametrize("cases", FILES.values(), ids=FILES)
def test_case(cases: tuple[CaseFile, ...], pytester: pytest.Pytester) -> None:
    """Cases of one step with the same options are run together, each in a folder of its own."""
    wrong: list[str] = []
    together: dict[tuple[str, ...], list[CaseFile]] = {}
    for case in cases:
        if ({"then", "workers"} | STAND_INS) & case.said.keys():
            wrong += stepwise(case, pytester)
        else:
            together.setdefault(tuple(case.said.get("options", ())), []).append(case)
    for alike in together.values():
        for case, entry in run_together(pytester, alike):
            wrong += differs(case, entry, case.said["expect"])
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def stepwise(case: CaseFile, pytester: pytest.Pytester) -> Iterator[str]:
    """Run a case and then its later steps, in one project of its own; what differs."""
    folder = pytester.mkdir(case.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write(folder, case.said)
        for number, step in enumerate([{}, *case.said.get("then", ())]):
            said = merged(case.said, step)
            stand_in(patch, said)
            if WRITTEN & step.keys():
                write(folder, said)
            entry = run(pytester, said, f"report{number or ''}", folder)
            wrong = differs(case, entry, (step or said)["expect"], f" (then, {number})" if number else "")
            if wrong:
                return iter(wrong)
    return iter(())


def differs(
    case: CaseFile, entry: Mapping[str, Any], expected: Mapping[str, Any], step: str = ""
) -> list[str]:
    """A heading, and what an entry says otherwise than expected or against itself; nothing if it does not."""
    wrong = differences(facts(entry), expected) + contradictions(entry)
    if wrong and entry["verdict"] == "error":
        wrong.append(f"the error: {entry.get('message', '')}")
    return [f"{case}{step}: {case.said.get('about', '')}", *wrong] if wrong else []
