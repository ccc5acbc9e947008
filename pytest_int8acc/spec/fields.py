"""Types of the values and mappings in a spec.

Each type defines the values that it accepts, and the messages for values that it rejects.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

#: The types of the pydantic errors that this package raises with messages of its own: for a wrong value, a
#: wrong key, and a missing key.
VALUE, KEY, MISSING = "int8acc_value", "int8acc_key", "int8acc_missing"

#: Regular expressions: ``FUNCTION`` matches a function ``file.py:function``, ``NAME`` the name of a case.
FUNCTION = r"^[^\x00-\x1f]+\.py:[A-Za-z_][A-Za-z0-9_]*$"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that is most similar to ``word``; None if none is similar."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.7)
    return near[0] if near else None


def found(value: object) -> str:
    """Return a short text for ``value``, which follows 'found' in an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    if isinstance(value, dict):
        return f"a mapping {{{str(next(iter(value)))[:40]}: ...}}" if value else "an empty mapping"
    return "a list" if isinstance(value, list) else str(value)


def option(description: str, default: Any = None, **more: Any) -> Any:
    """Return the field of an optional key; the JSON schema and the reference show ``description``."""
    return Field(default, description=description, **more)


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError(VALUE, text)


def expect(what: str, hint: Callable[[Any], str] = lambda value: "") -> WrapValidator:
    """Return a validator that replaces pydantic's message by ``expected <what>, found <value><hint>``.

    ``hint`` makes the end of the message from the wrong value. Messages on a part of the value, and messages
    that this module has made already, are not replaced.
    """

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if any(detail["loc"] or detail["type"] == VALUE for detail in error.errors(include_url=False)):
                raise
        raise _wrong(f"expected {what}, found {found(value)}{hint(value)}")

    return WrapValidator(validate)


def one_of(literal: Any, or_else: str = "") -> WrapValidator:
    """Return a validator whose error message lists the strings of a Literal and proposes a similar one.

    ``or_else`` is text that follows the list.
    """
    names = get_args(literal)
    several = "one of " if len(names) > 1 else ""
    return expect(f"{several}{', '.join(names)}{or_else}", lambda value: _near_hint(value, names))


def or_function(literal: Any) -> str:
    """Return a regular expression that matches a Literal's strings, or a function ``file.py:function``."""
    return f"^({'|'.join(get_args(literal))})$|{FUNCTION}"


def expect_or_function(literal: Any) -> WrapValidator:
    """Return a validator whose error message asks for one of a Literal's strings or a user's function.

    The message proposes the most similar of the strings.
    """
    names = get_args(literal)

    def hint(value: Any) -> str:
        near = "" if ".py" in str(value) else _near_hint(value, names)
        return near or _text_hint(value)

    return expect(f"{', '.join(names)}, or a Python function as 'file.py:function'", hint)


def expect_list(what: str) -> WrapValidator:
    """Return a validator whose error message asks for a list of ``what``, and shows how to write one."""
    return expect(f"a list of {what}", _list_hint)


def _near_hint(value: Any, names: Iterable[str]) -> str:
    near = closest(value, names) if isinstance(value, str) else None
    return f" (did you mean '{near}'?)" if near else ""


def _number_hint(value: Any) -> str:
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return f"; write {number:.15g} without quotes" if math.isfinite(number) else ""


def _text_hint(value: Any) -> str:
    return "; put it in quotes if it is meant as text" if isinstance(value, bool | int | float) else ""


def _list_hint(value: Any) -> str:
    if isinstance(value, dict):
        return "; start each item with '- '"
    return f"; write [{found(value)}]" if isinstance(value, str) else ""


def _named_function(value: str) -> str:
    """Return ``value``, a path of the user; raises an error if it names a Python file without a function."""
    script = re.search(r"^.*?\.py(?=:|$)", value)
    if script and not re.search(FUNCTION, value):
        raise _wrong(f"expected a function in {script[0]}, as '{script[0]}:function', found {found(value)}")
    return value


def _known_mark(value: str) -> str:
    """Return ``value``, the name of a mark; raises an error if the mark needs arguments or a reason."""
    if value in ("skip", "xfail"):
        raise _wrong(f"'{value}' needs a reason: use the key '{value}: why' instead of a mark")
    if value in ("skipif", "parametrize", "usefixtures", "filterwarnings"):
        raise _wrong(f"'{value}' takes arguments, which a spec cannot give; use a conftest.py")
    return value


def _worded(value: str) -> str:
    """Return ``value``, the text of a reason; raises an error if it is a word such as ``no`` or ``off``.

    Users may take such words for booleans, as in YAML 1.1. With ``skip: no`` a test would be skipped.
    """
    if value.lower() in ("yes", "no", "on", "off", "y", "n"):
        raise _wrong(f"expected the reason, as text, found {found(value)}, which is no reason")
    return value


