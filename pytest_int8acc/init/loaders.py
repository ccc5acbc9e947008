"""The loader script that is written beside a spec: data made up, or the user's, with each guess marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.files import seen_from
from pytest_int8acc.graph.model import Model
from pytest_int8acc.init import templates
from pytest_int8acc.init.data import Given
from pytest_int8acc.init.sizes import Range, Trial, image_axes, wave_axis
from pytest_int8acc.names import shown
from pytest_int8acc.tensors import Dim, TensorInfo

#: Runs of made-up data.
RUNS = 8
#: Files or stored samples that are compared, and others that are calibrated on, at most.
COMPARED, CALIBRATED = 100, 50


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a model's inputs."""

    model: Model
    ranges: Mapping[str, Range]
    trial: Trial

    @property
    def how(self) -> str:
        """How the sizes were found, in a line for a comment."""
        if self.trial.outputs:
            tried = self.trial.tried
            found = "the model runs with them" + (f", after {tried - 1} that it refused" if tried > 1 else "")
            return (
                f"TODO: sizes that the model leaves open are a guess: {found}."
                if self.open
                else "Sizes are fixed."
            )
        return f"TODO: the model did not run with any sizes tried ({self.trial.tried}): set them."

    @property
    def open(self) -> bool:
        """Whether the model leaves sizes open."""
        return any(not isinstance(dim, int) for t in self.model.inputs for dim in t.shape or ())

    @property
    def batched(self) -> frozenset[str]:
        """Inputs whose rows are samples."""
        return read_layout(self.model.inputs).batched

    def shape(self, tensor: TensorInfo) -> tuple[int, ...]:
        """The shape of an input of one sample, where it holds samples; an image without a batch is whole."""
        shape = self.trial.inputs[tensor.name]
        alone = len(shape) == 3 and image_axes(tensor) is not None
        return (1, *shape[1:]) if tensor.name in self.batched and not alone else shape


def made_up(known: Known) -> str:
    """A loader that draws values."""
    table = "\n".join(_row(known, t, known.trial.inputs[t.name]) for t in known.model.inputs)
    return templates.RANDOM.format(how=known.how, inputs=table, runs=RUNS) + templates.DRAW


def of_given(known: Known, given: Given, folder: Path, classes: str) -> str:
    """A loader of the user's data, to lie in ``folder``; ``classes`` is the output whose top-1 it counts."""
    taken = _matched(known.model, given) if given.arrays else {_input(given).name: ""}
    others = [tensor for tensor in known.model.inputs if tensor.name not in taken]
    merged = " | made_up()" if others else ""
    make = _of_arrays if given.arrays else _of_images if given.kind == "images" else _of_audio
    libraries, constants, functions = make(known, given)
    exact_values, load_labels = _labels(given, folder)
    imports = "import json\n" * (given.labels.kind == "json") + "import wave\n" * ("wave.open" in functions)
    table = "\n".join(_row(known, tensor, known.shape(tensor)) for tensor in others)
    return "".join(
        (
            templates.HEAD.format(
                imports=imports,
                libraries=libraries,
                place=seen_from(folder, given.path),
                compared=COMPARED,
                calibrated=CALIBRATED,
            ),
            constants + exact_values,
            templates.OTHERS.format(how=known.how, inputs=table) if others else "",
            templates.BODY,
            (templates.STORED_ITEMS if given.arrays else templates.FILE_ITEMS).format(others=merged),
            functions + load_labels,
            templates.TOP1.format(output=classes) if classes and given.labels else "",
            templates.MADE_UP + templates.DRAW if others else "",
        )
    )


