"""Examples for JSON schemas: recorded values, completed with values that the schema allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 8
_MISSING: Any = object()
_TEXTS = {"date-time": "2026-11-23T08:00:00Z", "date": "2026-11-23", "uri": "https://example.com"}
_VALUES: Mapping[str, Any] = {"integer": 1, "number": 0.5, "boolean": True, "null": None}


def complete_example(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], recorded: Any = _MISSING, depth: int = 0
) -> Any:
    """Build an example for a schema.

    Args:
        schemas: Referenced schemas by name.
        recorded: A recorded value; missing fields are added, unknown ones left out. Without it, the example has only
            the fields that the schema requires.
        depth: Depth below the outermost schema.
    """
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    has_record = recorded is not _MISSING
    if (
        schema.get("type") == "object"
        and "properties" in schema
        and (isinstance(recorded, dict) or not has_record)
    ):
        values = recorded if has_record else {}
        return {
            name: complete_example(part, schemas, values.get(name, _MISSING), depth + 1)
            for name, part in schema["properties"].items()
            if has_record or name in schema.get("required", ())
        }
    if schema.get("type") == "array" and (isinstance(recorded, list) or not has_record):
        if "prefixItems" in schema and not has_record:  # a tuple
            return [complete_example(part, schemas, depth=depth + 1) for part in schema["prefixItems"]]
        items = schema.get("items", {})
        if has_record:
            return [complete_example(items, schemas, item, depth + 1) for item in recorded]
        return [complete_example(items, schemas, depth=depth + 1)] if depth < _MAX_DEPTH and items else []
    if has_record:
        return recorded
    return _from_keywords(schema, schemas, depth)


def _from_keywords(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> Any:
    for keyword in ("const", "default"):
        if keyword in schema:
            return schema[keyword]
    for keyword in ("examples", "enum"):
        if schema.get(keyword):
            return schema[keyword][0]
    options = schema.get("anyOf", schema.get("oneOf", schema.get("allOf")))
    if options:
        return complete_example(options[0], schemas, depth=depth)
    kind = schema.get("type")
    if kind == "string":
        text = _TEXTS.get(schema.get("format", ""), "text")
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    if kind in ("integer", "number"):
        return max(schema.get("minimum", _VALUES[kind]), min(_VALUES[kind], schema.get("maximum", 1)))
    return _VALUES.get(str(kind), {})
