"""Methods that the backbone of the library can run, and their settings: neither methods nor backbones are loaded."""

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


def find_method_error(method: str, settings: Mapping[str, Any], backbone: str) -> FieldError | None:
    """Return why a method cannot run; None if it can.

    Args:
        method: Name of the method.
        settings: Settings of the task.
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
        f"Method {method!r} works inside the transformer blocks of its backbone, and backbone {backbone!r} does not "
        "expose those of its image tower.",
        f"Choose one of {others}{setting}; or start a library with backbone 'small' or 'open_clip:…'.",
    )


def settings_errors(method: str, settings: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each setting that a method does not know.

    Args:
        method: Name of the method.
        settings: Settings of the task.
    """
    names = _setting_names()
    known = sorted([*names["every method"], *names.get(method, [])])
    for name in settings:
        if name not in known:
            closest = get_close_matches(name, known, n=1)
            hint = f"Did you mean {closest[0]!r}? " if closest else ""
            yield FieldError(
                f"settings.{name}",
                f"Method {method!r} has no setting {name!r}.",
                f"{hint}Its settings are {', '.join(known)}.",
            )


@cache
def _needs_open_blocks(method: str) -> bool | str:
    """Whether a method needs open blocks, or the name of the setting that decides it."""
    needed: bool | str = yaml.safe_load(_read_config(f"{method}.yaml")).get("needs_open_blocks", False)
    return needed


@cache
def _setting_names() -> dict[str, list[str]]:
    """Names of the settings of every method, and of the other settings of each."""
    names: dict[str, list[str]] = json.loads(_read_config("setting_names.json"))
    return names


def _read_config(name: str) -> str:
    """Return the text of a file beside the recipes."""
    return (resources.files("trainer") / "methods" / "configs" / name).read_text(encoding="utf-8")
