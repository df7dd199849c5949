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
    literal = {
        name: value.strip("`")
        for name, value in ROWS.items()
        if value.startswith("`") and value.endswith("`")
    }
    assert literal == {name: str(VARIABLES[name]) for name in literal}


def test_settings_without_a_literal_default_are_derived_or_empty() -> None:
    derived = {name for name, value in ROWS.items() if not (value.startswith("`") and value.endswith("`"))}
    assert all(VARIABLES[name] in (None, "", (), Path()) for name in derived)


def test_variables_of_the_compose_files_are_valid() -> None:
    for path in [
        *ROOT.glob("docker-compose*.yml"),
        ROOT / "docker" / "Dockerfile",
        *ROOT.glob("deploy/**/*.yaml"),
    ]:
        named = set(re.findall(r"CINESTRATA_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8")))
        assert named <= {*VARIABLES, *OTHER_VARIABLES}, path.name


def test_pages_name_only_existing_variables() -> None:
    pages = [ROOT / "README.md", ROOT / ".env.example", *sorted((ROOT / "docs").glob("*.md"))]
    named = {
        (page.name, variable)
        for page in pages
        if page.name != "configuration.md"
        for variable in re.findall(r"CINESTRATA_[A-Z_]+[A-Z]", page.read_text(encoding="utf-8"))
    }
    assert not {(page, name) for page, name in named if name not in {*VARIABLES, *OTHER_VARIABLES}}
