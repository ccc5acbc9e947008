"""Finds out whether ``--int8acc-data`` names arrays, images or audio, and finds the labels of these data."""

from __future__ import annotations

import contextlib
import json
import re
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_int8acc.data import open_dataset
from pytest_int8acc.data.files import natural_order, read_arrays
from pytest_int8acc.errors import DataError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.init.sizes import image_axes, wave_axis
from pytest_int8acc.spec.load import display
from pytest_int8acc.tensors import Array, TensorInfo, describe

IMAGES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
AUDIO = frozenset({".flac", ".mp3", ".ogg", ".wav"})
Kind = Literal["ready", "arrays", "images", "audio"]
#: The kinds of labels. ``array``: an array in the .npz file of the data. ``file``: a .npy file of labels next
#: to the file of the data. ``folders``: the name of a file's folder is its class. ``text`` and ``json``: a
#: file that maps the names of image or audio files to labels.
LabelKind = Literal["array", "file", "folders", "text", "json"]
#: Names of arrays in an .npz that are used as labels, unless the model has an input of the same name.
_LABEL_ARRAYS = ("labels", "label", "targets", "target", "y")
_ACCEPTED = "a folder of images, of audio or of .npy files, an .npz, an .npy or Polygraphy's JSON"


@dataclass(frozen=True, eq=False)
class Labels:
    """Where the labels of the user's data are, and how they are stored."""

    kind: LabelKind
    file: Path | None = None
    """The file of labels; for the kind ``folders`` a file that lists the classes in order. None if there is
    no such file."""
    array: str = ""
    """For the kind ``array``: the name of the array with the labels; otherwise empty."""
    numbers: bool = True
    """Whether the file of labels gives each class as a number. If False, it gives the name of the class."""


@dataclass(frozen=True, eq=False)
class Given:
    """The data that the user named with ``--int8acc-data``."""

    path: Path
    kind: Kind
    labels: Labels | None
    files: Sequence[Path] = ()
    """The image or audio files, in order; empty for other kinds of data."""
    tensor: TensorInfo | None = None
    """The model's input for the images or the audio; None for other kinds of data."""
    arrays: Mapping[str, Array] | None = None
    """The stored arrays by name, if they must be converted to fit the model; otherwise None."""
    problem: str = ""
    """The error message that says why ``arrays`` do not fit the model; empty if ``arrays`` is None."""

    @property
    def count(self) -> int:
        """The number of image or audio files, or of samples in ``arrays``."""
        stored = [len(array) for array in (self.arrays or {}).values() if array.ndim]
        return min(stored, default=len(self.files))

    @property
    def rate(self) -> int:
        """The sampling rate, in Hz, of the first .wav file that can be read; 0 if there is none."""
        for file in self.files:
            if file.suffix.lower() == ".wav":
                with contextlib.suppress(wave.Error, EOFError, OSError), wave.open(str(file)) as opened:
                    return int(opened.getframerate())
        return 0


def look(path: Path, model: Model) -> Given:
    """Return the data at ``path`` with their kind, their labels, and the input of ``model`` that reads them.

    Raises:
        DataError: ``path`` does not exist, the data are of no known kind, or fit no input of the model.
    """
    if not path.exists():
        raise DataError(f"{display(path)}: no such file or folder; --int8acc-data takes {_ACCEPTED}")
    if not path.is_dir() and path.suffix not in (".npy", ".npz", ".json"):
        raise DataError(f"{display(path)}: is of no known kind; --int8acc-data takes {_ACCEPTED}")
    if not path.is_dir() or any(path.glob("*.npy")):
        return _arrays(path, model)
    files = sorted(path.rglob("*"), key=lambda file: (file.parent.as_posix(), natural_order(file)))
    images = [file for file in files if file.suffix.lower() in IMAGES and file.is_file()]
    if images:
        return _images(path, images, model)
    audio = [file for file in files if file.suffix.lower() in AUDIO and file.is_file()]
    return _audio(path, audio, model) if audio else _arrays(path, model)


def _images(path: Path, files: Sequence[Path], model: Model) -> Given:
    tensor = next((tensor for tensor in model.inputs if image_axes(tensor) is not None), None)
    if tensor is None:
        raise DataError(
            f"{display(path)}: holds images, and the model takes none ({describe(model.inputs)}); expected "
            "an input of 1, 3 or 4 channels. Give arrays as the model takes them, in an .npz, samples first"
        )
    # Labels belong to samples. A model that takes an image without a batch axis has no samples.
    labels = _labels_of_files(path, files) if len(tensor.shape or ()) > 3 else None
    return Given(path, "images", labels, files, tensor)


def _audio(path: Path, files: Sequence[Path], model: Model) -> Given:
    waves = [tensor for tensor in model.inputs if wave_axis(tensor) is not None]
    features = [tensor for tensor in model.inputs if tensor.dtype.kind == "f" and tensor.shape]
    if not waves and not features:
        raise DataError(
            f"{display(path)}: holds audio, and the model takes no floats ({describe(model.inputs)}); "
            "give arrays as the model takes them, as an .npz with samples first"
        )
    return Given(path, "audio", _labels_of_files(path, files), files, (waves or features)[0])


def _labels_of_files(folder: Path, files: Sequence[Path]) -> Labels | None:
    """Return the labels of ``files``; None if none are found.

    A file of labels in ``folder`` or its parent is used if it names all ``files``. Otherwise the names of
    subfolders are the labels, if all files lie in two or more subfolders.
    """
    names = ("labels.txt", "labels.json")
    label_files = [place / name for place in (folder, folder.parent) for name in names]
    label_files = [file for file in label_files if file.is_file()]
    for file in label_files:
        labels = _read_labels(file)
        if all(path.name in labels for path in files):
            numbers = all(re.fullmatch(r"\d+", str(labels[path.name])) for path in files)
            return Labels("text" if file.suffix == ".txt" else "json", file, numbers=numbers)
    folders = {path.relative_to(folder).parts[0] for path in files}
    if len(folders) < 2 or any(path.parent == folder for path in files):
        return None
    class_lists = [file for file in label_files if folders <= set(_lines(file))]
    return Labels("folders", class_lists[0] if class_lists else None)


def _read_labels(file: Path) -> Mapping[str, object]:
    """Return a mapping of file name to label from ``file``; it is empty if ``file`` holds no such mapping."""
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


def _arrays(path: Path, model: Model) -> Given:
    """Return the data for stored arrays at ``path``.

    The kind is ``ready`` if the first sample fits the inputs of the model, and ``arrays`` if it must be
    converted.
    """
    try:
        for _ in open_dataset(path.name, model.inputs, base=path.resolve().parent).first(1).batches():
            pass
    except DataError as error:
        if path.suffix not in (".npy", ".npz"):
            raise
        arrays = read_arrays(path, str(path))
        free = arrays.keys() - {tensor.name for tensor in model.inputs}
        named = [Labels("array", array=name) for name in _LABEL_ARRAYS if name in free]
        return Given(path, "arrays", named[0] if named else None, arrays=arrays, problem=str(error))
    label_files = [path.parent / "labels.npy", path.parent / f"{path.stem}_labels.npy"]
    found = [Labels("file", file) for file in label_files if file.is_file()]
    return Given(path, "ready", found[0] if found else None)
