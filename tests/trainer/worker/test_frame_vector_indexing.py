"""Frame vectors in the shard of a learned task, with the setting and without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from service.core.settings import settings
from service.tasks import commands
from tests.trainer.worker.conftest import SMALL
from trainer.worker import learning_job

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("has_frames", [True, False])
def test_setting_adds_frame_vectors_to_the_shard(post_videos: Callable[..., str], has_frames: bool) -> None:
    chosen = {"frame_vectors": True} if has_frames else {}
    task = post_videos("day", videos=4, captions=1, tests=1, settings={**SMALL, **chosen})
    learning_job.run_learning_job(task)
    assert commands.get_task(task).state == "ready"
    store = ShardStore(settings().index_dir)
    entry = store.manifest().shards[task]
    shard = IndexSnapshot.open(store).shard(task, fingerprint=entry.fingerprint)
    assert shard.has_frames == has_frames
    assert not audit(store).problems
    if not has_frames:
        return
    vectors = shard.frame_vectors(shard.ids)
    assert vectors.shape == (4, 2, shard.dim)
    # The tower has no state that spans frames yet, so a video is the mean of its frames.
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=2), 1, atol=2e-3)
    means = vectors.mean(axis=1)
    cosines = np.einsum("nd,nd->n", means, shard.vectors(shard.ids)) / np.linalg.norm(means, axis=1)
    assert (cosines > 0.95).all()
