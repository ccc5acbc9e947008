"""Each case file: its project is built, pytest runs on it, and report.json says what the file expects.

No sentence of the report stands against a trial of the same run.
"""

from __future__ import annotations

import pytest
from case_files import CaseFile, case_files, differences, facts, merged, run, write
from contradictions import contradictions

pytestmark = pytest.mark.usefixtures("quick_processes")

#: Keys of a later step that change the project.
WRITTEN = {
    "network",
    "graph",
    "weights",
    "models",
    "data",
    "calibration",
    "proving",
    "ranges",
    "qdq",
    "files",
}


@pytest.mark.parametrize("case", list(case_files()), ids=str)
def test_case(case: CaseFile, pytester: pytest.Pytester) -> None:
    write(pytester.path, case.said)
    said = dict(case.said)
    for number, step in enumerate([{}, *case.said.get("then", ())]):
        said = merged(case.said, step)
        if WRITTEN & step.keys():
            write(pytester.path, said)
        entry = run(pytester, said, f"report{number or ''}")
        wrong = differences(facts(entry), step["expect"] if step else said["expect"])
        wrong += contradictions(entry)
        if wrong:
            place = f" (then, {number})" if number else ""
            pytest.fail("\n".join([case.said.get("about", "") + place, *wrong]), pytrace=False)
