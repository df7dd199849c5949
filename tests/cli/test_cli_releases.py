"""Rollback to an earlier release from the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import update

from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings
from tests.cli.invocation import run

_run = partial(run, "releases")


@pytest.fixture
def releases(folder: Settings, publish_task: Callable[..., Manifest]) -> list[str]:
    """IDs of the releases after three domains of 4, 3 and 2 videos."""
    for name, videos in (("a", 4), ("b", 3), ("c", 2)):
        publish_task(name, videos)
    with session_scope(write=True) as session:
        for name, videos in (("a", 4), ("b", 3), ("c", 2)):
            session.execute(
                update(Task).where(Task.name == name).values(counts={"videos": videos, "accepted": videos})
            )
    return list(ShardStore(folder.index_dir).manifest().releases)


def _served(folder: Settings) -> str | None:
    return ShardStore(folder.index_dir).manifest().served


def test_dry_run_names_the_domains_that_become_unsearchable(folder: Settings, releases: list[str]) -> None:
    result = _run("--serve", "a", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "no longer searchable: 2 domains with 5 videos" in result.output
    assert "b: 3 videos\n" in result.output
    assert "c: 2 videos\n" in result.output
    assert _served(folder) == releases[2]


def test_rollback_and_return(folder: Settings, releases: list[str]) -> None:
    refused = _run("--serve", releases[1][:10])
    assert (refused.exit_code, _served(folder)) == (1, releases[2])  # no terminal to confirm on
    done = _run("--serve", releases[1][:10], "--yes")
    assert (done.exit_code, _served(folder)) == (0, releases[1]), done.output
    assert "cinestrata releases --serve newest" in done.output
    lines = [line for line in _run().output.splitlines() if line.endswith("served")]
    assert [line.split()[:2] for line in lines] == [["2", "b"]]
    forward = _run("--serve", "newest")
    assert "searchable again: 1 domain with 2 videos" in forward.output
    assert _served(folder) == releases[2]
