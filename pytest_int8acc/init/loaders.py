"""Makes the loader script of a spec, which draws random values or reads the user's data.

TODO marks each guess in the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from pathlib import Path

from pytest_int8acc.errors import assert_never
from pytest_int8acc.files import seen_from
from pytest_int8acc.init.data import Given
from pytest_int8acc.init.sizes import Trial, image_axes, wave_axis
from pytest_int8acc.init.templates import render
from pytest_int8acc.names import shown
from pytest_int8acc.tensors import Array, Dim, TensorInfo

#: Number of batches that the loader script yields if it draws random values.
RUNS = 8
#: Maximum number of the user's files or stored samples that the loader script gives as inputs of the case.
COMPARED = 100
#: Maximum number of files or stored samples, beyond those of the case, that the loader script gives to
#: calibration.
CALIBRATED = 50


def random_loader(trial: Trial) -> str:
    """Return a loader script that draws random values for all inputs."""
    inputs = _table(trial, trial.model.inputs, trial.inputs)
    return render("random_loader", {"sizes": trial.how, "inputs": inputs, "runs": RUNS}) + render("draw", {})


def data_loader(trial: Trial, given: Given, folder: Path, classes: str) -> str:
    """Return a loader script that reads the user's data; empty if the data fit the model without a script.

    Args:
        trial: The result of running the model with guessed input sizes, which the script uses for shapes.
        given: The user's data.
        folder: The folder into which the script will be written.
        classes: The output whose top-1 accuracy the script computes if there are labels; empty if no output
            holds scores of classes.
    """
    match given.kind:
        case "arrays":
            values = _array_values(trial, given)
            served = {tensor.name for tensor, _ in _arrays_of_inputs(trial, given)}
        case "images":
            values = _image_values(trial, given)
            served = {_input_of_files(given).name}
        case "audio":
            values = _audio_values(trial, given)
            served = {_input_of_files(given).name}
        case "ready":
            return ""
        case _:
            assert_never(given.kind)
    others = [tensor for tensor in trial.model.inputs if tensor.name not in served]
    shapes = {tensor.name: trial.sample_shape(tensor) for tensor in others}
    values |= {
        "place": repr(seen_from(folder, given.path)),
        "compared": COMPARED,
        "calibrated": CALIBRATED,
        "sizes": trial.how,
        "others": _table(trial, others, shapes) or None,
        "made_up": " | made_up()" if others else "",
        "top1_output": repr(classes) if classes and given.labels else None,
    }
    script = render("data_loader", values | _label_values(given, folder))
    return script + render("draw", {}) if others else script


def missing_parts(trial: Trial, given: Given | None, loader: str) -> str:
    """Return one line on what the user must fill in before the spec can run; empty if nothing is missing.

    Args:
        trial: The result of running the model with guessed input sizes.
        given: The user's data; None without data.
        loader: The name of the loader script; empty if there is none.
    """
    where = f" in {loader}" if loader else ""
    if given is not None and given.kind == "audio" and wave_axis(_input_of_files(given)) is None:
        taken = shown(str(_input_of_files(given)))
        return f"fill in 'read' in {loader}: the model's {taken} takes no waveform"
    if given is not None and given.arrays is not None:
        unclear = [
            shown(tensor.name)
            for tensor, array_name in _arrays_of_inputs(trial, given)
            if _steps(given.arrays[array_name], tensor, tensor.name in trial.batched) is None
        ]
        if unclear:
            return f"fill in 'prepare' in {loader}: what is stored does not fit {', '.join(unclear)}"
    if given is None and not trial.finite:
        return f"set other values{where}: outputs are not finite on those made up"
    if trial.outputs:
        return ""
    refusal = f" ({shown(trial.refused)})" if trial.refused else ""
    return f"set its sizes and values{where}: it did not run with any tried{refusal}"


def _table(trial: Trial, inputs: Iterable[TensorInfo], shapes: dict[str, tuple[int, ...]]) -> str:
    """Return lines of Python for the loader script: items of a dict about the random values of ``inputs``.

    Each item is the name of an input, and its shape, dtype, least and greatest value. ``shapes`` has the
    shapes by input name.
    """
    lines = []
    for tensor in inputs:
        values_range = trial.ranges[tensor.name]
        declared = "scalar" if tensor.shape == () else shown(str(tensor))
        why = f"; {values_range.why}" if values_range.why else ""
        values = f"{shapes[tensor.name]!r}, {str(tensor.dtype)!r}, {values_range.low}, {values_range.high}"
        lines.append(f"    {tensor.name!r}: ({values}),  # {declared}{why}")
    return "\n".join(lines)


def _input_of_files(given: Given) -> TensorInfo:
    assert given.tensor is not None, "images and audio have an input that takes them"
    return given.tensor


def _file_values(given: Given) -> dict[str, object]:
    """Return the values of placeholders that the loader's template needs for images as well as for audio."""
    tensor = _input_of_files(given)
    return {
        "if_files": True,
        "suffixes": tuple(sorted({file.suffix.lower() for file in given.files})),
        "input": repr(tensor.name),
        "taken": shown(str(tensor)),
        "dtype": repr(str(tensor.dtype)),
    }


