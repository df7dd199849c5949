"""Times that the stages of a task take, over all its attempts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.tables import Release, Shard
from service.core.errors import WorkerStopping
from service.core.settings import Settings
from service.tasks import commands, lifecycle
from service.tasks.lifecycle import claims

Post = Callable[..., TaskDetails]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``advance(seconds)`` on the clock of claims."""
    times = [0.0]
    monkeypatch.setattr(claims, "monotonic", lambda: times[-1])
    return lambda seconds: times.append(times[-1] + seconds)


def _claim(task_id: str) -> lifecycle.Claim:
    claim = lifecycle.claim_training(task_id, "worker")
    assert claim is not None
    return claim


def _stage_seconds(task_id: str) -> dict[str, float]:
    times = commands.get_task(task_id).progress.times
    assert times is not None
    return times.seconds


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_attempts_add_to_the_times_of_the_stages(
    sqlite_catalog: Settings,
    post_probed: Post,
    expire: Callable[[str], None],
    advance: Callable[[float], None],
    end: str,
) -> None:
    task = post_probed("birds").id
    claim = _claim(task)
    claim.advance("training")
    advance(10)
    claim.progress("training", 1.0)
    if end == "killed":
        expire(task)
    else:
        with claim:
            raise WorkerStopping("stops")
    claim = _claim(task)
    for state in ("training", "indexing", "evaluating"):
        claim.advance(state)
        claim.progress(state, 0.5)
        advance(7)
    release = Release(id="r", method="strata", backbone="tiny", kind="low_rank", fingerprint="f", bytes=1)
    with claim.publishing() as publication:
        shard = Shard(id="s", release_id="r", fingerprint="f", count=2, dim=8, bytes=1)
        publication.complete(release=release, shard=shard, trained=True)
    assert _stage_seconds(task) == {"training": 17.0, "indexing": 7.0, "evaluating": 7.0}


def test_retried_task_is_measured_again(sqlite_catalog: Settings, post_probed: Post) -> None:
    task = post_probed("birds").id
    claim = _claim(task)
    claim.progress("training", 0.5)
    claim.fail("broken")
    assert "training" in _stage_seconds(task)
    commands.retry_task(task)
    assert _stage_seconds(task) == {}
