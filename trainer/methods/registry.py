"""Registry of learning methods: discovery, validated settings, and construction from a release.

A method is registered by its files alone: the recipe ``configs/<name>.yaml`` and the module
``trainer/methods/<name>.py`` with one :class:`~trainer.methods.base.Method` subclass of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, resources
from typing import Any

import yaml
from pydantic import ValidationError

from models.backbones.backbone import Backbone
from models.errors import BackboneUnsupported
from models.releases.release_state import ReleaseState
from trainer.methods.base import Method, MethodConfig, MethodError

__all__ = ["METHODS", "configure", "start_method"]

_RECIPES = resources.files("trainer") / "methods" / "configs"


def _method_class(name: str) -> type[Method]:
    """Return the method class that the module ``trainer.methods.<name>`` defines.

    Raises:
        ImportError: The recipe has no module, or the module does not define exactly one method of that name.
    """
    module = import_module(f"trainer.methods.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and vars(value).get("name") == name
    ]
    if len(classes) != 1:
        raise ImportError(f"{module.__name__} defines {len(classes)} methods named {name!r}; expected one")
    return classes[0]


#: Every method class by name.
METHODS: dict[str, type[Method]] = {
    name: _method_class(name)
    for name in sorted(
        file.name.removesuffix(".yaml") for file in _RECIPES.iterdir() if file.name.endswith(".yaml")
    )
}


def configure(name: str, backbone: str, settings: Mapping[str, Any]) -> MethodConfig:
    """Return the validated settings of a method: the recipe of the backbone, overridden by ``settings``.

    The recipe file holds the section ``default`` and optional sections with the name of a backbone, which
    override ``default``.

    Args:
        name: Name of the method.
        backbone: Name of the backbone.
        settings: Overrides, e.g. from the task.

    Raises:
        MethodError: The method is unknown, or a setting is unknown or out of range; the message names each.
    """
    if name not in METHODS:
        raise MethodError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    recipe = yaml.safe_load((_RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    values = {**recipe["default"], **recipe.get(backbone, {}), **settings}
    try:
        return METHODS[name].config_class.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise MethodError(f"settings of method {name!r}: {problems}") from error


def start_method(
    name: str, backbone: Backbone, settings: Mapping[str, Any], previous: ReleaseState | None
) -> Method:
    """Return a method that is ready for its next task.

    Settings that shape the learned weights (:attr:`~trainer.methods.base.Method.architecture_settings`)
    default to those of the previous release.

    Args:
        name: Name of the method.
        backbone: Backbone of the library.
        settings: Overrides of the recipe, e.g. from the task.
        previous: Release to continue; None for an empty library.

    Raises:
        MethodError: See :func:`configure` and :meth:`~trainer.methods.base.Method.resume`.
        BackboneUnsupported: The method changes transformer blocks that the backbone does not expose.
    """
    inherited: dict[str, Any] = {}
    if previous is not None and name in METHODS and previous.method == name:
        inherited = {key: previous.config[key] for key in METHODS[name].architecture_settings}
    config = configure(name, backbone.name, {**inherited, **settings})
    try:
        return METHODS[name].resume(backbone, config, previous)
    except BackboneUnsupported as error:
        raise BackboneUnsupported(f"method {name!r}: {error}") from error
