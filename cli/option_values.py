"""Values of options such as ``--set NAME=VALUE``."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_value"]


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
