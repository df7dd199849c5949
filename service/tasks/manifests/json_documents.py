"""Parse users' JSON within limits: errors name the line, and no content exhausts the stack or memory."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from typing import Any

from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_lines import TextStream, check_encoding, not_decoded


def parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Parse a JSON value.

    Args:
        name: Name of the file in errors.
        line: Line number of the value; None if the text is the whole file.

    Raises:
        InvalidInput: The text is not JSON, an object has a duplicate key, or values are nested too deep.
    """
    kind = "file" if line is None else "line"
    place = name if line is None else f"{name}:{line}"

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise InvalidInput.at(place, f"An object has the key {twice[:80]!r} twice.", "Keep one of them.")
        return fields

    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except json.JSONDecodeError as error:
        at = f"{name}:{line or error.lineno}"
        raise InvalidInput.at(
            at,
            f"The {kind} is not JSON ({error.msg.lower()} at character {error.colno}).",
            "Correct it, or write one object per line.",
        ) from None
    except RecursionError:
        raise InvalidInput.at(place, f"The {kind} is nested too deeply.", "Write a flat table.") from None
    except ValueError:  # a number with thousands of digits
        raise InvalidInput.at(
            place, f"The {kind} has a number with too many digits.", "Shorten it."
        ) from None


def read_document(stream: TextStream, name: str, encoding: str) -> Any:
    """Parse a file that is one JSON value; raise InvalidInput, also if the file is too large."""
    check_encoding(encoding)
    limit = request_limits.MAX_DOCUMENT_BYTES
    raw = stream.read(limit + 1)
    hint = "Split it, or write JSON lines: one object per line and video."
    if len(raw) > limit:
        raise InvalidInput.at(name, f"The JSON document is larger than {limit} bytes.", hint)
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > request_limits.MAX_DOCUMENT_VALUES:
        message = f"The JSON document has more than {request_limits.MAX_DOCUMENT_VALUES} values."
        raise InvalidInput.at(name, message, hint)
    if raw.startswith(codecs.BOM_UTF8):
        raw, encoding = raw[len(codecs.BOM_UTF8) :], "utf-8"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise not_decoded(raw, error, name, encoding) from None
    return parse_json(text, name)
