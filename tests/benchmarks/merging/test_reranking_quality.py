"""Re-ranked scores, and the comparison on two small tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.merging.reranking_quality import RankedQueries, measure_reranking, rerank_scores
from index.scanning.frame_pooling import pooled_cosines
from tests.trainer.methods.method_driver import random_backbone, write_task
from trainer.methods import start_method
from trainer.task_data import TaskData
from trainer.video_embedding import embed_clips, embed_frames


def test_only_the_head_has_the_order_of_the_second_scores() -> None:
    first = np.array([[0.9, 0.1, 0.8, 0.7], [0.1, 0.2, 0.3, 0.4]])
    second = np.array([[0.0, 1.0, 0.5, 1.0], [1.0, 1.0, 0.1, 0.2]])
    orders = np.argsort(-rerank_scores(first, second, depth=2), axis=1)
    assert orders.tolist() == [[2, 0, 3, 1], [3, 2, 1, 0]]


@pytest.fixture
def tasks(tmp_path: Path) -> list[TaskData]:
    return [
        write_task(tmp_path, name, [[f"{name} {n}"] for n in range(6)], ["train"] * 2 + ["test"] * 4)
        for name in ("red", "blue")
    ]


def test_ranks_equal_those_of_a_search_by_hand(tasks: list[TaskData]) -> None:
    backbone = random_backbone()
    results = measure_reranking("zero_shot", backbone, tasks, {}, "test", [0.1], [1e-3])
    found = {(ranked.gallery, ranked.ranking): ranked for ranked in results}
    names = ("one vector", "frames, τ 0.1", "X-Pool, learning rate 0.001")
    assert set(found) == {(gallery, name) for gallery in ("own", "all") for name in names}
    method = start_method("zero_shot", backbone, {}, None)
    for ranked, ranks in zip((found["own", names[0]], found["own", names[1]]), ([], []), strict=True):
        for task in tasks:
            clips = [clip for clip in task.clips if clip.split == "test"]
            texts = method.query_encoder({}).encode_with_backbone([clip.captions[0] for clip in clips])
            videos = embed_clips(method.encode_videos, clips).astype(np.float16).astype(np.float32)
            frames = embed_frames(method.encode_videos, clips).astype(np.float16).astype(np.float32)
            scores = (
                texts @ videos.T
                if ranked.ranking == names[0]
                else np.stack([pooled_cosines(text, frames, 0.1) for text in texts])
            )
            ranks.append(tuple(float((row >= row[n]).sum()) for n, row in enumerate(scores)))
        assert ranked.ranks == tuple(ranks)


def test_recalls_are_means_over_domains() -> None:
    ranked = RankedQueries("own", "one vector", ((1.0, 2.0), (7.0, 30.0, 1.0, 1.0)))
    assert ranked.recalls() == (50, 75, 87.5)
    assert [rates.tolist() for rates in ranked.hit_rates()] == [
        pytest.approx([100, 200 / 3]),
        pytest.approx([100 / 3, 0, 100, 100]),
    ]
