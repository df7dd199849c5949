"""Discover learning methods, validate their settings and construct them from a release.

Two files register a method: a recipe ``configs/<name>.yaml`` and, beside that folder, a module ``<name>.py`` with one
:class:`~trainer.methods.base.Method` subclass of that name. Methods of a family can share a module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, resources
from typing import Any

import yaml
from pydantic import ValidationError

from models.backbones import SMALL_NAMES
from models.backbones.backbone import Backbone
from models.errors import BackboneUnsupported
from models.releases.release_state import ReleaseState
from trainer.methods.base import Method, MethodConfig, MethodError


class MethodRegistry:
    """The methods in packages with method modules and a ``configs`` folder of recipes.

    ``modules`` names the modules of methods whose module has another name. Raises ImportError if a recipe has no
    module, or if the module does not define exactly one method of that name.
    """

    def __init__(self, *packages: str, modules: Mapping[str, str] | None = None) -> None:
        self._recipes = {
            file.name.removesuffix(".yaml"): (package, file)
            for package in packages
            for file in (resources.files(package) / "configs").iterdir()
            if file.name.endswith(".yaml")
        }
        modules = modules or {}
        self.methods = {
            name: _method_class(f"{package}.{modules.get(name, name)}", name)
            for name, (package, _) in sorted(self._recipes.items())
        }

    def configure(self, name: str, backbone: str, settings: Mapping[str, Any]) -> MethodConfig:
        """Validate ``settings`` on top of the method's recipe; raise MethodError for an unknown method, or all invalid
        settings.

        A recipe has a ``default`` section and optional sections, named after backbones, that override it; without its
        own, ``lite2`` takes that of ``small``.
        """
        if name not in self.methods:
            raise MethodError(f"unknown method {name!r}: choose one of {', '.join(self.methods)}")
        recipe = yaml.safe_load(self._recipes[name][1].read_text(encoding="utf-8"))
        section = SMALL_NAMES[0] if backbone in SMALL_NAMES and backbone not in recipe else backbone
        values = {**recipe["default"], **recipe.get(section, {}), **settings}
        try:
            return self.methods[name].config_class.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise MethodError(f"settings of method {name!r}: {problems}") from error

    def start_method(
        self, name: str, backbone: Backbone, settings: Mapping[str, Any], previous: ReleaseState | None
    ) -> Method:
        """Construct a method that is ready for its next task.

        Settings that shape the learned weights (:attr:`~trainer.methods.base.Method.architecture_settings`)
        default to those of ``previous``, which is None for a new lineage. Raises MethodError as :meth:`configure` and
        :meth:`~trainer.methods.base.Method.resume` do, and BackboneUnsupported if the method changes frozen towers.
        """
        config = self._configure_next(name, backbone, settings, previous)
        try:
            method = self.methods[name]
            if method.is_trainable and not (method.is_closed_form or backbone.has_open_blocks):
                raise backbone.closed_blocks_error()
            return self.methods[name].resume(backbone, config, previous)
        except BackboneUnsupported as error:
            raise BackboneUnsupported(f"method {name!r}: {error}") from error

    def can_continue(
        self, name: str, backbone: Backbone, settings: Mapping[str, Any], previous: ReleaseState
    ) -> bool:
        """Check whether :meth:`start_method` can continue a release; raises MethodError as :meth:`configure`."""
        config = self._configure_next(name, backbone, settings, previous)
        return self.methods[name].find_obstacle(backbone, config, previous) is None

    def _configure_next(
        self, name: str, backbone: Backbone, settings: Mapping[str, Any], previous: ReleaseState | None
    ) -> MethodConfig:
        inherited: dict[str, Any] = {}
        if previous is not None and name in self.methods and previous.method == name:
            inherited = {key: previous.config[key] for key in self.methods[name].architecture_settings}
        return self.configure(name, backbone.name, {**inherited, **settings})


def _method_class(path: str, name: str) -> type[Method]:
    module = import_module(path)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and vars(value).get("name") == name
    ]
    if len(classes) != 1:
        raise ImportError(f"{module.__name__} defines {len(classes)} methods named {name!r}; expected one")
    return classes[0]