def _image_values(trial: Trial, given: Given) -> dict[str, object]:
    """Return the values of all placeholders that the loader's template needs for images."""
    tensor = _input_of_files(given)
    shape = trial.sample_shape(tensor)
    channels, height, width = image_axes(tensor) or (1, 2, 3)
    is_float = tensor.dtype.kind == "f"
    copies = f".repeat({shape[0]}, axis=0)" if shape[0] > 1 else ""
    return _file_values(given) | {
        "if_images": True,
        "mode": repr({1: "L", 3: "RGB", 4: "RGBA"}[shape[channels]]),
        "height": shape[height],
        "width": shape[width],
        "channels": shape[channels],
        "if_bytes": not is_float,
        "if_floats": is_float,
        "if_colors": is_float and shape[channels] == 3,
        "if_channels_first": channels < height,
        "rows": "" if len(shape) == 3 else f"[None]{copies}",
    }


def _audio_values(trial: Trial, given: Given) -> dict[str, object]:
    """Return the values of all placeholders that the loader's template needs for audio."""
    tensor = _input_of_files(given)
    shape, axis = trial.sample_shape(tensor), wave_axis(tensor)
    only_wav = all(file.suffix.lower() == ".wav" for file in given.files)
    rates = [int(found.low) for found in trial.ranges.values() if found.low == found.high > 1]
    values = _file_values(given) | {
        "if_audio": True,
        "if_wave": only_wav,
        "if_soundfile": not only_wav,
        "rate": rates[0] if rates else given.rate or 16000,
        "rate_source": f"the files have {given.rate}" if given.rate else "a guess",
    }
    if axis is None:
        return values | {"length": 1, "features": repr(shown(str(tensor)))}
    shape_of_wave = (*shape[:axis], -1, *shape[axis + 1 :])
    return values | {"length": shape[axis], "shape_of_wave": shape_of_wave}


def _array_values(trial: Trial, given: Given) -> dict[str, object]:
    """Return the values of all placeholders that the loader's template needs for stored arrays."""
    stored = given.arrays or {}
    matched = _arrays_of_inputs(trial, given)
    blocks = []
    for tensor, array_name in matched:
        array, taken = stored[array_name], shown(str(tensor))
        sample = f"a stored sample is {array.dtype} {list(array.shape[1:])}"
        blocks.append(f"    if name == {tensor.name!r}:  # {taken}; {sample}")
        steps = _steps(array, tensor, tensor.name in trial.batched)
        if steps is None:
            message = f"TODO: {sample}, the model takes {taken}"
            steps = [f"raise NotImplementedError({message!r})"]
        blocks += [f"        {step}" for step in steps]
    is_npy = given.path.suffix == ".npy"
    return {
        "stored": f"{{{next(iter(stored))!r}: np.load(PLACE)}}" if is_npy else "dict(np.load(PLACE))",
        "problem": shown(given.problem)[:300],
        "arrays": ", ".join(f"{tensor.name!r}: {array_name!r}" for tensor, array_name in matched),
        "steps": "\n".join(blocks),
    }


