"""ER: the memory of past pairs, and the loss over current and past pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from benchmarks.rivals.er import MemoryRows, ReplayMemory
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.trainer.methods.method_driver import (
    FRAMES,
    SIDE,
    begin_second_task,
    create_method,
    random_frames,
    replay_method,
    write_task,
)
from trainer.methods.base import in_task_loss
from trainer.task_data import TaskData
from trainer.training_loop import learn_task

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def numbered_rows(tasks: list[int], first: int = 0) -> MemoryRows:
    """Return distinguishable pairs: pair n has the ID n."""
    numbers = torch.arange(first, first + len(tasks))
    frames = numbers.to(torch.uint8).view(-1, 1, 1, 1, 1).expand(-1, 1, 2, 2, 3)
    return {"frames": frames, "ids": numbers.unsqueeze(1), "tasks": torch.tensor(tasks)}


def empty_memory(capacity: int) -> ReplayMemory:
    return ReplayMemory(capacity, {name: rows[:0] for name, rows in numbered_rows([0]).items()})


def pair_numbers(memory: ReplayMemory) -> list[int]:
    return memory.rows()["ids"].flatten().tolist()


# -- the memory -----------------------------------------------------------------------------------------


def test_ring_gives_equal_shares_within_its_capacity() -> None:
    memory, first = empty_memory(10), 0
    shares = []
    for task in range(13):
        count = memory.next_task_share()
        memory.add_to_ring(numbered_rows([task] * 10, first))
        kept = Counter(memory.rows()["tasks"].tolist())
        assert len(memory) == 10
        assert kept[task] == count, "next_task_share returns the share in advance"
        assert max(kept.values()) - min(kept.values()) <= 1
        for number, owner in zip(pair_numbers(memory), memory.rows()["tasks"].tolist(), strict=True):
            assert number // 10 == owner
            assert number % 10 < kept[owner], "the first pairs of a task stay"
        shares.append(dict(kept))
        first += 10
    assert shares[2] == {0: 3, 1: 3, 2: 4}
    assert sorted(shares[12]) == list(range(3, 13)), (
        "with more tasks than capacity, the oldest tasks are removed"
    )


def test_ring_does_not_redistribute_unused_places() -> None:
    memory = empty_memory(8)
    memory.add_to_ring(numbered_rows([0, 0]))
    memory.add_to_ring(numbered_rows([1] * 8, 10))
    assert pair_numbers(memory) == [0, 1, 10, 11, 12, 13]


def test_samples_are_distinct_pairs_of_past_tasks() -> None:
    memory = empty_memory(6)
    for task, first, count in ((0, 0, 1), (1, 1, 2), (2, 3, 3)):
        memory.add_to_ring(numbered_rows([task] * count, first))
    assert memory.sample(4, before=0) is None
    for _ in range(20):
        drawn = memory.sample(2, before=2)
        assert drawn is not None
        assert len(set(drawn["ids"].flatten().tolist())) == 2
        assert set(drawn["ids"].flatten().tolist()) < {0, 1, 2}
    every = memory.sample(50, before=2)
    assert every is not None
    assert sorted(every["ids"].flatten().tolist()) == [0, 1, 2]
    torch.manual_seed(1)
    one = memory.sample(3, before=3)
    torch.manual_seed(1)
    two = memory.sample(3, before=3)
    assert one is not None
    assert two is not None
    assert torch.equal(one["ids"], two["ids"])


# -- whole tasks ----------------------------------------------------------------------------------------


def captioned_task(folder: Path, name: str, *, videos: int = 5, captions: int = 2) -> TaskData:
    """Write a task of several videos with several captions each."""
    return write_task(
        folder, name, [[f"{name} {number} caption {c}" for c in range(captions)] for number in range(videos)]
    )


def test_release_grows_up_to_the_capacity(backbone: Backbone, tmp_path: Path) -> None:
    release = None
    for task, kept in zip("abcd", (4, 6, 6, 6), strict=True):
        method = replay_method("er", backbone, release, epochs=1)
        learn_task(method, captioned_task(tmp_path, task, videos=2))
        release = method.release()
        added = {n: t for n, t in release.tensors.items() if not n.startswith("clip.")}
        assert set(added) == {"memory.frames", "memory.ids", "memory.tasks"}
        assert {len(tensor) for tensor in added.values()} == {kept}
        assert added["memory.frames"].shape[1:] == (FRAMES, SIDE, SIDE, 3)


def test_ring_stores_one_caption_per_video_before_a_second(backbone: Backbone, tmp_path: Path) -> None:
    task = captioned_task(tmp_path, "one", videos=5, captions=3)
    method = replay_method("er", backbone, memory=7, epochs=1)
    learn_task(method, task)
    rows = method.memory.rows()
    frames = {clip.id: torch.from_numpy(np.load(clip.frames_path)) for clip in task.clips}
    owners: Counter[str] = Counter()
    captions = set()
    for kept, ids in zip(rows["frames"], rows["ids"], strict=True):
        (clip,) = (clip for clip in task.clips if torch.equal(frames[clip.id], kept))
        matching = [text for text in clip.captions if torch.equal(method.tokenize([text])[0], ids)]
        assert len(matching) == 1, "a stored video has one of its own captions"
        owners[clip.id] += 1
        captions.add(matching[0])
    assert len(captions) == 7
    assert sorted(owners.values()) == [1, 1, 1, 2, 2]


def test_task_without_training_does_not_change_the_memory(backbone: Backbone, tmp_path: Path) -> None:
    method = replay_method("er", backbone, epochs=1)
    learn_task(method, captioned_task(tmp_path, "one"))
    before = method.memory.rows()["ids"].clone()
    learn_task(method, captioned_task(tmp_path, "mute", captions=0))
    assert torch.equal(method.memory.rows()["ids"], before)


def test_padded_token_ids_are_encoded_like_their_texts(backbone: Backbone) -> None:
    method = replay_method("er", backbone)
    ids = method.tokenize(TEXTS)
    assert ids.shape == (3, len(backbone.text.positional_embedding))
    torch.testing.assert_close(method.encode_ids(ids), encode_texts(backbone, backbone.tokenize(TEXTS))[0])
    shorter = encode_texts(backbone, backbone.tokenize(TEXTS[1:2]))[0]
    torch.testing.assert_close(method.encode_ids(ids[1:2]), shorter)


def test_loss_without_past_pairs_equals_fine_tuning(backbone: Backbone) -> None:
    method, plain = replay_method("er", backbone), create_method("finetune", backbone)
    for each in (method, plain):
        each.begin_task("one", "one")
    frames = random_frames(1, 3)
    assert torch.equal(method.loss(frames, TEXTS, None), plain.loss(frames, TEXTS, None))


# -- the methods ----------------------------------------------------------------------------------------


def test_er_loss_is_the_contrast_over_current_and_past_pairs(backbone: Backbone) -> None:
    method = replay_method("er", backbone)
    old_frames, old_texts = begin_second_task(method)
    frames = random_frames(1, 3)
    queries = encode_texts(method.model, method.model.tokenize(TEXTS + old_texts))[0]
    videos = encode_frames(method.model, torch.cat([frames, old_frames]))[0]
    expected = in_task_loss(queries, videos, method.config.logit_scale)
    torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, rtol=1e-4, atol=1e-4)
