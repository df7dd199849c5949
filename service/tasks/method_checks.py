"""Methods that the backbone of the library can run, from their recipes: neither methods nor backbones are loaded."""

from __future__ import annotations

from collections.abc import Mapping
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


@cache
def _needs_open_blocks(method: str) -> bool | str:
    """Whether a method needs open blocks, or the name of the setting that decides it."""
    recipe = resources.files("trainer") / "methods" / "configs" / f"{method}.yaml"
    needed: bool | str = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("needs_open_blocks", False)
    return needed
