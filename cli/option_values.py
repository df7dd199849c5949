"""Values of options such as ``--set NAME=VALUE``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cli.console import refuse_call
from cli.service_client import MethodSettings

__all__ = ["parse_settings", "parse_value"]


def parse_value(text: str) -> Any:
    """Parse a value as JSON, or return it as a text if it is not JSON.

    JSON has no NaN and no infinity, and a request cannot contain them; they are texts, too.
    """
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def parse_settings(assignments: Sequence[str]) -> MethodSettings:
    """Settings from assignments such as ``epochs=5``; values are parsed as JSON if possible."""
    settings: dict[str, bool | int | float | str | None] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            refuse_call(
                f"--set {assignment} is not an assignment.", "Write name=value, for example: --set epochs=5"
            )
        settings[key] = parse_value(value)
    return settings or None
