"""Options of how towers compute, for settings and type hints; imports no torch."""

from __future__ import annotations

from typing import Literal

__all__ = ["Precision"]

Precision = Literal["float32", "bfloat16"]
