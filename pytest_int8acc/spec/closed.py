"""A mapping of a spec: known keys only, and every mistake in it told at once in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from pytest_int8acc.spec.fields import KEY, MISSING, VALUE, closest, found


class Closed(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: ClassVar[str]
    """The key, or dotted keys, in a case under which such a mapping stands; empty for the case itself."""
    expected: ClassVar[str]
    """What a message asks for where something else stands."""

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """What is wrong between keys, of which ``given`` has any values: (the key at fault or None, why)."""
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
        if details:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return validated


def _detail(kind: str, text: str, loc: tuple[str | int, ...] = (), value: Any = None) -> InitErrorDetails:
    """One error whose message is ``text`` as it stands."""
    return InitErrorDetails(type=PydanticCustomError(kind, text), loc=loc, input=value)


def _reworded(model: type[Closed], value: Any, error: ValidationError) -> list[InitErrorDetails]:
    """The errors of ``error``, those about the mapping itself in plain words."""
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
    """What to say of a key that ``model`` does not have."""
    homes = _homes(key)
    inside = [home for home in homes if home.startswith(f"{model.where}.")]
    if model.where in homes:
        advice = f"it belongs in another item of '{model.where}'"
    elif homes:
        places = [f"under '{home}'" if home else "at the top of the case" for home in inside or homes]
        advice = f"it belongs {' or '.join(places)}"
    elif near := closest(key, model.model_fields):
        advice = f"did you mean '{near}'?"
    else:
        advice = f"known here: {', '.join(model.model_fields)}"
    return f"unknown key {found(key)} ({advice})"


def _homes(key: str) -> list[str]:
    """The places in a case where ``key`` is known."""
    return [model.where for model in Closed.__subclasses__() if key in model.model_fields]


def _missing_key(model: type[Closed], key: str) -> str:
    """What to say of a key that ``model`` must have."""
    examples = model.model_fields[key].examples or ["..."]
    return f"'{key}' is missing: add '{key}: {_flow(examples[0])}'"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _meant(model: type[Closed], key: str) -> str | None:
    """The key of ``model`` that an unknown ``key`` was probably meant to be; None for one known somewhere."""
    return None if _homes(key) else closest(key, model.model_fields)
