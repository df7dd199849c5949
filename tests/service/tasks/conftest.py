"""Fixtures of the task life cycle's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from service.core.settings import Settings


@pytest.fixture(params=["sqlite", "postgresql"])
def with_broker(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> redis.Redis:
    """A catalog on each database, and a real Redis."""
    made = settings_factory(tmp_path, request.param, redis_url=broker_url)
    return redis.Redis.from_url(made.redis_client_url)
