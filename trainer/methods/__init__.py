"""Continual-learning methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from models.backbones.backbone import Backbone
from models.errors import BackboneUnsupported
from models.releases.release_state import ReleaseState
from trainer.methods.base import Method, MethodConfig, MethodError
from trainer.methods.base_moco import BaseMoco
from trainer.methods.bmu_moco import BmuMoco
from trainer.methods.ccmr import Ccmr
from trainer.methods.clip_vip import ClipVip
from trainer.methods.co2l import Co2l
from trainer.methods.ctp import Ctp
from trainer.methods.der import Der
from trainer.methods.drift_adapter import DriftAdapter
from trainer.methods.er import Er
from trainer.methods.ewc import Ewc
from trainer.methods.ffa_tame import FfaTame
from trainer.methods.finetune import Finetune
from trainer.methods.joint import Joint
from trainer.methods.lump import Lump
from trainer.methods.lwf import Lwf
from trainer.methods.mas import Mas
from trainer.methods.moe_adapter import MoeAdapter
from trainer.methods.qdc import Qdc
from trainer.methods.rwalk import Rwalk
from trainer.methods.si import Si
from trainer.methods.strata import Strata
from trainer.methods.vr_lwf import VrLwf
from trainer.methods.zero_shot import ZeroShot
from trainer.methods.zscl import Zscl

__all__ = ["METHODS", "Method", "MethodConfig", "MethodError", "configure", "start_method"]

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        BaseMoco,
        BmuMoco,
        Ccmr,
        ClipVip,
        Co2l,
        Ctp,
        Der,
        DriftAdapter,
        Er,
        Ewc,
        FfaTame,
        Finetune,
        Joint,
        Lump,
        Lwf,
        Mas,
        MoeAdapter,
        Qdc,
        Rwalk,
        Si,
        Strata,
        VrLwf,
        ZeroShot,
        Zscl,
    )
}


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
        BackboneUnsupported: the method works inside blocks that the backbone does not open.
    """
    kept: dict[str, Any] = {}
    if previous is not None and name in METHODS and previous.method == name:
        kept = {key: previous.config[key] for key in METHODS[name].architecture_settings}
    config = configure(name, backbone.name, {**kept, **settings})
    try:
        return METHODS[name].resume(backbone, config, previous)
    except BackboneUnsupported as error:
        raise BackboneUnsupported(f"method {name!r}: {error}") from error
