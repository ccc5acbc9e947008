"""What ``--int8acc-data`` names: arrays, a folder of images or of audio, and labels that lie with them."""

from __future__ import annotations

import json
import re
import wave
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_int8acc.data import open_dataset
from pytest_int8acc.data.files import natural, read_arrays
from pytest_int8acc.errors import DataError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.init.sizes import image_axes, wave_axis
from pytest_int8acc.spec.load import display
from pytest_int8acc.tensors import Array, TensorInfo, describe

IMAGES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
AUDIO = frozenset({".flac", ".mp3", ".ogg", ".wav"})
Kind = Literal["ready", "arrays", "images", "audio"]
#: How the labels of images or audio are told: by the folder a file is in, with the classes in order where a
#: file lists them; by a line 'file label' of a text; by a JSON mapping of file to label.
LabelKind = Literal["", "folders", "text", "json"]
#: Names of arrays in an .npz that may hold labels.
_LABEL_ARRAYS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True, eq=False)
class Labels:
    """Where labels were found."""

    kind: LabelKind = ""
    file: Path | None = None
    """labels.txt or labels.json; an .npy of labels for arrays that are ready."""
    array: str = ""
    """The array of an .npz that holds them."""
    numbers: bool = True
    """Whether a list tells numbers, not names."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.kind or self.file or self.array)


@dataclass(frozen=True, eq=False)
class Given:
    """The data that the user named."""

    path: Path
    kind: Kind
    files: tuple[Path, ...] = ()
    """Images or audio, in order."""
    tensor: TensorInfo | None = None
    """The input that takes an image or a waveform."""
    arrays: dict[str, Array] | None = None
    """Stored arrays that are not as the model takes them."""
    problem: str = ""
    """Why they are not."""
    rate: int = 0
    """Samples per second of the first .wav file; 0: not known."""
    labels: Labels = Labels()


def look(path: Path, model: Model) -> Given:
    """What lies at ``path``, and which input of ``model`` takes it.

    Raises:
        DataError: Nothing is there, it is of no known kind, or no input of the model takes it.
    """
    if not path.exists():
        raise DataError(f"{display(path)}: no such file or folder; --int8acc-data takes {_TAKES}")
    if path.is_dir():
        for kind, suffixes in (("images", IMAGES), ("audio", AUDIO)):
            files = sorted(
                (p for p in path.rglob("*") if p.suffix.lower() in suffixes and p.is_file()), key=_order
            )
            if files and not any(path.glob("*.npy")):
                return _of_files(path, "images" if kind == "images" else "audio", files, model)
    elif path.suffix not in (".npy", ".npz", ".json"):
        raise DataError(f"{display(path)}: is of no known kind; --int8acc-data takes {_TAKES}")
    return _of_arrays(path, model)


_TAKES = "a folder of images, of audio or of .npy files, an .npz, an .npy or Polygraphy's JSON"


def _order(path: Path) -> tuple[str, list[tuple[int, int, str]]]:
    return path.parent.as_posix(), natural(path)


def _of_files(path: Path, kind: Literal["images", "audio"], files: list[Path], model: Model) -> Given:
    takes = {"images": image_axes, "audio": wave_axis}[kind]
    tensor = next((t for t in model.inputs if takes(t) is not None), None)
    if tensor is None and kind == "images":
        raise DataError(
            f"{display(path)}: holds images, and the model takes none ({describe(model.inputs)}); expected "
            "an input of 1, 3 or 4 channels. Give arrays as the model takes them, in an .npz, samples first"
        )
    tensor = tensor or next((t for t in model.inputs if t.dtype.kind == "f" and t.shape), None)
    if tensor is None:
        raise DataError(
            f"{display(path)}: holds audio, and the model takes no floats ({describe(model.inputs)}); "
            "give arrays as the model takes them, as an .npz with samples first"
        )
    cut = kind == "audio" or len(tensor.shape or ()) > 3  # else an image is no row, and labels belong to rows
    labels = _labels(path, files) if cut else Labels()
    return Given(path, kind, tuple(files), tensor, rate=_rate(files), labels=labels)


def _rate(files: Iterable[Path]) -> int:
    for file in files:
        if file.suffix.lower() == ".wav":
            try:
                with wave.open(str(file)) as opened:
                    return int(opened.getframerate())
            except (wave.Error, EOFError, OSError):  # told by the loader, where it is read
                continue
    return 0


def _labels(folder: Path, files: list[Path]) -> Labels:
    """Labels of files: a list in their folder or beside it that names them, else the folders they are in."""
    label_files = [
        place / name for place in (folder, folder.parent) for name in ("labels.txt", "labels.json")
    ]
    for file in filter(Path.is_file, label_files):
        text = file.suffix == ".txt"
        labels_by_name = _listed(file)
        if all(path.name in labels_by_name for path in files):
            numbers = all(re.fullmatch(r"\d+", str(labels_by_name[path.name])) for path in files)
            return Labels("text" if text else "json", file, numbers=numbers)
    folders = {path.relative_to(folder).parts[0] for path in files}
    if len(folders) < 2 or any(path.parent == folder for path in files):
        return Labels()
    lines = (file for file in label_files if file.is_file() and folders <= set(_lines(file)))
    return Labels("folders", next(lines, None))


def _listed(file: Path) -> Mapping[str, object]:
    """File to label, as a list of labels tells them; empty where it tells something else."""
    if file.suffix == ".txt":
        return dict(line.rsplit(maxsplit=1) for line in _lines(file) if len(line.split()) > 1)
    try:
        found = json.loads("\n".join(_lines(file)))
    except ValueError as error:
        raise DataError(
            f"{display(file)}: not JSON ({error}); expected {{file: label}}, or move the file away"
        ) from error
    return found if isinstance(found, dict) else {}


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{display(file)}: cannot be read ({error}); expected lines 'file label', or move the file away"
        ) from error


def _of_arrays(path: Path, model: Model) -> Given:
    """Stored arrays, ready where they fit the model as they are."""
    try:
        for _ in open_dataset(path.name, model.inputs, base=path.resolve().parent).first(1).batches():
            pass
    except DataError as error:
        if path.suffix not in (".npy", ".npz"):
            raise
        arrays, inputs = read_arrays(path, str(path)), {tensor.name for tensor in model.inputs}
        label = next((name for name in _LABEL_ARRAYS if name in arrays and name not in inputs), "")
        return Given(path, "arrays", arrays=arrays, problem=str(error), labels=Labels(array=label))
    label_files = [path.parent / "labels.npy", path.parent / f"{path.stem}_labels.npy"]
    return Given(path, "ready", labels=Labels(file=next(filter(Path.is_file, label_files), None)))