def needs(known: Known, given: Given | None, loader: str) -> str:
    """What must be filled in before the spec can run, in one line; empty where nothing must."""
    if given is not None and given.kind == "audio" and wave_axis(_input(given)) is None:
        return f"fill in 'read' in {loader}: the model's {shown(str(_input(given)))} takes no waveform"
    if given is not None and given.arrays:
        unclear = [name for name, steps in _steps(known.model, given) if steps is None]
        if unclear:
            return (
                f"fill in 'prepare' in {loader}: what is stored does not fit {', '.join(map(shown, unclear))}"
            )
    if given is None and not known.trial.finite:
        return f"set other values{f' in {loader}' if loader else ''}: outputs are not finite on those made up"
    if known.trial.outputs:
        return ""
    where = f" in {loader}" if loader else ""
    said = f" ({shown(known.trial.refused)})" if known.trial.refused else ""
    return f"set its sizes and values{where}: it did not run with any tried{said}"


def count(given: Given) -> int:
    """How many files or stored samples there are."""
    stored = [len(array) for array in (given.arrays or {}).values() if array.ndim]
    return min(stored, default=len(given.files))


def _row(known: Known, tensor: TensorInfo, shape: tuple[int, ...]) -> str:
    span = known.ranges[tensor.name]
    said = "scalar" if tensor.shape == () else shown(str(tensor))
    why = f"; {span.why}" if span.why else ""
    values = f"{shape!r}, {str(tensor.dtype)!r}, {span.low}, {span.high}"
    return f"    {tensor.name!r}: ({values}),  # {said}{why}"


def _input(given: Given) -> TensorInfo:
    assert given.tensor is not None
    return given.tensor


def _file_constants(given: Given) -> str:
    suffixes = tuple(sorted({file.suffix.lower() for file in given.files}))
    return templates.FILES.format(suffixes=suffixes, name=_input(given).name)


def _of_images(known: Known, given: Given) -> tuple[str, str, str]:
    """Libraries, constants and functions that read images."""
    tensor, shape = _input(given), known.shape(_input(given))
    channels, height, width = image_axes(tensor) or (1, 2, 3)
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[shape[channels]]
    size = templates.IMAGE_SIZE.format(how=known.how, mode=mode, height=shape[height], width=shape[width])
    floats = tensor.dtype.kind == "f"
    rows = "" if len(shape) == 3 else "[None]" + f".repeat({shape[0]}, axis=0)" * (shape[0] > 1)
    read = templates.READ_IMAGE.format(
        taken=shown(str(tensor)),
        channels=shape[channels],
        scale=" / 255  # TODO: as the model was trained; here 0 to 1" if floats else "",
        mean=templates.MEAN if floats and shape[channels] == 3 else "",
        moved="" if channels > height else "    pixels = pixels.transpose(2, 0, 1)\n",
        dtype=str(tensor.dtype),
        rows=rows,
    )
    return templates.PILLOW, _file_constants(given) + size, read


def _of_audio(known: Known, given: Given) -> tuple[str, str, str]:
    """Libraries, constants and functions that read audio."""
    tensor, shape, axis = _input(given), known.shape(_input(given)), wave_axis(_input(given))
    exact_values = (int(span.low) for span in known.ranges.values() if span.low == span.high > 1)
    size = templates.WAVE_SIZE.format(
        rate=next(exact_values, given.rate or 16000),
        found=f"the files have {given.rate}" if given.rate else "a guess",
        how=known.how,
        length=1 if axis is None else shape[axis],
    )
    plain = {file.suffix.lower() for file in given.files} == {".wav"}
    if axis is None:
        read = templates.READ_FEATURES.format(taken=shown(str(tensor)))
    else:
        one = (*shape[:axis], -1, *shape[axis + 1 :])
        read = templates.READ_WAVE.format(taken=shown(str(tensor)), shape=one, dtype=str(tensor.dtype))
    decode = templates.DECODE_WAV if plain else templates.DECODE
    return "" if plain else templates.SOUNDFILE, _file_constants(given) + size, decode + read


