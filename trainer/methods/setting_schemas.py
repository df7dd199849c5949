"""JSON Schemas of the settings of each method, for a service that does not import methods.

``python -m trainer.methods.setting_schemas`` writes the file after a change of the settings; a test compares both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.methods.registry import MethodRegistry

FILE = Path(__file__).parent / "configs" / "setting_schemas.json"
_KEYWORDS = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def setting_schemas() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the schema of each setting of each method of the service."""
    return {
        name: {
            setting: _without_titles(schema)
            for setting, schema in method.config_class.model_json_schema()["properties"].items()
        }
        for name, method in MethodRegistry("trainer.methods").methods.items()
    }


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that a value is checked with; an optional value is of two types."""
    merged = dict(schema)
    for part in schema.get("anyOf", ()):
        merged |= part
    if "anyOf" in schema:
        merged["type"] = [part["type"] for part in schema["anyOf"]]
    return {keyword: merged[keyword] for keyword in _KEYWORDS if keyword in merged}


if __name__ == "__main__":
    rows = [
        f"  {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"    {json.dumps(setting)}: {json.dumps(schema)}" for setting, schema in settings.items()
        )
        + "\n  }"
        for name, settings in setting_schemas().items()
    ]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
