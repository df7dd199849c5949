"""Discovery of methods by their recipes, and validation of their settings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import trainer.methods
from benchmarks.rivals import METHODS, configure
from service.core.settings import METHOD_NAMES
from trainer.methods import MethodError


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_one_module_with_a_recipe_of_its_name(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.__module__ == f"trainer.methods.{name}" or method.__module__.startswith(
        "benchmarks.rivals."
    )
    assert set(method.architecture_settings) <= set(method.config_class.model_fields)
    for backbone in ("tiny", "small", "open_clip:ViT-B-32/openai"):
        assert isinstance(configure(name, backbone, {}), method.config_class)
    fitted = {"semantic_penalty": 1000.0, "lexical_penalty": 2000.0} if name == "analytic" else {}
    assert configure(name, "lite2", fitted) == configure(name, "small", {})
    with pytest.raises(MethodError, match=f"settings of method '{name}': epoch: Extra inputs"):
        configure(name, "tiny", {"epoch": 3})


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
    for backbone in ("tiny", "small", "lite2"):
        assert configure("finetune", backbone, {}).logit_scale == 20.0
    assert configure("finetune", "tiny", {"logit_scale": 7.0}).logit_scale == 7.0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("er", {"fill": "all"}, "fill: "),
        ("vr_lwf", {"sentences": 0, "words": 63}, "sentences: .*words: |words: .*sentences: "),
        ("ctp", {"momentum": 1.0}, "momentum: "),
        ("ctp_er", {"queue": -1, "replay_batch": 0}, "queue: .*replay_batch: |replay_batch: .*queue: "),
        ("ffa_tame", {"epochs": 0, "rank": "x"}, "epochs: .*rank: "),
        ("mas", {"penalty": float("inf")}, "penalty: "),
        ("rwalk", {"decay": 1.0}, "decay: Extra inputs"),
    ],
)
def test_setting_out_of_range_is_refused_by_name(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        configure(name, "tiny", settings)
