"""Fixtures for the tests of rivals."""

from __future__ import annotations

import pytest

from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import random_backbone


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    """A very small untrained backbone; tests must not change it."""
    return random_backbone()
