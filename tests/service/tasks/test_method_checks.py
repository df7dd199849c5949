"""Pairs of a method and a backbone that the service accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.core.settings import METHOD_NAMES
from service.tasks.ingestion_checks import find_method_error, learns_all_captions, settings_errors
from trainer.methods import METHODS
from trainer.methods.setting_schemas import FILE, setting_schemas

CLOSED = "open_clip:ViT-B-16-SigLIP2/webli"


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("backbone", ["small", "lite2", "tiny", "open_clip:ViT-B-32/openai"])
def test_backbones_with_open_blocks_run_every_method(method: str, backbone: str) -> None:
    assert find_method_error(method, backbone) is None


@pytest.mark.parametrize(
    "backbone", [CLOSED, "transformers:google/siglip2-base-patch16-224", "open_clip:RN50/openai"]
)
@pytest.mark.parametrize("method", ["ffa_tame", "strata", "ctp", "finetune"])
def test_methods_that_change_the_towers_name_the_others(method: str, backbone: str) -> None:
    error = find_method_error(method, backbone)
    assert error is not None
    assert error.field == "method"
    assert repr(method) in error.message
    assert backbone in error.message
    others = [name for name in METHOD_NAMES if find_method_error(name, backbone) is None]
    assert set(others) == {
        name for name, each in METHODS.items() if each.is_closed_form or not each.is_trainable
    }
    assert f"Choose one of {', '.join(others)}" in error.hint


def test_closed_form_methods_and_a_setting_learn_all_captions() -> None:
    assert {name for name in METHODS if learns_all_captions(name, {})} == {
        name for name, method in METHODS.items() if method.is_closed_form
    }, "a method in closed form sets closed_form: true in its recipe"
    assert learns_all_captions("strata", {"last_epoch": "all"})
    assert not learns_all_captions("strata", {"last_epoch": "train"})


def test_schemas_are_those_of_the_methods() -> None:
    command = "python -m trainer.methods.setting_schemas"
    assert json.loads(FILE.read_text(encoding="utf-8")) == setting_schemas(), f"run {command}"


def test_last_epoch_on_all_captions_needs_an_earlier_one() -> None:
    (error,) = settings_errors("strata", {"last_epoch": "all", "epochs": 1})
    assert error.field == "settings.last_epoch"
    assert not list(settings_errors("strata", {"last_epoch": "all", "epochs": 2}))
    (error,) = settings_errors("zero_shot", {"last_epoch": "all"})
    assert error.hint == "Send train, or leave it out."


def test_misspelled_setting_names_the_closest_one() -> None:
    (error,) = settings_errors("strata", {"epoch": 3, "rank": 4})
    assert error.field == "settings.epoch"
    assert "'strata' has no setting 'epoch'" in error.message
    assert "Did you mean 'epochs'?" in error.hint


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"epochs": "many"}, "Send a whole number of at least 1 and of at most 1000."),
        ({"epochs": 0}, "Send a whole number of at least 1 and of at most 1000."),
        ({"logit_scale": 0}, "Send a number above 0 and of at most 1000."),
        ({"schedule": "slow"}, "Send one of cosine, step."),
        ({"max_steps": 0.5}, "Send a whole number or null of at least 1."),
        ({"checkpointing": 1}, "Send true or false."),
    ],
)
def test_value_out_of_range_is_refused(settings: dict[str, Any], hint: str) -> None:
    (error,) = settings_errors("strata", settings)
    assert (error.field, error.hint) == (f"settings.{next(iter(settings))}", hint)
