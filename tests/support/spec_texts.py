"""Valid specs that several test modules start from, and the schema by which editors judge them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from packages import PACKAGE

SCHEMA = json.loads((PACKAGE / "int8acc.schema.json").read_text(encoding="utf-8"))
_KNOWN = SCHEMA["definitions"]
#: Metrics of outputs that a spec may name, and those of labels.
OUTPUT_METRICS = {names["required"][0] for names in _KNOWN["OutputCriterion"]["anyOf"]}
TASKS = set(_KNOWN["MetricCriterion"]["properties"]["metric"]["pattern"][2:].partition(")")[0].split("|"))
#: Methods of calibration.
METHODS = _KNOWN["Calibration"]["properties"]["method"]["enum"]
_JUDGE = jsonschema.Draft7Validator(SCHEMA)

#: Valid specs by name.
VALID = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parents[1] / "spec" / "valid").glob("*.yaml"))
}
MINIMAL = VALID["minimal"]


def is_valid(spec: object) -> bool:
    """Whether the schema accepts what a spec says."""
    return bool(_JUDGE.is_valid(spec))
