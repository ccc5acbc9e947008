"""Tensors as an ONNX file stores them: each read only where its type, sizes and bytes agree."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.tensors import Array

#: Element types of fewer than 8 bits, which share bytes: their bits.
_PACKED = {
    number: int(found[1] or found[2])
    for name, number in TensorProto.DataType.items()
    if (found := re.fullmatch(r"U?INT([24])|FLOAT([46])E\dM\d", name))
}
#: Those whose elements share the entries of ``int32_data``, too.
_SHARED = frozenset(number for number, bits in _PACKED.items() if bits != 6)
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "string_data", "double_data", "uint64_data")
#: A sparse tensor that would take more bytes than this is refused.
DENSE_BYTES = 1 << 30


def is_type(data_type: int) -> bool:
    """Whether ``data_type`` is one of ``TensorProto.DataType`` that arrays can have."""
    return data_type != TensorProto.UNDEFINED and data_type in TensorProto.DataType.values()


def check_stored(tensor: TensorProto, where: str) -> None:
    """Raise ModelError, naming ``where``, unless a tensor holds all of its elements and no more.

    As onnx.proto3 describes TensorProto: one field of data, of the element type, with the bytes or entries
    that the sizes want. External data are measured where they are read.
    """
    if not is_type(tensor.data_type):
        raise ModelError(f"{where} has element type {tensor.data_type}, which ONNX {onnx.__version__} lacks")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{where} has a negative size: {list(tensor.dims)}")
    if tensor.HasField("segment"):
        raise ModelError(f"{where} is stored in segments, which no runtime reads; store it whole")
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    del tensor.external_data[:]
    own = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    used = [field for field in _FIELDS if getattr(tensor, field)]
    strings = tensor.data_type == TensorProto.STRING
    if strange := [field for field in used if field != own and (strings or field != "raw_data")]:
        kind = TensorProto.DataType.Name(tensor.data_type)
        raise ModelError(f"{where} is of type {kind}, and has data in '{strange[0]}'")
    if len(used) > 1:
        raise ModelError(f"{where} has data twice, in {' and '.join(used)}")
    raw = used == ["raw_data"] or (not used and tensor.HasField("raw_data"))
    wanted = _stored_bytes(tensor) if raw else _entries(tensor)
    found = len(tensor.raw_data if raw else getattr(tensor, own))
    if found != wanted:
        what = "bytes" if raw else "entries"
        raise ModelError(f"{where} of sizes {list(tensor.dims)} wants {wanted} {what}, and has {found}")
    _check_strings(tensor, where)


def _check_strings(tensor: TensorProto, where: str) -> None:
    try:
        for entry in tensor.string_data:
            entry.decode()
    except UnicodeDecodeError:
        raise ModelError(f"{where} holds text that is not UTF-8") from None


def _stored_bytes(tensor: TensorProto) -> int:
    """Bytes that the elements take in ``raw_data`` or an external file; not for strings."""
    bits = _PACKED.get(tensor.data_type) or 8 * dtype_of(tensor.data_type).itemsize
    return -(-_count(tensor) * bits // 8)


def _entries(tensor: TensorProto) -> int:
    count = _count(tensor)
    if tensor.data_type in _SHARED:
        return -(-count * _PACKED[tensor.data_type] // 8)
    return 2 * count if tensor.data_type in _COMPLEX else count


def _count(tensor: TensorProto) -> int:
    return math.prod(map(int, tensor.dims))


def dtype_of(data_type: int) -> np.dtype[np.generic]:
    """The NumPy dtype of a known element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))


def read_external(tensor: TensorProto, folder: Path, where: str) -> Array:
    """The array of a checked tensor that is external data, mapped from its file where its type allows.

    Raises:
        ModelError: The file is missing, lies outside ``folder``, or is not as long as the tensor says.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_type == TensorProto.STRING:
        raise ModelError(f"{where} is text in an external file, which ONNX does not allow")
    offset, wanted = _number(entries, "offset", where) or 0, _stored_bytes(tensor)
    length = _number(entries, "length", where)
    if length not in (None, wanted):
        raise ModelError(
            f"{where} of sizes {list(tensor.dims)} wants {wanted} bytes, its 'length' says {length}"
        )
    file = _find(entries.get("location", ""), folder, where)
    size = file.stat().st_size
    if offset + wanted > size:
        raise ModelError(
            f"{where} needs bytes {offset} to {offset + wanted} of '{file.name}', "
            f"which has {size}: the file is cut off or belongs to another export"
        )
    shape = tuple(tensor.dims)
    if wanted == 0:
        return np.zeros(shape, dtype_of(tensor.data_type))
    try:
        if tensor.data_type not in _PACKED:
            return np.memmap(file, dtype_of(tensor.data_type), mode="r", offset=offset, shape=shape)
        data = np.fromfile(file, np.uint8, wanted, offset=offset).tobytes()
    except OSError as error:
        raise ModelError(f"{where}: '{file.name}' cannot be read: {error.strerror or error}") from error
    inline = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=data)
    return np.asarray(numpy_helper.to_array(inline))


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ModelError(
            f"{where}: '{key}' of its external data is {text[:40]!r}, expected a number of bytes"
        )
    return int(text) if text else None


def _find(location: str, folder: Path, where: str) -> Path:
    """The regular file at ``location`` below ``folder``; ModelError where there is none."""
    try:
        file = (folder / location).resolve()
        inside, there = folder in file.parents, file.is_file()
    except (
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # NUL; names too long; link loops, by Python's version
        raise ModelError(f"{where}: {location[:80]!r} is no file's name ({error})") from None
    if location and not inside:
        raise ModelError(f"{where} lies outside the model's folder: {file}")
    if not location or not there:
        raise ModelError(
            f"{where} is stored in '{file.name if location else ''}', which is not there; "
            "copy the external data file beside the model"
        )
    return file


def densify(sparse: onnx.SparseTensorProto, folder: Path, where: str) -> Array:
    """A sparse tensor as an array of all its elements, zeros filled in.

    As onnx.proto3 describes SparseTensorProto: ``indices`` are positions in the flat array, or coordinates.

    Raises:
        ModelError: Values, indices and sizes do not agree, or it would take more than ``DENSE_BYTES``.
    """
    values, indices = (_array(part, folder, where) for part in (sparse.values, sparse.indices))
    dims = tuple(sparse.dims)
    size = math.prod(dims) * values.dtype.itemsize
    if any(dim < 0 for dim in dims) or size > DENSE_BYTES or values.dtype.kind not in "fiub":
        raise ModelError(
            f"{where} is sparse, of sizes {list(dims)} and type {values.dtype}: expected numbers, and no "
            f"more than {DENSE_BYTES} bytes when zeros are filled in; store it as a plain tensor"
        )
    fits = values.ndim == 1 and indices.dtype == np.int64
    fits = fits and indices.shape in ((len(values),), (len(values), len(dims)))
    limits = dims if indices.ndim == 2 else math.prod(dims)
    if not fits or (indices < 0).any() or (indices >= np.asarray(limits)).any():
        raise ModelError(
            f"{where} is sparse: its {list(indices.shape)} indices of {indices.dtype} do not fit "
            f"{list(values.shape)} values in sizes {list(dims)}"
        )
    dense: Array = np.zeros(dims, values.dtype)
    flat = np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 else indices
    dense.reshape(-1)[flat] = values
    return dense


def _array(tensor: TensorProto, folder: Path, where: str) -> Array:
    check_stored(tensor, where)
    if tensor.data_location == TensorProto.EXTERNAL:
        return read_external(tensor, folder, where)
    return np.asarray(numpy_helper.to_array(tensor))
