"""ER, CTP + ER, DER, iCaRL, LUCIR, LUMP and Co2L: the memory of past pairs, and each loss against loops."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.co2l import asymmetric_loss, relation_loss
from benchmarks.rivals.replay_memory import MemoryRows, ReplayMemory, herding_order
from benchmarks.rivals.replay_methods import margin_ranking_loss
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.benchmarks.rivals.test_distillation_methods import slow_distillation_loss
from tests.trainer.methods.method_driver import (
    begin_second_task,
    create_method,
    learn_steps,
    random_frames,
    random_unit_vectors,
    replay_method,
    scale_projections,
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


def test_ring_gives_equal_shares_within_its_capacity() -> None:
    memory, first = empty_memory(10), 0
    shares = []
    for task in range(13):
        count = memory.next_task_share()
        memory.add_to_ring(numbered_rows([task] * 10, first))
        counts = Counter(memory.rows()["tasks"].tolist())
        assert len(memory) == 10
        assert counts[task] == count, "next_task_share returns the share in advance"
        assert max(counts.values()) - min(counts.values()) <= 1
        for number, owner in zip(pair_numbers(memory), memory.rows()["tasks"].tolist(), strict=True):
            assert number // 10 == owner
            assert number % 10 < counts[owner], "the first pairs of a task stay"
        shares.append(dict(counts))
        first += 10
    assert shares[2] == {0: 3, 1: 3, 2: 4}
    assert sorted(shares[12]) == list(range(3, 13)), (
        "with more tasks than capacity, the oldest tasks are removed"
    )


def test_reservoir_is_algorithm_r() -> None:
    memory = empty_memory(3)
    torch.manual_seed(4)
    memory.add_to_reservoir(numbered_rows([0] * 7))
    memory.add_to_reservoir(numbered_rows([1] * 9, 7))
    numbers: list[int] = []
    torch.manual_seed(4)
    for number in range(16):
        if number < 3:
            numbers.append(number)
            continue
        slot = int(torch.randint(number + 1, ()))
        if slot < 3:
            numbers[slot] = number
    assert pair_numbers(memory) == numbers != [0, 1, 2]
    assert memory.rows()["tasks"].tolist() == [int(number >= 7) for number in numbers]
    assert memory.rows()["frames"][:, 0, 0, 0, 0].tolist() == numbers
    assert memory.seen == 16


def test_samples_are_distinct_pairs_of_past_tasks() -> None:
    memory = empty_memory(6)
    memory.add_to_reservoir(numbered_rows([0, 1, 2, 1, 2, 2]))
    assert memory.sample(4, before=0) is None
    for _ in range(20):
        drawn = memory.sample(2, before=2)
        assert drawn is not None
        assert len(set(drawn["ids"].flatten().tolist())) == 2
        assert set(drawn["ids"].flatten().tolist()) < {0, 1, 3}
    every = memory.sample(50, before=2)
    assert every is not None
    assert sorted(every["ids"].flatten().tolist()) == [0, 1, 3]


def captioned_task(folder: Path, name: str, *, videos: int = 5, captions: int = 2) -> TaskData:
    """Write a task of several videos with several captions each."""
    return write_task(
        folder, name, [[f"{name} {number} caption {c}" for c in range(captions)] for number in range(videos)]
    )


def test_ring_stores_one_caption_per_video_before_a_second(backbone: Backbone, tmp_path: Path) -> None:
    task = captioned_task(tmp_path, "one", videos=5, captions=3)
    method = replay_method("er", backbone, memory=7, epochs=1)
    learn_task(method, task)
    rows = method.memory.rows()
    frames = {clip.id: torch.from_numpy(np.load(clip.frames_path)) for clip in task.clips}
    owners: Counter[str] = Counter()
    captions = set()
    for stored, ids in zip(rows["frames"], rows["ids"], strict=True):
        (clip,) = (clip for clip in task.clips if torch.equal(frames[clip.id], stored))
        matching = [text for text in clip.captions if torch.equal(method.tokenize([text])[0], ids)]
        assert len(matching) == 1, "a stored video has one of its own captions"
        owners[clip.id] += 1
        captions.add(matching[0])
    assert len(captions) == 7
    assert sorted(owners.values()) == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["der", "er", "icarl", "lucir", "lump"])
def test_loss_without_past_pairs_equals_fine_tuning(name: str, backbone: Backbone) -> None:
    method, plain = replay_method(name, backbone), create_method("finetune", backbone)
    for each in (method, plain):
        each.begin_task("one", "one")
    frames = random_frames(1, 3)
    assert torch.equal(method.loss(frames, TEXTS, None), plain.loss(frames, TEXTS, None))


def test_er_loss_is_the_contrast_over_current_and_past_pairs(backbone: Backbone) -> None:
    method = replay_method("er", backbone, fill="reservoir")
    old_frames, old_texts = begin_second_task(method)
    frames = random_frames(1, 3)
    queries = encode_texts(method.model, method.model.tokenize(TEXTS + old_texts))[0]
    videos = encode_frames(method.model, torch.cat([frames, old_frames]))[0]
    expected = in_task_loss(queries, videos, method.config.logit_scale)
    torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, rtol=1e-4, atol=1e-4)
    assert len(method.memory) == 2
    method.after_step()
    assert len(method.memory) == 5, "the reservoir stores current pairs and not replayed pairs"


def test_der_loss_compares_current_and_stored_logits(backbone: Backbone) -> None:
    method = replay_method("der", backbone, response=0.7, replay=0.0, logit_scale=20.0)
    old_frames, old_texts = begin_second_task(method)
    stored = method.memory.rows()
    frames = random_frames(1, 3)
    with torch.no_grad():
        now = method.embed(old_frames, old_texts)
    total = 0.0
    for i in range(2):
        for j in range(2):
            before = 20.0 * float(stored["queries"][i] @ stored["videos"][j])
            total += (20.0 * float(now[0][i] @ now[1][j]) - before) ** 2
    assert total > 0.01, "the model has changed"
    with torch.no_grad():
        alone = float(in_task_loss(*method.embed(frames, TEXTS), 20.0))
        assert float(method.loss(frames, TEXTS, None)) == pytest.approx(alone + 0.7 * total / 4, rel=1e-4)
    assert not stored["queries"].requires_grad


def test_der_stores_the_vectors_at_the_end_of_the_task(backbone: Backbone, tmp_path: Path) -> None:
    method = replay_method("der", backbone, fill="ring", epochs=1, learning_rate=1e-3)
    learn_task(method, captioned_task(tmp_path, "one"))
    rows = method.memory.rows()
    torch.testing.assert_close(rows["videos"], encode_frames(method.model, rows["frames"])[0])
    torch.testing.assert_close(rows["queries"], method.encode_ids(rows["ids"]))
    learn_task(method, captioned_task(tmp_path, "two"))
    old = method.memory.rows()
    assert torch.equal(old["videos"][:3], rows["videos"][:3]), "stored vectors do not change"
    assert not torch.allclose(encode_frames(method.model, old["frames"][:3])[0], old["videos"][:3], atol=1e-3)


def test_asymmetric_loss_has_current_anchors_only() -> None:
    torch.manual_seed(2)
    queries, videos = F.normalize(torch.randn(4, 6), dim=-1), F.normalize(torch.randn(8, 6), dim=-1)
    scale, current = 5.0, 3
    to_video = to_text = 0.0
    for i in range(current):
        total = sum(math.exp(scale * float(queries[i] @ videos[j])) for j in range(8))
        for j in (i, i + 4):
            to_video -= math.log(math.exp(scale * float(queries[i] @ videos[j])) / total) / 2
    for j in (0, 1, 2, 4, 5, 6):
        total = sum(math.exp(scale * float(queries[i] @ videos[j])) for i in range(4))
        to_text -= math.log(math.exp(scale * float(queries[j % 4] @ videos[j])) / total)
    expected = (to_video / current + to_text / (2 * current)) / 2
    assert float(asymmetric_loss(queries, videos, current, scale)) == pytest.approx(expected, rel=1e-5)


def test_relation_loss_equals_a_slow_loop() -> None:
    torch.manual_seed(2)
    now, before = torch.rand(3, 5) - 0.5, torch.rand(3, 5) - 0.5
    expected = 0.0
    for row, old in zip(now.tolist(), before.tolist(), strict=True):
        p = [math.exp(s / 0.2) / sum(math.exp(t / 0.2) for t in row) for s in row]
        q = [math.exp(s / 0.01) / sum(math.exp(t / 0.01) for t in old) for s in old]
        expected -= sum(b * math.log(a) for a, b in zip(p, q, strict=True)) / 3
    assert float(relation_loss(now, before, 0.2, 0.01)) == pytest.approx(expected, rel=1e-5)
    moving = before.clone().requires_grad_()
    relation_loss(moving, before, 0.3, 0.3).backward()
    assert moving.grad is not None
    assert moving.grad.abs().max() < 1e-6, "with equal temperatures the teacher is the minimum"


def test_co2l_loss_is_the_sum_of_both_terms_on_two_views(backbone: Backbone) -> None:
    settings = {"jitter": 0.0, "gray": 0.0, "logit_scale": 20.0, "distillation": 0.5}
    method = replay_method("co2l", backbone, **settings)
    old_frames, old_texts = begin_second_task(method)
    teacher = method.previous_model
    assert teacher is not None
    with torch.no_grad():
        method.model.clip.text_projection.mul_(1.5)
        method.model.clip.visual.proj.add_(0.02)
    frames = random_frames(1, 3)
    joined_frames = torch.cat([frames, old_frames])
    queries, videos = method.embed(joined_frames, TEXTS + old_texts)
    old_queries, old_videos = method.embed(joined_frames, TEXTS + old_texts, teacher)
    videos, old_videos = torch.cat([videos] * 2), torch.cat([old_videos] * 2)
    now, before = queries @ videos.T, old_queries @ old_videos.T
    relations = relation_loss(now, before, 0.2, 0.01) + relation_loss(now.T, before.T, 0.2, 0.01)
    expected = asymmetric_loss(queries, videos, 3, 20.0) + 0.5 * relations / 2
    torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, rtol=1e-4, atol=1e-4)


def test_lump_mixes_pixels_and_query_vectors_with_one_share(backbone: Backbone) -> None:
    method = replay_method("lump", backbone, logit_scale=20.0)
    begin_second_task(method)
    frames = random_frames(1, 3)
    torch.manual_seed(12)
    loss = method.loss(frames, TEXTS, None)
    torch.manual_seed(12)
    past = method.memory.sample(3, before=1)
    assert past is not None
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    assert 0.01 < share < 0.99
    order = [0, 1, 0]  # two past pairs for three current ones
    current, old = method.encode_ids(method.tokenize(TEXTS)), method.encode_ids(past["ids"])
    queries, mixed = [], []
    for i, j in enumerate(order):
        query = share * current[i] + (1 - share) * old[j]
        queries.append(query / query.norm())
        mixed.append((share * frames[i].float() + (1 - share) * past["frames"][j].float()).round().byte())
    videos = encode_frames(method.model, torch.stack(mixed))[0]
    torch.testing.assert_close(loss, in_task_loss(torch.stack(queries), videos, 20.0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked_language", [False, True])
def test_loss_of_ctp_er_is_equation_10_over_the_union(backbone: Backbone, masked_language: bool) -> None:
    replay = replay_method("ctp_er", backbone, fill="reservoir", masked_language=masked_language)
    plain = create_method("ctp", backbone, masked_language=masked_language)
    for method in (replay, plain):
        torch.manual_seed(1)
        learn_steps(method, "one", range(1))
        method.begin_task("two", "two")
        scale_projections(method.model, seed=8)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(2)
        loss = float(replay.loss(frames, TEXTS, None))
        torch.manual_seed(2)
        past = replay.memory.sample(3, before=1)
        ids = torch.cat([replay.tokenize(TEXTS), past["ids"]])
        expected = float(plain.pair_loss(torch.cat([frames, past["frames"]]), ids[:, : ids.any(dim=0).sum()]))
    assert len(ids) == 6
    assert loss == pytest.approx(expected, rel=1e-5)


def random_features(count: int, dim: int = 6) -> Tensor:
    return F.normalize(torch.rand(count, dim) + 0.2 * torch.randn(count, dim), dim=-1)


def slow_herding(features: Tensor, count: int) -> list[int]:
    """iCaRL's algorithm 4, with plain lists."""
    rows = features.tolist()
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    order: list[int] = []
    for k in range(1, count + 1):

        def distance(candidate: int, k: int = k) -> float:
            chosen = [rows[i] for i in (*order, candidate)]
            running = [sum(column) / k for column in zip(*chosen, strict=True)]
            return sum((m - r) ** 2 for m, r in zip(mean, running, strict=True))

        order.append(min((i for i in range(len(rows)) if i not in order), key=distance))
    return order