def _arrays_of_inputs(trial: Trial, given: Given) -> list[tuple[TensorInfo, str]]:
    """Return each input of the model with the name of its stored array; inputs without one are left out.

    An input is paired with the array of the same name. If there is no such array, the input is paired with
    the next array that has the name of no input.
    """
    names = list(given.arrays or {})
    if given.labels:
        names = [name for name in names if name != given.labels.array]
    inputs = {tensor.name for tensor in trial.model.inputs}
    free = iter([name for name in names if name not in inputs])
    matched = [(t, t.name if t.name in names else next(free, "")) for t in trial.model.inputs]
    return [(tensor, array_name) for tensor, array_name in matched if array_name]


def _steps(array: Array, tensor: TensorInfo, is_batched: bool) -> list[str] | None:
    """Return lines of Python that convert a sample of ``array`` to the model's input ``tensor``.

    ``is_batched`` says whether axis 0 of the input counts samples. The result is None if no conversion is
    known.
    """
    shape = tensor.shape or ()
    reshaping = _reshaping(array.shape[1:], shape[1:] if is_batched else shape)
    if reshaping is None or not array.ndim:
        return None
    steps = [reshaping] if reshaping else []
    if array.dtype.kind in "iu" and array.dtype.itemsize == 1 and tensor.dtype.kind == "f":
        steps.insert(0, "sample = sample / 255  # TODO: as the model was trained; here 0 to 1")
    row = "[None]" if is_batched else ""
    return [*steps, f"return sample.astype({str(tensor.dtype)!r}){row}"]


def _reshaping(shape: Sequence[int], dims: Sequence[Dim]) -> str | None:
    """Return a line of Python that changes a sample of ``shape`` to a shape that fits ``dims``.

    The line makes a transpose or adds an axis. It is empty if ``shape`` fits already. The result is None if
    neither helps.
    """

    def fits(shape: Sequence[int]) -> bool:
        pairs = zip(shape, dims, strict=False)
        return len(shape) == len(dims) and all(not isinstance(dim, int) or dim == n for n, dim in pairs)

    if fits(shape):
        return ""
    for axes in permutations(range(len(shape))) if 1 < len(shape) < 5 else ():
        if fits([shape[axis] for axis in axes]):
            return f"sample = sample.transpose{axes}  # TODO: a guess"
    if fits((1, *shape)):
        return "sample = sample[None]  # TODO: a guess"
    return "sample = sample[..., None]  # TODO: a guess" if fits((*shape, 1)) else None


def _label_values(given: Given, folder: Path) -> dict[str, object]:
    """Return the values of placeholders that say how the loader script reads labels; empty without labels."""
    labels = given.labels
    if labels is None:
        return {}
    file = None if labels.file is None else repr(seen_from(folder, labels.file))
    match labels.kind:
        case "array":
            return {"one_label": f"STORED[{labels.array!r}][item]"}
        case "folders":
            index = "CLASSES.index(item.relative_to(PLACE).parts[0])"
            return {"class_list": file, "if_class_folders": file is None, "one_label": index}
        case "text" | "json":
            return {
                "text_labels": file if labels.kind == "text" else None,
                "json_labels": file if labels.kind == "json" else None,
                "if_json_labels": labels.kind == "json",
                "if_class_names": not labels.numbers,
                "one_label": "int(LISTED[item.name])"
                if labels.numbers
                else "CLASSES.index(LISTED[item.name])",
            }
        case "file":
            return {}
        case _:
            assert_never(labels.kind)
