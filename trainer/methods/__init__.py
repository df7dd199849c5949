"""Continual-learning methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from models.backbone import Backbone
from models.release import ReleaseState
from trainer.methods.base import Method, MethodConfig, MethodError
from trainer.methods.ffa_tame import FfaTame
from trainer.methods.finetune import Finetune
from trainer.methods.zero_shot import ZeroShot

__all__ = ["METHODS", "Method", "MethodConfig", "MethodError", "configure", "start_method"]

METHODS: dict[str, type[Method]] = {method.name: method for method in (FfaTame, Finetune, ZeroShot)}


def configure(name: str, backbone: str, settings: Mapping[str, Any]) -> MethodConfig:
    """The validated settings of a method: the recipe for the backbone, overridden by ``settings``.

    ``trainer/methods/configs/<name>.yaml`` holds one recipe per backbone; a backbone without its own takes
    ``default``.

    Raises:
        MethodError: unknown method, or a setting that it does not have or that is out of range; names each.
    """
    if name not in METHODS:
        raise MethodError(f"unknown method {name!r}: choose one of {', '.join(sorted(METHODS))}")
    recipes: dict[str, dict[str, Any]] = yaml.safe_load(
        (resources.files("trainer.methods") / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    )
    recipe = {**recipes["default"], **recipes.get(backbone, {}), **settings}
    try:
        return METHODS[name].config_class.model_validate(recipe)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise MethodError(f"settings of method {name!r}: {problems}") from error


def start_method(
    name: str, backbone: Backbone, settings: Mapping[str, Any], previous: ReleaseState | None
) -> Method:
    """A method that is ready for its next task.

    Settings that shape the learned weights are those of the library's first task, unless ``settings`` says
    otherwise, which is then refused.

    Raises:
        MethodError: see :func:`configure` and :meth:`Method.resume`.
    """
    kept: dict[str, Any] = {}
    if previous is not None and name in METHODS and previous.method == name:
        kept = {key: previous.config[key] for key in METHODS[name].architecture}
    config = configure(name, backbone.name, {**kept, **settings})
    return METHODS[name].resume(backbone, config, previous)
