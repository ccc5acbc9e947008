"""Case files: a network, a fault, a spec, and what report.json must say; CONTRIBUTING.md shows one."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import body_models
import case_networks
import fake_backends
import joined
import numpy as np
import onnx
import pytest
import qdq_by_hand
import showing_engines
import timed_backends
import told_engines
import written_networks
import yaml
from plugin_support import LOAD

from benchmarks.bodies import wrapped

FOLDER = Path(__file__).parents[1] / "cases"
#: Each worker reads all files as it collects; the loader in C takes a tenth of the time.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Keys of a case file.
KEYS = {
    "about",
    "network",
    "graph",
    "weights",
    "models",
    "data",
    "calibration",
    "proving",
    "ranges",
    "without ranges",
    "qdq",
    "quantize static",
    "bodies",
    "joined",
    "in body",
    "outputs",
    "labels",
    "files",
    "spec",
    "engine",
    "times",
    "fuses wrong",
    "shows",
    "engines off",
    "right at level",
    "options",
    "workers",
    "expect",
    "expect only",
    "then",
    "variants",
}
#: Keys that say what stands in for engines, one at most.
STAND_INS = {"engine", "times", "fuses wrong", "shows", "engines off"}
#: Keys of a later step.
STEP = KEYS - {"about", "expect only", "then", "variants"}
#: Facts that hold texts: each pattern that is expected must be found in one of them.
TEXTS = (
    *("says", "why", "ends", "warns", "notes", "candidate", "backend", "golden", "precision", "score notes"),
)


@dataclass(frozen=True)
class CaseFile:
    """One case, or one variant of it."""

    file: str
    variant: str
    said: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.file}-{self.variant}" if self.variant else self.file

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"\W", "_", self.variant) or "alone"


def case_files() -> Iterator[CaseFile]:
    """All of tests/cases, by folder and name; a file with variants gives one for each."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        said = yaml.load(path.read_text(encoding="utf-8"), LOADER)
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        assert said.keys() <= KEYS, f"{path}: {said.keys() - KEYS} are no keys of a case file"
        variants = said.pop("variants", {"": {}})
        for variant, more in variants.items():
            whole = merged(said, more)
            unknown = (more.keys() - KEYS).union(*(step.keys() - STEP for step in whole.get("then", ())))
            assert not unknown, f"{path}, {variant}: {unknown} are no keys of a variant or of a later step"
            whole["expect"] = whole.pop("expect only", whole.get("expect", {}))
            yield CaseFile(name, str(variant), whole)


