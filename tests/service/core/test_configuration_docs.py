"""docs/configuration.md lists exactly the settings that exist, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.core.settings import OTHER_VARIABLES, Settings

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(CINESTRATA_\w+)` \| (.+?) \|", DOCS, re.MULTILINE))


def _variables(model: type[BaseModel], prefix: str = "CINESTRATA_") -> Iterator[tuple[str, Any]]:
    """Yield every leaf setting: its variable and its default."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", field.default


VARIABLES = dict(_variables(Settings))


def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    assert set(ROWS) == set(VARIABLES)


def test_documented_defaults_are_the_defaults() -> None:
    """A default that is not literal is derived from other settings, or empty."""
    literal = {name: value[1:-1] for name, value in ROWS.items() if re.fullmatch("`[^`]*`", value)}
    assert literal == {name: str(VARIABLES[name]) for name in literal}
    assert all(VARIABLES[name] in (None, "", (), Path()) for name in ROWS.keys() - literal.keys())


def test_files_name_only_existing_variables() -> None:
    files = [ROOT / "README.md", ROOT / ".env.example", ROOT / "docker" / "Dockerfile"]
    for pattern in ("docs/*.md", "docker-compose*.yml", "deploy/**/*.yaml"):
        files += ROOT.glob(pattern)
    for file in files:
        if file.name != "configuration.md":
            named = set(re.findall(r"CINESTRATA_[A-Z_]+[A-Z]", file.read_text(encoding="utf-8")))
            assert named <= {*VARIABLES, *OTHER_VARIABLES}, file.name
