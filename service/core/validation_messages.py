"""Word pydantic's errors as sentences and hints, in the style of the service's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

_MAX_SHOWN = 60  # characters of a rejected value to show
_Describe = Callable[[str, Mapping[str, Any]], tuple[str, str]]


def describe_validation_error(error: Mapping[str, Any], model: Any = None) -> tuple[str, str]:
    """Word an item of ``ValidationError.errors()`` as a message and a hint.

    An item that already has a hint, directly or in its context, keeps its hint and message.

    Args:
        model: Model of the body; its field names serve as hints for unknown ones.
    """
    context: Mapping[str, Any] = error.get("ctx", {})
    hint = str(error.get("hint") or context.get("hint", ""))
    if error["type"] == "extra_forbidden" and not hint:
        return "This field does not exist.", _unknown_field_hint(model, error["loc"])
    describe = _DESCRIPTIONS.get(error["type"])
    if describe is None or hint:
        message = str(error["msg"]).removeprefix("Value error, ")
        return (message if message.endswith((".", "!", "?")) else f"{message}."), hint
    return describe(_shown(error.get("input")), context)


def _unknown_field_hint(model: Any, location: Sequence[str | int]) -> str:
    """Suggest the known name closest to an unknown field, or list all known names.

    Args:
        model: Model of the body, or another annotation.
        location: Path of the field within the body, as in ``ValidationError.errors()``.
    """
    *parents, unknown = location
    for name in parents:
        if isinstance(name, str):
            field = getattr(_model_in(model), "model_fields", {}).get(name)
            model = None if field is None else field.annotation
    known = sorted(getattr(_model_in(model), "model_fields", {}))
    if closest := get_close_matches(str(unknown)[:100], known, n=1):
        return f"Did you mean {closest[0]!r}?"
    return f"Known fields: {', '.join(known)}." if known else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the first model in an annotation such as ``Annotated[list[Model], …] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) or value is None else "The value"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _type_error(expected: str, hint: str) -> _Describe:
    return lambda value, _: (f"{value} is not {expected}.", hint)


def _bound(relation: str, key: str, hint: str) -> _Describe:
    return lambda value, context: (
        f"{value.strip(chr(39))} is {relation} {context[key]}.",
        f"{hint} {context[key]}.",
    )


def _describe_choice(value: str, context: Mapping[str, Any]) -> tuple[str, str]:
    choices = str(context["expected"])
    names = [part.strip(" '") for part in choices.replace(" or ", ",").split(",")]
    closest = get_close_matches(value.strip("'"), names, n=1)
    guess = f"Did you mean {closest[0]!r}? " if closest else ""
    return f"{value} is not a known value.", f"{guess}Send one of {choices}."


_INTEGER = _type_error("an integer", "Send a whole number.")
_NUMBER = _type_error("a number", "Send a number.")
_BOOLEAN = _type_error("a boolean", "Send true or false.")
_TIME = _type_error(
    "a time", "Send a date or time in ISO 8601, such as 2026-01-31T08:00:00Z. In an address, write + as %2B."
)
_DESCRIPTIONS: Mapping[str, _Describe] = {
    "missing": lambda _value, _context: ("The field is missing.", "Send it."),
    "int_parsing": _INTEGER,
    "int_type": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": _INTEGER,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": _BOOLEAN,
    "bool_type": _BOOLEAN,
    "string_type": _type_error("a text", "Send a string."),
    "list_type": _type_error("a list", "Send a list."),
    "dict_type": _type_error("an object", "Send a JSON object."),
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "datetime_type": _TIME,
    "literal_error": _describe_choice,
    "greater_than_equal": _bound("below the minimum", "ge", "Send at least"),
    "greater_than": _bound("not above", "gt", "Send more than"),
    "less_than_equal": _bound("above the maximum", "le", "Send at most"),
    "less_than": _bound("not below", "lt", "Send less than"),
    "string_too_short": lambda _value, context: (
        "The text is empty." if context["min_length"] == 1 else "The text is too short.",
        f"Send at least {context['min_length']} characters, or omit the field."
        if context["min_length"] > 1
        else "Send a string, or omit the field.",
    ),
    "too_long": lambda _value, context: (
        "The list is too long.",
        f"Send at most {context['max_length']} items.",
    ),
    "string_too_long": lambda _value, context: (
        "The text is too long.",
        f"Send at most {context['max_length']} characters.",
    ),
}