def merged(said: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``said`` with what ``more`` says; mappings are merged, all else is replaced."""
    found = copy.deepcopy(dict(said))
    for key, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def write(folder: Path, said: Mapping[str, Any]) -> None:
    """Write the project of a case: model, data, ranges or Q/DQ model, other files; not the spec."""
    if "bodies" in said:
        body_models.write(folder, **said["bodies"])
    elif "joined" in said:
        joined.write(folder, **said["joined"])
    else:
        _write_network(folder, said)
    for name, content in said.get("files", {}).items():
        if name.endswith(".npy"):
            np.save(folder / name, np.array(content))
        else:
            text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
            (folder / name).write_text(text, encoding="utf-8")


def _write_network(folder: Path, said: Mapping[str, Any]) -> None:
    proto = _network(said)
    onnx.save(proto, folder / "model.onnx")
    for name, other in said.get("models", {}).items():
        onnx.save(_network(other), folder / name)
    feed = case_networks.samples(proto, said.get("data", {}), seed=1)
    np.savez(folder / "data.npz", **feed)
    if "calibration" in said:
        np.savez(folder / "calibration.npz", **case_networks.samples(proto, said["calibration"], seed=2))
    if "proving" in said:
        np.savez(folder / "proving.npz", **case_networks.samples(proto, said["proving"], seed=3))
    if said.get("ranges") is not None or "qdq" in said:
        factors = said.get("ranges") or {}
        found = case_networks.held(proto, feed)
        every = factors.get("all", 1.0)
        ranges = {t: float(np.abs(a).max()) * factors.get(t, every) for t, a in found.items()}
        unknown = factors.keys() - ranges.keys() - {"all"}
        assert not unknown, f"ranges: {unknown} are no tensors of the network"
        listed = {t: r for t, r in ranges.items() if r and t not in said.get("without ranges", ())}
        (folder / "ranges.json").write_text(json.dumps(listed))
        if "qdq" in said:
            onnx.save(qdq_by_hand.quantized(proto, listed, **said["qdq"]), folder / "q.onnx")
    if "quantize static" in said:
        qdq_by_hand.quantize_static(folder, feed, said["quantize static"])
    for name in ("model.onnx", "q.onnx") if "in body" in said else ():
        if (folder / name).exists():
            onnx.save(wrapped(onnx.load(folder / name), said["in body"]), folder / name)
    if {"labels", "outputs"} & said.keys():
        _write_outputs(folder, said, proto, case_networks.held(proto, feed))


def _write_outputs(
    folder: Path, said: Mapping[str, Any], proto: onnx.ModelProto, found: Mapping[str, Any]
) -> None:
    """Write files of labels, which are the greatest classes, and files of outputs."""
    for name, change in said.get("labels", {}).items():
        classes = found[change["of"]]
        np.save(folder / name, (classes.argmax(1) + change.get("plus", 0)) % classes.shape[1])
    for name, change in said.get("outputs", {}).items():
        kept = [output.name for output in proto.graph.output]
        arrays = {n: found[n] * change.get("times", 1.0) + change.get("plus", 0.0) for n in kept}
        np.savez(folder / name, **{change.get("as", {}).get(n, n): a for n, a in arrays.items()})


def _network(said: Mapping[str, Any]) -> onnx.ModelProto:
    if "graph" in said:
        return written_networks.network(said["graph"], said.get("weights", {}))
    proto = case_networks.built(said["network"])
    for name, factors in said.get("weights", {}).items():
        weight, _, axis = name.partition(":")
        case_networks.change(proto, weight, factors, int(axis or 0))
    return proto


#: Networks of random weights give nearly the same for all samples; a case that is about that says null.
UNTRAINED = "an untrained network on random inputs"


def spec_of(said: Mapping[str, Any]) -> str:
    """The text of the spec: what the case says, and the model, its data and its INT8 form by default."""
    spec = {"model": "model.onnx", "inputs": "data.npz", **said.get("spec", {})}
    if not {"int8", "fp8", "candidate"} & spec.keys():
        form: dict[str, Any] = {"calibrate": {"method": "minmax"}}
        if "qdq" in said:
            form = {"model": "q.onnx"}
        elif {"quantize static", "bodies"} & said.keys() or joined.is_quantized(said.get("joined", {})):
            form = {"model": "int8.onnx"}
        elif said.get("ranges") is not None:
            form = {"scales": "ranges.json"}
        spec["int8"] = form
    spec.setdefault("accept_blind", UNTRAINED)
    return yaml.safe_dump({key: value for key, value in spec.items() if value is not None}, sort_keys=False)


def stand_in(patch: pytest.MonkeyPatch, said: Mapping[str, Any]) -> None:
    """ONNX Runtime stands in for engines as ``engine`` tells of them, with ``times``, and so on."""
    given = STAND_INS & said.keys()
    assert len(given) < 2, f"one stand-in hides the other: {given}"
    assert "right at level" not in said or "fuses wrong" in said
    if "engine" in said:
        told_engines.tell(patch, told_engines.said(said["engine"]))
    if "times" in said:
        timed_backends.use(patch, timed_backends.said(said["times"]))
    if "fuses wrong" in said:
        fake_backends.use(patch, said["fuses wrong"], said.get("right at level", -1))
    if "shows" in said:
        showing_engines.use(patch, said["shows"])
    if "engines off" in said:
        showing_engines.put_off(patch, said["engines off"])


def run(
    pytester: pytest.Pytester, said: Mapping[str, Any], report: str = "report", folder: Path | None = None
) -> dict[str, Any]:
    """Run pytest on the case in this process; its entry of report.json.

    The project is there already, in ``folder``, by default that of ``pytester``; that is the working folder.
    """
    folder = folder or pytester.path
    (folder / "case.int8acc.yaml").write_text(spec_of(said), encoding="utf-8")
    workers = [f"-n{said['workers']}"] if "workers" in said else []
    options = [*LOAD, *workers, *said.get("options", [])]
    result = pytester.runpytest(*options, "--int8acc", f"--int8acc-report={report}", f"--rootdir={folder}")
    (entry,) = entries = _entries(folder / report)
    _agree(result, entries)
    return entry


def run_together(
    pytester: pytest.Pytester, cases: Sequence[CaseFile]
) -> Iterator[tuple[CaseFile, dict[str, Any]]]:
    """Write the projects of cases with the same options and run pytest on all of them; their entries."""
    specs = []
    for case in cases:
        folder = pytester.mkdir(case.folder)
        write(folder, case.said)
        specs.append(folder / "case.int8acc.yaml")
        specs[-1].write_text(spec_of(case.said), encoding="utf-8")
    report = f"report_{cases[0].folder}"
    options = cases[0].said.get("options", [])
    arguments = ("--int8acc", "--continue-on-collection-errors", f"--int8acc-report={report}")
    result = pytester.runpytest(*LOAD, *options, *arguments, *specs)
    entries = _entries(pytester.path / report)
    _agree(result, entries)
    by_folder = {entry["nodeid"].partition("/")[0]: entry for entry in entries}
    for case in cases:
        entry = by_folder[case.folder]
        entry["written"] = [path.removeprefix(f"{case.folder}/") for path in entry.get("written", [])]
        yield case, entry


def _entries(folder: Path) -> list[dict[str, Any]]:
    """The cases of a report; a spec that cannot be read is an entry with the verdict error."""
    report = json.loads((folder / "report.json").read_text())
    return report["cases"] + [{**unread, "verdict": "error"} for unread in report["errors"]]


def _agree(result: pytest.RunResult, entries: Sequence[Mapping[str, Any]]) -> None:
    """Pytest counts the same verdicts as the report, and shows no traceback."""
    counted = result.parseoutcomes()
    for verdict, outcome in (("passed", "passed"), ("failed", "failed"), ("error", "errors")):
        count = sum(entry["verdict"] == verdict for entry in entries)
        assert counted.get(outcome, 0) == count, f"{verdict}: {count} in report.json, pytest says {counted}"
    assert "Traceback" not in result.stdout.str()


def written_and_run(pytester: pytest.Pytester, **said: Any) -> dict[str, Any]:
    """Write a project and run its case; keys are those of a case file."""
    write(pytester.path, said)
    return run(pytester, said)


def facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry of report.json says, in names and enumerations, with its numbers."""
    search, diagnosis = entry.get("search") or {}, entry.get("diagnosis") or {}
    culprits, outputs = entry.get("culprits", []), entry.get("outputs", [])
    causes = {c["layer"]: c["cause"] for c in culprits if c["cause"]}
    scores = {f"{s['subject']} {s['metric']}": s for s in entry.get("scores", [])}
    blind = entry.get("blind") or {}
    caught_by = blind.get("remedy")
    hidden = {o["name"]: o["preactivation"] for o in outputs if o.get("preactivation")}
    repairs = diagnosis.get("repairs", [])
    first = repairs[0] if repairs else {}
    proved = first.get("evidence")
    tried = {layer: cause["ablation"] for layer, cause in causes.items() if cause["ablation"]}
    contract, speed = entry.get("precision") or {}, diagnosis.get("speed") or {}
    plans = speed.get("trials", ())
    return {
        "verdict": entry["verdict"],
        "candidate": [entry.get("candidate", "")],
        "golden": [entry.get("golden", "")],
        "accepted": {f"{s['subject']} {s['metric']}": True for s in entry.get("recorded") or []},
        "backend": [entry.get("backend", "")],
        "baseline": entry.get("baseline", ""),
        "low": entry.get("low", ""),
        "samples": entry.get("samples"),
        "share": entry.get("int8_macs"),
        "asked": (entry.get("precision") or {}).get("asked", {}),
        "precision": [contract.get("text", "")],
        "can obey": contract.get("can_obey"),
        "ran": contract.get("realized", {}),
        "misplaced": {layer["name"]: layer["ran"] for layer in contract.get("misplaced", ())},
        "engines": [engine["role"] for engine in entry.get("engines", ())],
        "searches speed": bool(speed),
        "lose time": sorted(speed.get("losses", {})),
        "plans for speed": [sorted(plan["layers"]) for plan in plans],
        "plans refused": [sorted(plan["layers"]) for plan in plans if plan["passed"] is None],
        "least share of plans": min((plan["share"] for plan in plans), default=None),
        "plans that pass": sum(bool(plan["passed"]) for plan in plans),
        "groups": entry.get("int8_groups"),
        "groups kept high": entry.get("high_groups"),
        "outputs": [output["name"] for output in outputs],
        "parts of": {output["name"]: output["part_of"] for output in outputs if output["part_of"]},
        "hidden tensors": {output: found["tensor"] for output, found in hidden.items()},
        "hides errors of": {output: found["fails"] for output, found in hidden.items() if found["fails"]},
        "hidden by": {output: [found["operator"], found["node"]] for output, found in hidden.items()},
        "hidden limits": {
            f"{found['tensor']} {score['metric']}": score["limit"]
            for found in hidden.values()
            for score in found["scores"]
            if score["limit"] is not None
        },
        "can be judged": sorted(output for output, found in hidden.items() if found["is_known"]),
        "hidden scores": {
            f"{found['tensor']} {score['metric']}": _number(score["value"])
            for found in hidden.values()
            for score in found["scores"]
        },
        "types": {output["name"]: output["dtype"] for output in outputs},
        "scores": {name: _number(s["value"]) for name, s in scores.items()},
        "score notes": [s["note"] for s in entry.get("scores", [])],
        "limits": {name: s["limit"] for name, s in scores.items() if s["limit"] is not None},
        "limited": sorted(name for name, s in scores.items() if s["limit"] is not None),
        "undetected": sorted({dead["kind"] for dead in blind.get("undetected", [])}),
        "unseen outputs": sorted({d["output"] for d in blind.get("undetected", []) if d.get("output")}),
        "proposed limit": caught_by["limit"] if caught_by else None,
        "accepted because": entry.get("blind_reason", ""),
        "would be caught by": f"{caught_by['subject']} {caught_by['metric']}" if caught_by else "",
        "at chance": sorted(metric["metric"] for metric in blind.get("at_chance", [])),
        "nan share": {o["name"]: o["nan_share"] for o in outputs if o["nan_share"]},
        "small samples": {o["name"]: o["small"]["count"] for o in outputs if o["small"]},
        "noise": {name: _number(s["noise"]) for name, s in scores.items() if s["noise"] is not None},
        "at least": {name: s["interval"]["low"] for name, s in scores.items() if s.get("interval")},
        "in doubt": sorted(name for name, s in scores.items() if _in_doubt(s)),
        "missed": sorted(f"{s['subject']} {s['metric']}" for s in entry.get("scores", []) if _misses(s)),
        "culprits": sorted(c["layer"] for c in culprits),
        "inside": {c["layer"]: c["inside"] for c in culprits if c["inside"]},
        "pairs that stay": len(search.get("fixed_pairs", [])),
        "cause kinds": sorted({cause["kind"] for cause in causes.values()}),
        "causes": {layer: cause["kind"] for layer, cause in causes.items()},
        "symptoms": {layer: cause["symptom"] for layer, cause in causes.items()},
        "tensors": {layer: cause["tensor"] for layer, cause in causes.items()},
        "channels": {layer: [int(c) for c in cause["channels"]] for layer, cause in causes.items()},
        "others": {layer: cause["others"] for layer, cause in causes.items()},
        "nodes": {layer: cause["op_type"] for layer, cause in causes.items()},
        "formats": {layer: cause["format"] for layer, cause in causes.items()},
        "numbers": {layer: cause["numbers"] for layer, cause in causes.items()},
        "alone on": {c["layer"]: c["worst_alone"]["subject"] for c in culprits if c["worst_alone"]},
        "alone": {c["layer"]: c["worst_alone"]["metric"] for c in culprits if c["worst_alone"]},
        "shown by": {layer: trial["kind"] for layer, trial in tried.items()},
        "shown share": {layer: trial["share"] for layer, trial in tried.items()},
        "shown alone": sorted(layer for layer, trial in tried.items() if trial["alone"]),
        "ending": (search.get("ending") or {}).get("kind"),
        "strategy": search.get("strategy"),
        "found": search.get("found"),
        "minimal": search.get("minimal"),
        "verified": first["verified"] if first else search.get("verified"),
        "held out": {key: value for key, value in search.get("held_out", {}).items() if key != "scores"},
        "kept in": search.get("precision"),
        "certified": (search.get("certificate") or {}).get("passed"),
        "table": len(search.get("table", [])),
        "table shapes": {line["layer"]: line.get("shape", "") for line in search.get("table", [])},
        "tradeoff": bool(search.get("tradeoff")),
        "remedies": [repair["kind"] for repair in repairs if repair["verified"]],
        "hints": sorted(layer for layer, cause in causes.items() if cause["evidence"] is None),
        "passes": sum(phase["passes"] for phase in entry.get("phases", [])),
        "place": entry.get("place"),
        "remedy": first.get("kind"),
        "remedy proved": {"place": proved["place"], "samples": proved["proved_on"]["count"]}
        if proved
        else {},
        "remedy held out": ((proved or {}).get("held_out") or {}).get("count"),
        "remedy scores": {
            f"{s['subject']} {s['metric']}": _number(s["value"]) for s in first.get("scores", [])
        },
        "remedy latency": (first.get("latency") or {}).get("median_ms"),
        "remedy keeps high": sorted(first.get("layers", [])),
        "remedy rescales": sorted(rescale["tensor"] for rescale in first.get("rescales", [])),
        "remedy redoes weights": len(first.get("weights", [])),
        "remedy folds into": sorted((first.get("migration") or {}).get("folded", [])),
        "remedy inserts": len((first.get("migration") or {}).get("inserted", [])),
        "remedy shows": first.get("outputs", []),
        "remedy fuses": first.get("fused", []),
        "remedy takes ranges of": first.get("data"),
        "met": diagnosis.get("met"),
        "stage": diagnosis.get("first_stage"),
        "stages": {line["name"]: line["passed"] for line in diagnosis.get("stages", [])},
        "against": {line["name"]: line["against"] for line in diagnosis.get("stages", [])},
        "together with": {s["name"]: s["together"] for s in diagnosis.get("stages", []) if s["together"]},
        "worst layer": _worst(diagnosis.get("layers", [])),
        "layers": len(diagnosis.get("layers", [])),
        "layers on engines": {
            line["layer"]: abs(_number(line["engine_sqnr_db"]) - _number(line["sqnr_db"]))
            for line in diagnosis.get("layers", [])
            if line.get("engine_sqnr_db") is not None
        },
        "calibrations": [line["method"] for line in diagnosis.get("calibrations", [])],
        "data fault": diagnosis.get("preprocessing_mismatch"),
        "odd ranges": bool(diagnosis.get("ranges")),
        "ranges too wide": len((diagnosis.get("ranges") or {}).get("wide", [])),
        "ranges too narrow": len((diagnosis.get("ranges") or {}).get("narrow", [])),
        "ranges by hand": (diagnosis.get("ranges") or {}).get("by_hand", []),
        "chooses": sorted(jump["node"] for jump in diagnosis.get("jumps", [])),
        "chosen of": {jump["node"]: jump["tensors"] for jump in diagnosis.get("jumps", [])},
        "lint": sorted({finding["rule"] for finding in entry.get("findings", [])}),
        "left out": (entry.get("stopped") or {}).get("left_out", []),
        "files": sorted("/".join(Path(path).parts[1:]) for path in entry.get("written", [])),
        "says": [entry.get("message", "")],
        "why": [diagnosis.get("summary", "")],
        "ends": [search.get("reason", "")],
        "warns": entry.get("warnings", []),
        "notes": entry.get("notes", []) + diagnosis.get("notes", []) + search.get("notes", []),
    }


def _number(value: float | str) -> float:
    return float(value)


def _misses(score: Mapping[str, Any]) -> bool:
    if score["limit"] is None:
        return False
    value = _number(score["value"])
    return not (value >= score["limit"] if score["bound"] == "min" else value <= score["limit"])


def _in_doubt(score: Mapping[str, Any]) -> bool:
    """Whether other samples of the kind may be on the other side of the limit."""
    interval = score.get("interval")
    return bool(interval) and _number(interval["low"]) < score["limit"] < _number(interval["high"])


def _worst(layers: list[Mapping[str, Any]]) -> str | None:
    return min(layers, key=lambda line: _number(line["alone_sqnr_db"]))["layer"] if layers else None


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What a report says otherwise than expected; all that it says where nothing is expected."""
    if not expected:
        told = {key: value for key, value in found.items() if value}
        return ["nothing is expected; the report says:", yaml.safe_dump(told, sort_keys=False)]
    said: list[str] = []
    for key, wanted in expected.items():
        known = TEXTS if key.startswith("not ") else found
        name = key.removeprefix("not ").removeprefix("has ")
        assert name in known, f"expect: {key} is no fact; there are: {', '.join(found)}"
        if name in TEXTS:
            said += _texts(key, found[name], wanted)
        elif key.startswith("has "):
            said += [f"{key}: no {item} in {found[name]}" for item in wanted if item not in found[name]]
        else:
            said += _unlike(key, found[name], wanted)
    return said


def _texts(key: str, found: list[str], wanted: list[str] | str) -> list[str]:
    patterns = [wanted] if isinstance(wanted, str) else wanted
    if not patterns and any(found):
        return [f"{key}: expected none, found {found}"]
    there = not key.startswith("not ")
    missed = [p for p in patterns if any(re.search(p, text, re.DOTALL) for text in found) != there]
    return [f"{key}: {'no' if there else 'a'} match of {pattern!r} in {found}" for pattern in missed]


def _unlike(key: str, found: Any, wanted: Any) -> list[str]:
    if wanted == {}:
        return [f"{key}: expected none, found {found}"] if found else []
    if isinstance(wanted, Mapping):
        missing = [f"{key}: no {name!r} among {list(found)}" for name in wanted if name not in found]
        return missing + [
            text
            for name in wanted
            if name in found
            for text in _unlike(f"{key}: {name}", found[name], wanted[name])
        ]
    if _fits(found, wanted):
        return []
    return [f"{key}: expected {wanted}, found {found}"]


def _fits(found: Any, wanted: Any) -> bool:
    bounds = re.fullmatch(r"(>=|<=|>|<) *(\S+)|(\S+) to (\S+)", wanted) if isinstance(wanted, str) else None
    if bounds is None:
        return (
            found in wanted.split(" | ") if isinstance(wanted, str) and " | " in wanted else found == wanted
        )
    if not isinstance(found, float | int) or math.isnan(found):
        return False
    sign, bound, low, high = bounds.groups()
    if sign is None:
        return float(low) <= found <= float(high)
    return {">=": found >= float(bound), "<=": found <= float(bound), ">": found > float(bound)}.get(
        sign, found < float(bound)
    )