def _growing(value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return ``value``, the shapes of a profile; raises an error unless it holds three shapes of one rank.

    No dimension of a shape may be smaller than the same dimension of the shape before.
    """
    if len(value) != 3:
        raise _wrong(f"expected {_PROFILE}, found {len(value)}")
    if len(set(map(len, value))) > 1 or not all(a <= b <= c for a, b, c in zip(*value, strict=False)):
        raise _wrong("the three shapes must have one rank, and no dimension may shrink")
    return value


def _some(value: str) -> str:
    """Return ``value``, a percentage like '0.5%'; raises an error if the percentage is 0."""
    if float(value.rstrip(" %")) == 0:
        raise _wrong(f"expected {_SHARE}, found {found(value)}")
    return value


def _several(value: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``value``, the sizes of an output's parts; raises an error unless there are two or more."""
    if len(value) < 2:
        raise _wrong(f"expected {_PARTS}, found {len(value)}: one part is the whole output")
    return value


_PRINTABLE = r"^[^\x00-\x1f]+$"
_PROFILE = "three shapes, smallest, usual and largest, like [[1, 3], [8, 3], [32, 3]]"
_DROP = "a number of at least 0, or a percentage of the baseline's value like '1%'"

_SHARE = "a share of the samples above 0 and up to 0.99, like 0.005 or '0.5%'"

_text = partial(expect, hint=_text_hint)
_number = partial(expect, hint=_number_hint)
_Line = Annotated[str, Field(strict=True, pattern=_PRINTABLE)]
_Place = Annotated[_Line, AfterValidator(_named_function)]
_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Text = Annotated[_Line, _text("text")]
#: The name of a node or a tensor, which may contain any character, or a pattern of such names.
GraphName = Annotated[str, Field(strict=True, min_length=1), _text("text")]
File = Annotated[_Line, _text("a file's path")]
Reason = Annotated[
    str, Field(strict=True, min_length=1), AfterValidator(_worded), _text("the reason, as text")
]
Name = Annotated[
    str,
    Field(strict=True, pattern=NAME),
    _text("a name of letters, digits, '_', '-' and '.' that starts with a letter, a digit or '_'"),
]
MarkName = Annotated[
    str,
    Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_]*$"),
    AfterValidator(_known_mark),
    _text("the name of a pytest mark (letters, digits and '_')"),
]
DataPath = Annotated[_Place, _text("a file, a folder, 'file.py:function' or {random: {samples: N}}")]
ProvePath = Annotated[_Place, _text("a file, a folder, 'file.py:function' or {inputs: FILE, labels: FILE}")]
LabelsPath = Annotated[_Place, _text("a .npy, .npz, .txt or .json file, or 'file.py:function'")]
GroupsPath = Annotated[
    _Place, _text("a .npy, .npz or .txt file, 'file.py:function', or the name of an array of 'labels'")
]

Count = Annotated[int, Field(strict=True, ge=1), _number("a whole number of at least 1")]
Level = Annotated[int, Field(strict=True, ge=0, le=5), _number("a whole number from 0 to 5")]
Size = Annotated[
    str, Field(strict=True, pattern=r"^0*[1-9][0-9]* ?[KMGTkmgt]?$"), _text("a size like 500M or 4G")
]
NonNegativeInteger = Annotated[int, Field(strict=True, ge=0), _number("a whole number of at least 0")]
Shape = Annotated[tuple[NonNegativeInteger, ...], expect("a shape like [8, 3, 224, 224]")]
Profile = Annotated[
    tuple[Shape, ...],
    Field(json_schema_extra={"minItems": 3, "maxItems": 3}),
    AfterValidator(_growing),
    expect(_PROFILE),
]
_PARTS = "sizes along 'axis', like [4, 80], or off"
Parts = Annotated[
    Annotated[
        tuple[Count, ...],
        Field(json_schema_extra={"minItems": 2}),
        AfterValidator(_several),
        expect(_PARTS),
        Tag("(sizes)"),
    ]
    | Annotated[Literal["off"], expect(_PARTS), Tag("(off)")],
    Discriminator(lambda value: "(off)" if isinstance(value, str | bool) else "(sizes)"),
]
Integer = Annotated[int, Field(strict=True), _number("a whole number")]
Flag = Annotated[bool, Field(strict=True), expect("true or false")]
Number = Annotated[_Float, _number("a number")]
Positive = Annotated[_Float, Field(gt=0), _number("a number greater than 0")]
NonNegative = Annotated[_Float, Field(ge=0), _number("a number of at least 0")]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1), _number("a number between 0 and 1")]
Correlation = Annotated[float, Field(strict=True, ge=-1, le=1), _number("a number between -1 and 1")]
Percentile = Annotated[
    float, Field(strict=True, gt=50, le=100), _number("a percentile greater than 50 and at most 100")
]
Drop = Annotated[
    Annotated[_Float, Field(ge=0), expect(_DROP), Tag("(number)")]
    | Annotated[str, Field(strict=True, pattern=r"^[0-9]+(\.[0-9]+)? ?%$"), _number(_DROP), Tag("(text)")],
    Discriminator(lambda value: "(text)" if isinstance(value, str) else "(number)"),
]


