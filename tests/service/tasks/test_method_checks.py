"""Pairs of a method and a backbone that the service accepts."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.settings import METHOD_NAMES
from service.tasks.method_checks import find_method_error

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
