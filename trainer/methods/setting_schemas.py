"""JSON Schemas of the methods' settings, for the service, which does not import methods.

Run ``python -m trainer.methods.setting_schemas`` after changing a setting; a test compares the file with the classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.methods.registry import MethodRegistry

FILE = Path(__file__).parent / "configs" / "setting_schemas.json"
_KEYWORDS = ("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def setting_schemas() -> dict[str, dict[str, dict[str, Any]]]:
    """Collect the schema of each setting, by method and setting name."""
    return {
        name: {
            setting: _without_titles(schema)
            for setting, schema in method.config_class.model_json_schema()["properties"].items()
        }
        for name, method in MethodRegistry("trainer.methods").methods.items()
    }


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep the keywords that check a value, with the types of an optional setting merged."""
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