def _of_arrays(known: Known, given: Given) -> tuple[str, str, str]:
    """Libraries, constants and functions that read stored arrays."""
    arrays, matched = given.arrays or {}, _matched(known.model, given)
    load = (
        f"{{{next(iter(arrays))!r}: np.load(PLACE)}}"
        if given.path.suffix == ".npy"
        else "dict(np.load(PLACE))"
    )
    constants = templates.STORED.format(
        problem=shown(given.problem)[:300],
        matched=", ".join(f"{name!r}: {array!r}" for name, array in matched.items()),
        stored=load,
    )
    inputs = {tensor.name: tensor for tensor in known.model.inputs}
    blocks = []
    for name, steps in _steps(known.model, given):
        array, tensor = arrays[matched[name]], shown(str(inputs[name]))
        stored = f"a stored sample is {array.dtype} {list(array.shape[1:])}"
        blocks.append(f"    if name == {name!r}:  # {tensor}; {stored}")
        fail = f"raise NotImplementedError({f'TODO: {stored}, the model takes {tensor}'!r})"
        blocks += [f"        {line}" for line in ([fail] if steps is None else steps)]
    return "", constants, templates.PREPARE.format(blocks="\n".join(blocks))


def _matched(model: Model, given: Given) -> dict[str, str]:
    """Input to the stored array that it takes: of its name, else the next one that no name takes."""
    arrays = [name for name in given.arrays or {} if name != given.labels.array]
    names = [tensor.name for tensor in model.inputs]
    left = iter([name for name in arrays if name not in names])
    found = {name: name if name in arrays else next(left, "") for name in names}
    return {name: array for name, array in found.items() if array}


def _steps(model: Model, given: Given) -> Iterator[tuple[str, list[str] | None]]:
    """Each matched input with lines that make a stored sample what it takes; None where no guess does."""
    matched, batched = _matched(model, given), read_layout(model.inputs).batched
    for tensor in (t for t in model.inputs if t.name in matched):
        array, shape = (given.arrays or {})[matched[tensor.name]], tensor.shape or ()
        moved = _moved(array.shape[1:], shape[1:] if tensor.name in batched else shape)
        if moved is None or not array.ndim:
            yield tensor.name, None
            continue
        pixels = array.dtype.kind in "iu" and array.dtype.itemsize == 1 and tensor.dtype.kind == "f"
        scaled = ["sample = sample / 255  # TODO: as the model was trained; here 0 to 1"] * pixels
        row = "[None]" if tensor.name in batched else ""
        yield tensor.name, [*scaled, *moved, f"return sample.astype({str(tensor.dtype)!r}){row}"]


def _moved(have: Sequence[int], want: Sequence[Dim]) -> list[str] | None:
    """A line that brings a sample into another shape, if any; None where no axis moved or added does."""

    def fits(shape: Sequence[int]) -> bool:
        pairs = zip(shape, want, strict=False)
        return len(shape) == len(want) and all(not isinstance(w, int) or w == h for h, w in pairs)

    if fits(have):
        return []
    if 1 < len(have) < 5:
        for axes in permutations(range(len(have))):
            if fits([have[axis] for axis in axes]):
                return [f"sample = sample.transpose{axes}  # TODO: a guess"]
    added = {"None": (1, *have), "..., None": (*have, 1)}
    return next(([f"sample = sample[{at}]  # TODO: a guess"] for at in added if fits(added[at])), None)


def _labels(given: Given, folder: Path) -> tuple[str, str]:
    """The constants that labels come from, and the function that gives them."""
    labels = given.labels
    if labels.array:
        return "", templates.LABELS.format(one=f"STORED[{labels.array!r}][item]")
    if not labels.kind:
        return "", ""
    file = "" if labels.file is None else seen_from(folder, labels.file)
    if labels.kind == "folders":
        one = "CLASSES.index(item.relative_to(PLACE).parts[0])"
        constants = templates.LINES.format(file=file) if file else templates.FOLDERS
    else:
        one = "int(LISTED[item.name])" if labels.numbers else "CLASSES.index(LISTED[item.name])"
        constants = (templates.TEXT if labels.kind == "text" else templates.JSON).format(file=file)
        constants += "" if labels.numbers else templates.NAMED
    return constants, templates.LABELS.format(one=one)
