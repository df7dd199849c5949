"""Discovery of methods by their recipes, and validation of their settings."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import trainer.methods
from benchmarks.rivals import METHODS, configure
from service.core.settings import METHOD_NAMES
from trainer.methods import MethodError


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_one_module_with_its_name(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.__module__ in (f"trainer.methods.{name}", f"benchmarks.rivals.{name}")
    assert import_module(method.__module__).__doc__
    assert set(method.architecture_settings) <= set(method.config_class.model_fields)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_recipe_is_valid_for_every_backbone(name: str) -> None:
    for backbone in ("tiny", "open_clip:ViT-B-32/openai"):
        assert isinstance(configure(name, backbone, {}), METHODS[name].config_class)


def test_service_offers_the_methods_of_the_trainer_alone() -> None:
    assert tuple(trainer.methods.METHODS) == METHOD_NAMES
    assert METHODS.items() > trainer.methods.METHODS.items()
    with pytest.raises(
        MethodError, match="unknown method 'ewc': choose one of analytic, bmu_moco, ccmr, ctp"
    ):
        trainer.methods.configure("ewc", "tiny", {})


def test_method_names_are_known_without_torch() -> None:
    code = "import sys; from service.core.settings import METHOD_NAMES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_override_the_recipe_of_the_backbone() -> None:
    assert configure("finetune", "other", {}).logit_scale == 100.0
    assert configure("finetune", "tiny", {}).logit_scale == 20.0
    assert configure("finetune", "tiny", {"logit_scale": 7.0}).logit_scale == 7.0


def test_unknown_method_is_refused_with_all_names() -> None:
    with pytest.raises(MethodError, match="unknown method 'magic': choose one of afec, analytic, base_moco"):
        configure("magic", "tiny", {})


@pytest.mark.parametrize("name", sorted(METHODS))
def test_unknown_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(MethodError, match=f"settings of method '{name}': epoch: Extra inputs"):
        configure(name, "tiny", {"epoch": 3})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("afec", {"expansion_penalty": -1.0}, "expansion_penalty: "),
        ("base_moco", {"momentum": 1.1}, "momentum: "),
        ("base_moco", {"queue": 0}, "queue: "),
        ("base_moco", {"logit_scale": 0}, "logit_scale: "),
        ("bmu_moco", {"variant": "all"}, "variant: "),
        ("bmu_moco", {"encoder_momentum": -0.1}, "encoder_momentum: "),
        ("ccmr", {"margin": 0.0}, "margin: "),
        ("ccmr", {"objective": "hinge"}, "objective: "),
        ("ccmr", {"hard_negatives": -1}, "hard_negatives: "),
        ("ccmr", {"regulariser": "si"}, "regulariser: "),
        ("ccmr", {"regularised": "queries"}, "regularised: "),
        ("ccmr", {"fisher_decay": 2.0}, "fisher_decay: "),
        ("ccmr", {"cross_task_negatives": True, "objective": "contrastive"}, "cross_task_negatives needs"),
        ("clip_vip", {"proxies": 0}, "proxies: "),
        ("clip_vip", {"proxy_learning_rate": 0}, "proxy_learning_rate: "),
        ("clip_vip_vr_lwf", {"proxies": 0, "words": 63}, "proxies: .*words: |words: .*proxies: "),
        ("co2l", {"past_temperature": 0, "gray": 2}, "past_temperature: .*gray: "),
        ("ctp", {"momentum": 1.0}, "momentum: "),
        ("ctp", {"first_momentum": -0.1}, "first_momentum: "),
        ("ctp", {"pulled_by": "neither"}, "pulled_by: "),
        ("ctp", {"queue": -1}, "queue: "),
        ("ctp", {"masked_words": 0.0}, "masked_words: "),
        ("ctp", {"fusion_layers": 0}, "fusion_layers: "),
        ("ctp", {"same_modal": -1.0}, "same_modal: "),
        ("ctp_er", {"queue": -1, "replay_batch": 0}, "queue: .*replay_batch: |replay_batch: .*queue: "),
        ("der", {"response": -1}, "response: "),
        ("drift_adapter", {"identity_weight": -1.0}, "identity_weight: "),
        ("drift_adapter", {"videos": "some"}, "videos: "),
        ("er", {"memory": 0}, "memory: "),
        ("er", {"fill": "random"}, "fill: "),
        ("er", {"replay_batch": 0}, "replay_batch: "),
        ("ewc", {"penalty": -1.0}, "penalty: "),
        ("ewc", {"fisher_batch": 1}, "fisher_batch: "),
        ("ewc", {"decay": 1.5}, "decay: "),
        ("ffa_tame", {"epochs": 0, "rank": "x"}, "epochs: .*rank: "),
        ("icarl", {"distillation": -1.0}, "distillation: "),
        ("lucir", {"margin": 0, "hard_negatives": 0}, "margin: .*hard_negatives: "),
        ("lump", {"mixup": 0}, "mixup: "),
        ("lump", {"replay_batch": 4}, "replay_batch: Extra inputs"),
        ("lwf", {"temperature": 0.0}, "temperature: "),
        ("lwf", {"sentences": 5}, "sentences: Extra inputs"),
        ("mas", {"penalty": float("inf")}, "penalty: "),
        ("moe_adapter", {"experts": 0}, "experts: "),
        ("moe_adapter", {"dropout": 1, "top_k": 0}, "top_k: .*dropout: "),
        ("moe_adapter", {"selector_width": 0}, "selector_width: "),
        ("pnn", {"learning_rate": 0}, "learning_rate: "),
        ("qdc", {"distillation": -0.1}, "distillation: "),
        ("qdc", {"identity_weight": 0.1}, "identity_weight: Extra inputs"),
        ("rwalk", {"fisher_rate": 0.0, "window": 0}, "fisher_rate: .*window: "),
        ("rwalk", {"decay": 1.0}, "decay: Extra inputs"),
        ("si", {"damping": 0.0}, "damping: "),
        ("vr_lwf", {"distillation": -1.0, "words": 63}, "distillation: .*words: "),
        ("vr_lwf", {"sentences": 1}, "sentences: "),
        ("zscl", {"ensemble_interval": 0}, "ensemble_interval: "),
    ],
)
def test_setting_out_of_range_is_refused_by_name(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        configure(name, "tiny", settings)
