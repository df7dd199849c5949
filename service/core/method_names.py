"""Names of the learning methods that a task may select.

The names come from the recipe files ``trainer/methods/configs/<name>.yaml``, because the methods themselves import
torch and the service must not import the trainer.
"""

from __future__ import annotations

from importlib import resources

METHOD_NAMES: tuple[str, ...] = tuple(
    sorted(
        recipe.name.removesuffix(".yaml")
        for recipe in (resources.files("trainer") / "methods" / "configs").iterdir()
        if recipe.name.endswith(".yaml")
    )
)