@pytest.mark.parametrize("seed", range(4))
def test_herding_equals_a_slow_loop(seed: int) -> None:
    torch.manual_seed(seed)
    features = random_features(17)
    assert herding_order(features, 9) == slow_herding(features, 9)


def test_loss_is_contrast_and_distillation_over_the_union(backbone: Backbone) -> None:
    method = replay_method("icarl", backbone, logit_scale=20.0, distillation=0.5)
    old_frames, old_texts = begin_second_task(method)
    scale_projections(method.model, seed=8)
    frames = torch.cat([random_frames(1, 3), old_frames])
    with torch.no_grad():
        queries, videos = method.embed(frames, TEXTS + old_texts)
        past_queries, past_videos = method.embed(frames, TEXTS + old_texts, method.previous_model)
        loss = float(method.loss(frames[:3], TEXTS, None))
    now, before = 20 * queries @ videos.T, 20 * past_queries @ past_videos.T
    distilled = (slow_distillation_loss(now, before, 1.0) + slow_distillation_loss(now.T, before.T, 1.0)) / 2
    contrast = float(in_task_loss(queries, videos, 20.0))
    assert loss == pytest.approx(contrast + 0.5 * distilled, rel=1e-4)


@pytest.mark.parametrize("name", ["er", "icarl"])
def test_memory_holds_the_herded_pairs_of_each_task_in_order(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    method = replay_method(name, backbone, fill="herding", epochs=1, learning_rate=1e-3)
    first, second = (write_task(tmp_path, task, [[f"{task} {n}"] for n in range(9)]) for task in ("a", "b"))
    learn_task(method, first)
    frames = torch.from_numpy(np.stack([np.load(clip.frames_path) for clip in first.clips]))
    with torch.no_grad():
        features = torch.cat(method.embed(frames, [clip.captions[0] for clip in first.clips]), dim=-1)
    expected = frames[slow_herding(features, 6)]
    assert torch.equal(method.memory.rows()["frames"], expected)
    learn_task(method, second)
    assert torch.equal(method.memory.rows()["frames"][:3], expected[:3]), "algorithm 5 removes the last ones"
    assert method.memory.rows()["tasks"].tolist() == [0, 0, 0, 1, 1, 1]


def cosine(left: Tensor, right: Tensor) -> float:
    return sum(a * b for a, b in zip(left.tolist(), right.tolist(), strict=True))


def slow_ranking(anchors: Tensor, targets: Tensor, current: int, margin: float, hardest: int) -> float:
    """Return the margin ranking loss of past anchors, by sorted lists."""
    total = 0.0
    for i in range(current, len(anchors)):
        matching = cosine(anchors[i], targets[i])
        others = sorted((cosine(anchors[i], targets[j]) for j in range(current)), reverse=True)[:hardest]
        total += sum(max(margin - matching + other, 0.0) for other in others)
    return total / (len(anchors) - current)


@pytest.mark.parametrize(("current", "hardest", "margin"), [(4, 2, 0.5), (3, 1, 0.1), (2, 5, 1.5)])
def test_margin_ranking_loss_equals_a_slow_loop(current: int, hardest: int, margin: float) -> None:
    torch.manual_seed(current)
    queries, videos = random_unit_vectors(7), random_unit_vectors(7)
    expected = slow_ranking(queries, videos, current, margin, hardest)
    expected += slow_ranking(videos, queries, current, margin, hardest)
    loss = margin_ranking_loss(queries, videos, current, margin, hardest)
    assert float(loss) == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("past_tasks", [1, 2])
def test_loss_is_the_sum_of_three_terms(backbone: Backbone, past_tasks: int) -> None:
    settings = {"less_forget": 3.0, "ranking": 0.7, "margin": 0.4, "hard_negatives": 2}
    method = replay_method("lucir", backbone, logit_scale=20.0, **settings)
    _, old_texts = begin_second_task(method)
    if past_tasks == 2:
        method.end_task()
        rows = {name: values.clone() for name, values in method.memory.rows().items()}
        method.memory.add_to_ring({name: r + 1 if name == "tasks" else r for name, r in rows.items()})
        method.record_task("two", "two", old_texts)
        method.begin_task("three", "three")
    scale_projections(method.model, seed=8)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(4)
        past = method.memory.sample(3, before=past_tasks)
        torch.manual_seed(4)
        loss = float(method.loss(frames, TEXTS, None))
        ids = torch.cat([method.tokenize(TEXTS), past["ids"]])
        joined = torch.cat([frames, past["frames"]])
        queries, videos = method.encode(joined, ids)
        old_queries, old_videos = method.encode(joined, ids, method.previous_model)
    assert len(past["ids"]) == (2 if past_tasks == 1 else 3)
    count = len(ids)
    forgotten = sum(
        2 - cosine(queries[i], old_queries[i]) - cosine(videos[i], old_videos[i]) for i in range(count)
    )
    ranking = slow_ranking(queries, videos, 3, 0.4, 2) + slow_ranking(videos, queries, 3, 0.4, 2)
    expected = float(in_task_loss(queries, videos, 20.0))
    expected += 3.0 * math.sqrt(past_tasks) * forgotten / (2 * count) + 0.7 * ranking / 2
    assert loss == pytest.approx(expected, rel=1e-4)
