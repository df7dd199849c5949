"""Pairs, batches, cached frames and stored vectors of a task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trainer.errors import FramesMissing
from trainer.task_data import Clip, Pair, StoredVectors, TaskData, draw_batches, load_frames


def _clip(number: int, captions: int, split: str = "train", path: Path = Path("none.npy")) -> Clip:
    texts = tuple(f"video {number}, caption {c}" for c in range(captions))
    return Clip(f"v{number}", number, path, texts, split)  # type: ignore[arg-type]


def _pairs(*captions: int) -> list[Pair]:
    return TaskData("t", "t", tuple(_clip(n, c) for n, c in enumerate(captions))).pairs


def _repeats(batch: list[Pair]) -> int:
    return len(batch) - len({pair.clip.vector_id for pair in batch})


def test_pairs_come_from_training_videos_only() -> None:
    task = TaskData("t", "t", (_clip(1, 2), _clip(2, 1, "val"), _clip(3, 1, "test"), _clip(4, 0)))
    assert [pair.clip.vector_id for pair in task.pairs] == [1, 1]
    assert task.training_captions == ["video 1, caption 0", "video 1, caption 1"]
    assert ([c.vector_id for c in task.val], [c.vector_id for c in task.test]) == ([2], [3])


@pytest.mark.parametrize("size", [1, 3, 8, 16, 500])
def test_batches_contain_every_pair_once(size: int) -> None:
    pairs = _pairs(*([3] * 20), 7, 1, 1)
    drawn = draw_batches(pairs, size, np.random.default_rng(0))
    assert Counter(pair for batch in drawn for pair in batch) == Counter(pairs)
    lengths = {len(batch) for batch in drawn}
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    assert drawn == draw_batches(pairs, size, np.random.default_rng(0))
    assert drawn != draw_batches(pairs, size, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("captions", "size"), [((5,) * 32, 16), ((20,) * 16, 16), ((9, 9, 3, 3, 3, 1, 1, 1), 3), ((2, 1, 1), 2)]
)
def test_captions_of_one_video_are_in_different_batches(captions: tuple[int, ...], size: int) -> None:
    for seed in range(20):
        drawn = draw_batches(_pairs(*captions), size, np.random.default_rng(seed))
        assert [_repeats(batch) for batch in drawn] == [0] * len(drawn)


def test_captions_of_one_video_share_a_batch_only_if_necessary() -> None:
    drawn = draw_batches(_pairs(6, 1), 2, np.random.default_rng(0))  # four batches, six captions of one video
    assert sorted(map(len, drawn)) == [1, 2, 2, 2]
    assert sum(map(_repeats, drawn)) == 2
    alone = draw_batches(_pairs(20), 8, np.random.default_rng(0))
    assert sorted(map(len, alone)) == [6, 7, 7]
    assert draw_batches(_pairs(1), 8, np.random.default_rng(0)) == [_pairs(1)]


def test_frames_are_read_from_the_cache(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4, 3), dtype=np.uint8)
    clips = []
    for number, video in enumerate(frames):
        np.save(tmp_path / f"{number}.npy", video)
        clips.append(_clip(number, 1, path=tmp_path / f"{number}.npy"))
    loaded = load_frames(clips)
    assert np.array_equal(loaded.numpy(), frames)
    assert loaded.numpy().flags.writeable


def test_missing_or_damaged_frames_name_the_video(tmp_path: Path) -> None:
    good = _clip(1, 1, path=tmp_path / "good.npy")
    np.save(good.frames_path, np.zeros((3, 4, 4, 3), np.uint8))
    gone = _clip(2, 1, path=tmp_path / "gone.npy")
    with pytest.raises(FramesMissing, match=r"'v2'.*gone\.npy.*retry the task"):
        load_frames([good, gone])
    for content in (b"", good.frames_path.read_bytes()[:150], b"no numpy file at all"):
        gone.frames_path.write_bytes(content)
        with pytest.raises(FramesMissing, match="'v2'"):
            load_frames([gone])
    np.save(gone.frames_path, np.zeros((3, 4, 4, 3), np.float32))
    with pytest.raises(FramesMissing, match="float32"):
        load_frames([gone])
    np.save(gone.frames_path, np.zeros((5, 4, 4, 3), np.uint8))
    with pytest.raises(FramesMissing, match=r"'v2'.*\[5, 4, 4, 3\]"):
        load_frames([good, gone])


class _Shard:
    """A shard whose vectors contain their own ID."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def vectors(self, ids: np.ndarray) -> np.ndarray:
        self.read += ids.tolist()
        return np.repeat(ids[:, None], 2, axis=1).astype(np.float32)


def test_stored_vectors_are_sampled_from_the_given_ids_only() -> None:
    shards = [_Shard(), _Shard(), _Shard()]
    ids = [np.array([3, 5, 8]), np.array([], np.int64), np.array([100, 7])]
    assert StoredVectors().sample(4, np.random.default_rng(0)) is None
    memory = StoredVectors(list(zip(shards, ids, strict=True)))
    assert len(memory) == 5
    everything = memory.sample(50, np.random.default_rng(0))
    assert everything is not None
    assert sorted(everything[:, 0].tolist()) == [3, 5, 7, 8, 100]
    for shard, expected in zip(shards, ids, strict=True):
        assert sorted(shard.read) == sorted(expected.tolist())
    drawn = [memory.sample(2, np.random.default_rng(seed)) for seed in (1, 1)]
    assert drawn[0] is not None
    assert drawn[0].shape == (2, 2)
    assert drawn[0].equal(drawn[1])
    seen = Counter(int(v) for s in range(300) for v in memory.sample(2, np.random.default_rng(s))[:, 0])
    assert set(seen) == {3, 5, 7, 8, 100}
    assert min(seen.values()) > 60  # each is expected 120 times


def test_observed_videos_are_a_sample_of_bounded_size() -> None:
    clips = (*(_clip(n, n % 3) for n in range(300)), _clip(300, 1, "test"))
    task = TaskData("t", "t", clips)
    captioned = [clip.vector_id for clip in clips if clip.captions and clip.split == "train"]
    assert [clip.vector_id for clip in task.observed()] == captioned
    assert [clip.vector_id for clip in task.observed(200)] == captioned
    sample = [clip.vector_id for clip in task.observed(50)]
    assert len(sample) == 50
    assert sample == sorted(sample)
    assert set(sample) < set(captioned)
    assert max(sample) > 250  # not the first ones
    assert [clip.vector_id for clip in task.observed(50)] == sample
