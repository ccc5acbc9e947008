"""ONNX models that are malformed in every way that a seed can think of: fields of protos, and bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper
from written_networks import network, written

DATA = "w.bin"
_INTS = (0, 1, -1, 2, 3, 8, 13, 99, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
_FLOATS = (0.0, -1.0, 1e38, -1e-45, float("nan"), float("inf"))
#: Stands for bytes that are no UTF-8, which protobuf would not take; replaced once the model is bytes.
_BAD, _BAD_BYTES = "@bad-utf8@", b"\xff\xfebad-utf8"
_TEXTS = ("", "x", "\x00", "a\nb", _BAD, "../w.bin", "/dev/zero", "abc", "n" * 70_000, "ai.onnx", "w.bin")


_WRITTEN = written(Path(__file__).parents[1] / "graph" / "malformed_bases.yaml")


def external() -> onnx.ModelProto:
    """Weights in a file of their own: of an initializer, of a Constant node, and inside a branch."""
    proto = network(**_WRITTEN["branches"], named=False)
    value = numpy_helper.from_array(np.ones((4, 4), np.float32), "value")
    proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "v"))
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["v"], value=value))
    branch = next(a.g for n in proto.graph.node if n.op_type == "If" for a in n.attribute)
    inner = next(t for t in proto.graph.initializer if t.name == "w")
    tensors = [proto.graph.node[0].attribute[0].t, inner, branch.initializer[0]]
    offset = 0
    for tensor in tensors:
        size = 4 * int(np.prod(tensor.dims))
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", DATA), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(text))
        offset += size
    return proto


BASES: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: partial(network, **said, named=False) for name, said in _WRITTEN.items()},
    "external": external,
}


def write_data(folder: Path) -> None:
    """The file that holds the external data of ``external``."""
    (folder / DATA).write_bytes(np.linspace(-1, 1, 64, dtype=np.float32).tobytes())


def malformed(base: str, seed: int) -> bytes:
    """The model ``base``, malformed: of five seeds, one mutates bytes, one an attribute's numbers, one a
    tensor's type and values, and two any fields of any messages, one to three of them."""
    rng = random.Random(f"{base}-{seed}")
    proto = BASES[base]()
    if seed % 5 == 0:
        return _mutated_bytes(rng, proto.SerializeToString())
    changes = {1: _odd_attribute, 2: _odd_tensor}
    for _ in range(1 if seed % 5 in changes else rng.choice((1, 1, 1, 2, 3))):
        changes.get(seed % 5, _mutate)(rng, proto)
    for tensor in proto.graph.initializer:
        if tensor.name == "trips" and any(n > 9 for n in tensor.int64_data):
            tensor.int64_data[:] = [9]  # a loop without end is a whole model
    return bytes(proto.SerializeToString()).replace(_BAD.encode(), _BAD_BYTES)


def _mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(raw))
        match rng.randrange(4):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del raw[at : at + rng.choice((1, 2, 40))]
            case _:
                start = rng.randrange(len(raw))
                raw[at:at] = raw[start : start + rng.choice((1, 8, 60))]
    return bytes(raw)


def _odd_attribute(rng: random.Random, proto: onnx.ModelProto) -> None:
    """Other integers in an attribute of its own type."""
    said = [m for m in _messages(proto) if isinstance(m, onnx.AttributeProto) and m.type in (2, 7)]
    if not said:
        return _odd_tensor(rng, proto)
    attribute = rng.choice(said)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(_INTS)
    else:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_INTS)
    return None


def _odd_tensor(rng: random.Random, proto: onnx.ModelProto) -> None:
    """A tensor of another element type, other sizes or other values, whole in itself."""
    tensor = rng.choice([m for m in _messages(proto) if isinstance(m, TensorProto)])
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    array = np.array(numpy_helper.to_array(tensor))
    how = rng.randrange(3)
    if how == 0:
        array = array.astype(rng.choice(("f2", "f8", "i1", "u1", "i4", "i8", "?", "c8", "U")))
    elif how == 1:
        flat = array.reshape(-1)
        shapes = ((), (0,), (1,), flat.shape, (1, *array.shape), array.shape[::-1], (*array.shape, 0))
        shape = rng.choice(shapes)
        array = flat[: math.prod(shape)].reshape(shape)
    elif array.dtype.kind == "f":
        array[...] = rng.choice(_FLOATS)
    else:
        array[...] = rng.choice((0, 1, -1, 127)) if array.dtype.kind in "iu" else 0
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