Confidence = Annotated[
    float, Field(strict=True, ge=0.5, le=0.9999), _number("a number from 0.5 to 0.9999, like 0.95")
]
Share = Annotated[
    Annotated[_Float, Field(gt=0, le=0.99), expect(_SHARE), Tag("(number)")]
    | Annotated[
        str,
        Field(strict=True, pattern=r"^[0-9]{1,2}(\.[0-9]+)? ?%$"),
        AfterValidator(_some),
        _number(_SHARE),
        Tag("(text)"),
    ],
    Discriminator(lambda value: "(text)" if isinstance(value, str) else "(number)"),
]


class Closed(BaseModel):
    """Base class of all mappings in a spec: unknown keys are mistakes, and messages are in plain words."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, serialize_by_alias=True)

    where: ClassVar[str]
    """The dotted key of the mapping in a case, like ``int8.calibrate``; empty for the case itself."""
    expected: ClassVar[str]
    """The words that follow 'expected' in the error message for a value that is no mapping."""

    @classmethod
    def written_keys(cls) -> list[str]:
        """Return the keys as a user writes them in a spec.

        A key that is a keyword of Python, such as ``for``, is kept in a field with another name.
        """
        return [info.alias or name for name, info in cls.model_fields.items()]

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a pair for each contradiction between keys: the wrong key, and a message.

        The key is None if the message is about the whole mapping.

        Args:
            given: The mapping as written. Its values may be of any type.
        """
        return iter(())

    @classmethod
    def lacking(cls, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message for each group of keys of which ``given`` must have one and has none."""
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _in_plain_words(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        details: list[InitErrorDetails] = []
        validated = None
        try:
            validated = handler(value)
        except ValidationError as error:
            details = _reworded(cls, value, error)
        if isinstance(value, dict):
            given = {_meant(cls, key) or key: v for key, v in value.items() if v is not None}
            details += [
                _detail(KEY, text, (key,)) if key else _detail(VALUE, text)
                for key, text in cls.conflicts(given)
            ]
            details += [_detail(MISSING, text) for text in cls.lacking(given)]
        if details:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return validated


def _detail(kind: str, text: str, loc: tuple[str | int, ...] = (), value: Any = None) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(kind, text), loc=loc, input=value)


def _reworded(model: type[Closed], value: Any, error: ValidationError) -> list[InitErrorDetails]:
    """Return the details of ``error``, with messages in plain words for unknown keys and missing keys.

    The message for a value that is no mapping is replaced, too.

    Args:
        model: The kind of mapping that was validated.
        value: The mapping as the user wrote it.
        error: The error of pydantic.
    """
    details = []
    for detail in error.errors(include_url=False):
        kind, loc = detail["type"], detail["loc"]
        if kind == "extra_forbidden" and len(loc) == 1:
            details.append(_detail(KEY, _unknown_key(model, str(loc[0])), loc))
        elif kind == "missing" and len(loc) == 1:
            if all(_meant(model, key) != loc[0] for key in value):
                details.append(_detail(MISSING, _missing_key(model, str(loc[0]))))
        elif kind == "model_type" and not loc:
            details.append(_detail(VALUE, f"expected {model.expected}, found {found(value)}"))
        else:
            details.append(_detail(kind, detail["msg"], loc, detail["input"]))
    return details


def _unknown_key(model: type[Closed], key: str) -> str:
    """Return the message on a key that ``model`` lacks, with advice on the key's right place or spelling."""
    homes = _homes(key)
    section = model.where.partition(".")[0]
    inside = [home for home in homes if home.startswith(f"{model.where}.")]
    siblings = [home for home in homes if section and home.startswith(f"{section}.")]
    near = closest(key, model.written_keys())
    if model.where in homes:
        advice = f"it belongs in another item of '{model.where}'"
    elif homes:
        nearest = inside or siblings or homes
        places = [f"under '{home}'" if home else "at the top of the case" for home in nearest]
        advice = f"it belongs {' or '.join(places)}"
    elif near:
        advice = f"did you mean '{near}'?"
    else:
        advice = f"known here: {', '.join(model.written_keys())}"
    return f"unknown key {found(key)} ({advice})"


def _homes(key: str) -> list[str]:
    """Return the attribute ``where`` of each kind of mapping in a spec that accepts ``key``."""
    return list(dict.fromkeys(model.where for model in _mappings(Closed) if key in model.written_keys()))


def _mappings(base: type[Closed]) -> Iterator[type[Closed]]:
    for model in base.__subclasses__():
        if model.model_fields:
            yield model
        yield from _mappings(model)


def _missing_key(model: type[Closed], key: str) -> str:
    examples = model.model_fields[key].examples or ["..."]
    return f"'{key}' is missing: add '{key}: {_flow(examples[0])}'"


def _flow(value: Any) -> str:
    """Return ``value`` as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _meant(model: type[Closed], key: str) -> str | None:
    """Return the key of ``model`` of which ``key`` is a misspelling; None if there is no such key.

    The result is also None if some mapping of a spec accepts ``key``. Then ``key`` is in the wrong place, and
    not misspelled.
    """
    if key in model.written_keys() or _homes(key):
        return None
    return closest(key, model.written_keys())
