"""Galleries of tasks: from shards, and embedded again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.word_routing import WordRouting
from trainer.evaluation.gallery import Gallery, Query, task_gallery
from trainer.evaluation.recall_row import evaluate_row
from trainer.task_data import Clip, TaskData
from trainer.video_embedding import MemoryShard, embed_clips


def _task(folder: Path, name: str, first: int, shades: Sequence[int]) -> TaskData:
    """Return the single-color videos: the first is for training, the others are held out with two captions each."""
    clips = []
    for number, shade in enumerate(shades):
        path = folder / f"{first + number}.npy"
        np.save(path, np.full((1, 2, 2, 3), shade, np.uint8))
        split = "test" if number else "train"
        captions = (f"{shade}", f"again {shade}")
        clips.append(Clip(f"{name}-{number}", first + number, path, captions, split))  # type: ignore[arg-type]
    return TaskData(name, name, tuple(clips))


def _at(degrees: Tensor) -> Tensor:
    return torch.stack([torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))], dim=-1)


def _encode(turn: float) -> object:
    """Return a video encoder that maps a shade to an angle, starting at ``turn``."""
    return lambda frames: _at(frames[:, 0, 0, 0, 0].float() + turn)


def _embedded_gallery(encode: object, task: TaskData) -> Gallery:
    """Return the gallery of a task whose videos are embedded by ``encode``."""
    vectors = embed_clips(encode, task.clips)  # type: ignore[arg-type]
    return task_gallery(task, MemoryShard(np.array([clip.vector_id for clip in task.clips]), vectors))


class Encoder(WordRouting):
    """A query encoder that maps the number in a text to an angle, starting at ``turn``; records requested tasks."""

    modes = ("latest",)

    def __init__(self, turn: float) -> None:
        self._turn = turn
        self.requested: list[tuple[str, ...]] = []

    def token_presence(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), 1), np.float32)

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        self.requested.append(tuple(tasks))
        vectors = _at(torch.tensor([float(text.split()[-1]) for text in texts]) + self._turn).numpy()
        return np.repeat(vectors[:, None], len(tasks), axis=1)


def test_gallery_holds_out_test_videos(tmp_path: Path) -> None:
    task = _task(tmp_path, "day", 10, [5, 20, 40])
    shard = MemoryShard(np.array([10, 11, 12]), np.eye(3, dtype=np.float32))
    gallery = task_gallery(task, shard)
    assert gallery.task == "day"
    assert gallery.held_out.tolist() == [11, 12]
    assert gallery.queries == (Query("20", 11), Query("40", 12))
    assert [query.text for query in task_gallery(task, shard, None).queries] == [
        "20",
        "again 20",
        "40",
        "again 40",
    ]


def test_reindexed_galleries_follow_the_encoder(tmp_path: Path) -> None:
    """Queries turn by 15°: stored vectors lose them, re-embedded vectors turn as well."""
    tasks = [_task(tmp_path, "day", 10, [5, 20, 40]), _task(tmp_path, "night", 20, [60, 70, 85])]
    stored, fresh = ([_embedded_gallery(_encode(turn), task) for task in tasks] for turn in (0, 15))
    assert [gallery.shard.ids.tolist() for gallery in fresh] == [[10, 11, 12], [20, 21, 22]]
    np.testing.assert_allclose(
        fresh[0].shard.vectors(np.array([12])), _at(torch.tensor([55.0])).numpy(), atol=1e-6
    )
    profiles = np.ones((2, 1), np.float32)

    def found(galleries: object) -> list[float]:
        row = evaluate_row(Encoder(15), galleries, profiles)  # type: ignore[arg-type]
        return [figures.recalls["global"].r1 for figures in row.tasks.values()]

    assert found(fresh) == [1, 1]
    assert found(stored) == [0, 0.5]  # 85° + 15° is nearest to the last video
