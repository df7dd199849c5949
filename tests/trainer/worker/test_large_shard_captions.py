"""Quality gate of a large shard: it is given the query vectors of the task's training captions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from index.scanning.search_options import AnnPolicy
from index.shard_store import ShardStore
from models.encoders.encoder_registry import open_query_encoder
from service.core.settings import settings
from service.storage import index_manifest
from service.tasks import commands
from tests.trainer.conftest import untrained_backbone
from trainer.published_library import Library
from trainer.worker import learning_job

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.slow
@pytest.mark.parametrize(("exact_rows", "captions"), [(5, 2), (5, 0), (6, 2)])
def test_large_shard_is_written_with_queries_of_training_captions(
    post_videos: Callable[..., str], monkeypatch: pytest.MonkeyPatch, exact_rows: int, captions: int
) -> None:
    monkeypatch.setattr(index_manifest, "EXACT_ROWS", exact_rows)
    written: list[tuple[AnnPolicy, Any]] = []
    original = ShardStore.write_shard

    def write_shard(self: ShardStore, **fields: Any) -> Any:
        written.append((self.policy, fields["queries"]))
        return original(self, **fields)

    monkeypatch.setattr(ShardStore, "write_shard", write_shard)
    task = post_videos("day", videos=6, captions=captions, tests=2)
    learning_job.run_learning_job(task)
    assert commands.get_task(task).state == "ready"
    [(policy, queries)] = written
    assert policy.exact_rows == exact_rows
    if exact_rows == 6 or not captions:
        assert queries is None
        return
    store = ShardStore(settings().index_dir)
    library = Library(store)
    state = library.release(store.manifest().shards[task].release)
    encoder = open_query_encoder(untrained_backbone(2), state, library.pinned_releases())
    texts = [f"day number {number} said {caption}" for number in range(2, 6) for caption in range(2)]
    np.testing.assert_allclose(queries, encoder.encode(texts, [task])[:, 0], atol=1e-6)
