"""Pairs of a method and a backbone that the service accepts."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.settings import METHOD_NAMES
from service.tasks.method_checks import find_method_error, settings_errors
from trainer.methods.registry import MethodRegistry

CLOSED = "transformers:vit+bert"


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("backbone", ["small", "tiny", "open_clip:ViT-B-32/openai"])
def test_backbones_with_open_blocks_run_every_method(method: str, backbone: str) -> None:
    assert find_method_error(method, {}, backbone) is None


@pytest.mark.parametrize(
    ("method", "settings"),
    [("ffa_tame", {}), ("strata", {"ffa_layers": 0}), ("ctp", {}), ("ctp", {"masked_language": True})],
)
def test_methods_inside_the_blocks_name_the_others(method: str, settings: dict[str, Any]) -> None:
    error = find_method_error(method, settings, CLOSED)
    assert error is not None
    assert error.field == "method"
    assert repr(method) in error.message
    assert CLOSED in error.message
    assert "analytic, bmu_moco, ccmr, finetune, zero_shot" in error.hint
    assert ("masked_language" in error.hint) == (method == "ctp")


def test_ctp_without_its_multi_modal_encoder_runs_on_closed_blocks() -> None:
    assert find_method_error("ctp", {"masked_language": False}, CLOSED) is None


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_settings_of_a_method_are_those_that_it_declares(method: str) -> None:
    declared = set(MethodRegistry("trainer.methods").methods[method].config_class.model_fields)
    (error,) = settings_errors(method, {name: 1 for name in declared} | {"other": 1})
    assert error.field == "settings.other"
    assert set(error.hint.removeprefix("Its settings are ").rstrip(".").split(", ")) == declared


def test_misspelled_setting_names_the_closest_one() -> None:
    (error,) = settings_errors("strata", {"epoch": 3, "rank": 4})
    assert error.field == "settings.epoch"
    assert "'strata' has no setting 'epoch'" in error.message
    assert "Did you mean 'epochs'?" in error.hint