def _mutate(rng: random.Random, proto: onnx.ModelProto) -> None:
    """Change one field of one message of ``proto``, set or not."""
    kinds: dict[str, list[Message]] = {}
    for message in _messages(proto):
        kinds.setdefault(message.DESCRIPTOR.name, []).append(message)
    often = [kind for kind in ("TensorProto", "NodeProto", "AttributeProto", "NodeProto") if kind in kinds]
    kind = rng.choice([*sorted(kinds), *often])
    message = rng.choice(kinds[kind])
    fields = [f for f in message.DESCRIPTOR.fields if f.name != "doc_string"]
    present = [f for f, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else fields)
    value = getattr(message, field.name)
    if isinstance(value, Message):
        others = kinds.get(value.DESCRIPTOR.name, [])
        _replace(rng, message, field, others)
    elif hasattr(value, "append") or hasattr(value, "add"):
        _change_list(rng, value, field, kinds)
    else:
        _set(message, field, _scalar(rng, field, value, kinds))


def _replace(rng: random.Random, message: Message, field: Any, others: list[Message]) -> None:
    if not others or rng.random() < 0.5:
        message.ClearField(field.name)
        return
    other = type(others[0])()
    other.CopyFrom(rng.choice(others))
    getattr(message, field.name).CopyFrom(other)


def _change_list(rng: random.Random, values: Any, field: Any, kinds: dict[str, list[Message]]) -> None:
    how = rng.choice(("delete", "double", "swap", "clear", "add", "change", "change"))
    nested = field.type == field.TYPE_MESSAGE
    if how == "add" or not len(values):
        if not nested:
            values.append(_scalar(rng, field, None, kinds))
        elif others := kinds.get(field.message_type.name):
            other = type(others[0])()
            other.CopyFrom(rng.choice(others))
            values.append(other)
        else:
            values.add()
        return
    at, to = rng.randrange(len(values)), rng.randrange(len(values))
    if how == "clear":
        del values[:]
    elif how == "delete":
        del values[at]
    elif nested:
        copies = [type(v).FromString(v.SerializeToString()) for v in (values[at], values[to])]
        if how == "double":
            values.append(copies[0])
        else:
            values[at].CopyFrom(copies[1])
            values[to].CopyFrom(copies[0])
    elif how == "change":
        values[at] = _scalar(rng, field, values[at], kinds)
    else:
        values[at], values[to] = values[to], values[at]
        if how == "double":
            values.append(values[at])


def _set(message: Message, field: Any, value: Any) -> None:
    try:
        setattr(message, field.name, value)
    except (TypeError, ValueError):  # an enum, or 32 bits, that protobuf keeps clean
        message.ClearField(field.name)


def _scalar(rng: random.Random, field: Any, old: Any, kinds: dict[str, list[Message]]) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == field.TYPE_BYTES:
        data = old or b""
        return rng.choice((b"", data[:-1], data + b"\0", data * 2, b"\xff" * len(data), rng.randbytes(8)))
    if field.type == field.TYPE_STRING:
        names = [n for node in kinds.get("NodeProto", ()) for n in (*node.input, *node.output, node.op_type)]
        return rng.choice((*_TEXTS, *rng.choices(names, k=20))) if names else rng.choice(_TEXTS)
    if field.type == field.TYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    wide = field.type in (field.TYPE_INT64,)
    near = [old + 1, old - 1] if isinstance(old, int) else []
    allowed = [n for n in (*_INTS, *near) if wide or -(2**31) <= n < 2**31]
    return rng.choice([n for n in allowed if field.type != field.TYPE_UINT64 or n >= 0])
