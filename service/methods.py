"""The names of the learning methods that a task may ask for.

The methods themselves live above this package; a test there asserts that both lists agree.
"""

from __future__ import annotations

__all__ = ["METHOD_NAMES"]

METHOD_NAMES: tuple[str, ...] = ("ffa_tame", "finetune", "zero_shot")
