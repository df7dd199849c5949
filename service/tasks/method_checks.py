"""Check a task's method and settings against the library's backbone, without loading methods or backbones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import yaml

from models.backbones import has_open_blocks
from service.core.errors import FieldError
from service.core.settings import METHOD_NAMES

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "null": "null",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}


def find_method_error(method: str, settings: Mapping[str, Any], backbone: str) -> FieldError | None:
    """Explain why a method cannot run; None if it can.

    Args:
        backbone: Name of the library's backbone.
    """
    if method not in METHOD_NAMES:
        return FieldError("method", "The method does not exist.", f"Choose one of {', '.join(METHOD_NAMES)}.")
    if has_open_blocks(backbone):
        return None
    needed = _needs_open_blocks(method)
    if not needed or (isinstance(needed, str) and settings.get(needed) is False):
        return None
    others = ", ".join(name for name in METHOD_NAMES if not _needs_open_blocks(name))
    setting = f", or set {needed} to false in its settings" if isinstance(needed, str) else ""
    return FieldError(
        "method",
        f"Method {method!r} works inside the backbone's transformer blocks, but backbone {backbone!r} "
        "does not expose those of its image tower.",
        f"Choose one of {others}{setting}; or start a library with backbone 'small' or 'open_clip:…'.",
    )


def settings_errors(method: str, settings: Mapping[str, Any]) -> Iterator[FieldError]:
    """Find unknown settings and values out of range."""
    from jsonschema import Draft202012Validator

    schemas = _setting_schemas().get(method, {})
    for name, value in settings.items():
        field = f"settings.{name}"
        if name in schemas:
            if error := next(Draft202012Validator(schemas[name]).iter_errors(value), None):
                yield FieldError(field, f"{error.message[:200]}.", _describe(schemas[name]))
        else:
            closest = get_close_matches(name, schemas, n=1)
            hint = f"Did you mean {closest[0]!r}? " if closest else ""
            yield FieldError(
                field,
                f"Method {method!r} has no setting {name!r}.",
                f"{hint}Its settings are {', '.join(sorted(schemas))}.",
            )
    if settings.get("last_epoch") == "all" and settings.get("epochs") == 1:
        yield FieldError(
            "settings.last_epoch",
            "A single epoch leaves no earlier state to measure recall with.",
            "Send at least 2 epochs.",
        )


def learns_all_captions(method: str, settings: Mapping[str, Any]) -> bool:
    """Check whether a method learns captions that no user held out, and measures them by a solution without them."""
    is_closed_form = method in METHOD_NAMES and bool(_recipe(method).get("closed_form"))
    return is_closed_form or settings.get("last_epoch") == "all"


def _describe(schema: Mapping[str, Any]) -> str:
    """Describe what to send for a setting."""
    if "enum" in schema:
        return f"Send one of {', '.join(map(str, schema['enum']))}."
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    bounds = [f" {words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
    return f"Send {' or '.join(_TYPES[each] for each in types)}{' and'.join(bounds)}."


def _needs_open_blocks(method: str) -> bool | str:
    """Check whether a method needs open transformer blocks; the name of a setting if that decides it."""
    needed: bool | str = _recipe(method).get("needs_open_blocks", False)
    return needed


@cache
def _recipe(method: str) -> dict[str, Any]:
    """Read a method's recipe."""
    recipe: dict[str, Any] = yaml.safe_load(_read_config(f"{method}.yaml"))
    return recipe


@cache
def _setting_schemas() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the JSON Schema of each method's settings."""
    schemas: dict[str, dict[str, dict[str, Any]]] = json.loads(_read_config("setting_schemas.json"))
    return schemas


def _read_config(name: str) -> str:
    """Read a file next to the recipes."""
    return (resources.files("trainer") / "methods" / "configs" / name).read_text(encoding="utf-8")
