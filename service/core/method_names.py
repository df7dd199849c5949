"""Names of the learning methods that a task may select.

The names come from the recipe files ``trainer/methods/configs/<name>.yaml``, because the methods themselves import
torch and the service must not import the trainer.
"""

from __future__ import annotations

from importlib import resources

__all__ = ["METHOD_NAMES"]

#: Line of a recipe whose method runs in benchmarks only. Parsing every recipe would cost 50 ms at each start.
_BENCHMARKS_ONLY = "requires_all_videos: true"


def _method_names() -> tuple[str, ...]:
    """Return the sorted names of all recipes whose method can learn without the videos of earlier tasks."""
    recipes = (resources.files("trainer") / "methods" / "configs").iterdir()
    return tuple(
        sorted(
            recipe.name.removesuffix(".yaml")
            for recipe in recipes
            if recipe.name.endswith(".yaml")
            and _BENCHMARKS_ONLY not in recipe.read_text(encoding="utf-8").splitlines()
        )
    )


METHOD_NAMES: tuple[str, ...] = _method_names()
