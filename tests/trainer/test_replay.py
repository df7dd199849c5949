"""The memory of past pairs, and the four methods that learn from it again."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_files import read_release, write_release
from tests.trainer.killing import Killed, kill_at
from trainer.losses import in_task_loss
from trainer.methods import Method, MethodError, configure, start_method
from trainer.methods.co2l import Co2l, asymmetric_loss, relation_loss
from trainer.methods.der import Der, response_loss
from trainer.methods.er import Er
from trainer.methods.lump import Lump
from trainer.methods.shared.replay import MemoryRows, ReplayMemory, ReplayMethod
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES, SIDE = 2, 56
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _rows(tasks: list[int], first: int = 0) -> MemoryRows:
    """Pairs that can be told apart: number n has the id n."""
    numbers = torch.arange(first, first + len(tasks))
    frames = numbers.to(torch.uint8).view(-1, 1, 1, 1, 1).expand(-1, 1, 2, 2, 3)
    return {"frames": frames, "ids": numbers.unsqueeze(1), "tasks": torch.tensor(tasks)}


def _memory(capacity: int) -> ReplayMemory:
    return ReplayMemory(capacity, {name: rows[:0] for name, rows in _rows([0]).items()})


def _numbers(memory: ReplayMemory) -> list[int]:
    return memory.rows()["ids"].flatten().tolist()


# -- the memory -----------------------------------------------------------------------------------------


def test_a_ring_gives_every_task_an_equal_share_and_never_exceeds_its_capacity() -> None:
    memory, first = _memory(10), 0
    shares = []
    for task in range(13):
        count = memory.next_task_share()
        memory.add_to_ring(_rows([task] * 10, first))
        kept = Counter(memory.rows()["tasks"].tolist())
        assert len(memory) == 10
        assert kept[task] == count, "a task is told beforehand how much there is room for"
        assert max(kept.values()) - min(kept.values()) <= 1
        for number, owner in zip(_numbers(memory), memory.rows()["tasks"].tolist(), strict=True):
            assert number // 10 == owner
            assert number % 10 < kept[owner], "what came first stays"
        shares.append(dict(kept))
        first += 10
    assert shares[2] == {0: 3, 1: 3, 2: 4}
    assert sorted(shares[12]) == list(range(3, 13)), "of more tasks than places, the oldest are given up"


def test_a_task_with_few_pairs_leaves_its_places_empty() -> None:
    memory = _memory(8)
    memory.add_to_ring(_rows([0, 0]))
    memory.add_to_ring(_rows([1] * 8, 10))
    assert _numbers(memory) == [0, 1, 10, 11, 12, 13]


def test_a_reservoir_is_vitters_algorithm() -> None:
    memory = _memory(3)
    torch.manual_seed(4)
    memory.add_to_reservoir(_rows([0] * 7))
    memory.add_to_reservoir(_rows([1] * 9, 7))
    kept: list[int] = []
    torch.manual_seed(4)
    for number in range(16):
        if number < 3:
            kept.append(number)
            continue
        place = int(torch.randint(number + 1, ()))
        if place < 3:
            kept[place] = number
    assert _numbers(memory) == kept != [0, 1, 2]
    assert memory.rows()["tasks"].tolist() == [int(number >= 7) for number in kept]
    assert memory.rows()["frames"][:, 0, 0, 0, 0].tolist() == kept
    assert memory.seen == 16


def test_a_reservoir_keeps_all_that_passed_alike() -> None:
    torch.manual_seed(0)
    counts: Counter[int] = Counter()
    for _ in range(400):
        memory = _memory(4)
        memory.add_to_reservoir(_rows([0] * 12))
        assert len(memory) == 4
        counts.update(_numbers(memory))
    expected, deviation = 400 * 4 / 12, math.sqrt(400 * (4 / 12) * (8 / 12))
    assert all(abs(counts[number] - expected) < 4 * deviation for number in range(12))


def test_samples_are_of_past_tasks_without_repetition_and_by_the_global_generator() -> None:
    memory = _memory(6)
    memory.add_to_reservoir(_rows([0, 1, 2, 1, 2, 2]))
    assert memory.sample(4, before=0) is None
    for _ in range(20):
        drawn = memory.sample(2, before=2)
        assert drawn is not None
        assert len(set(drawn["ids"].flatten().tolist())) == 2
        assert set(drawn["ids"].flatten().tolist()) < {0, 1, 3}
    every = memory.sample(50, before=2)
    assert every is not None
    assert sorted(every["ids"].flatten().tolist()) == [0, 1, 3]
    torch.manual_seed(1)
    one = memory.sample(3, before=3)
    torch.manual_seed(1)
    two = memory.sample(3, before=3)
    assert one is not None
    assert two is not None
    assert torch.equal(one["ids"], two["ids"])


# -- whole tasks ----------------------------------------------------------------------------------------


def _task(folder: Path, name: str, *, videos: int = 5, captions: int = 2) -> TaskData:
    rng = np.random.default_rng(list(name.encode()))
    clips = []
    for number in range(videos):
        path = folder / f"{name}-{number}.npy"
        np.save(path, rng.integers(0, 256, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8))
        texts = tuple(f"{name} {number} in other words {c}" for c in range(captions))
        clips.append(Clip(f"{name}-{number}", number, path, texts, "train"))
    return TaskData(name, name, tuple(clips))


def _start(name: str, backbone: Backbone, release: Any = None, **settings: Any) -> ReplayMethod:
    settings = {"epochs": 2, "batch_size": 4, "memory": 6, **settings}
    if name != "lump":
        settings = {"replay_batch": 3, **settings}
    method = start_method(name, backbone, settings, release)
    assert isinstance(method, ReplayMethod)
    return method


@pytest.mark.parametrize(
    ("name", "fill"),
    [("co2l", "ring"), ("der", "reservoir"), ("der", "ring"), ("er", "ring"), ("lump", "reservoir")],
)
def test_a_resumed_second_task_ends_with_the_same_bits(
    name: str, fill: str, backbone: Backbone, tmp_path: Path
) -> None:
    first, second = _task(tmp_path, "one", videos=3), _task(tmp_path, "two", videos=3)
    method = _start(name, backbone, fill=fill)
    learn_task(method, first)
    write_release(tmp_path, method.release())
    release = read_release(tmp_path)
    whole = _start(name, backbone, release, fill=fill)
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(
            _start(name, backbone, release, fill=fill), second, checkpoints=checkpoints, report=kill_at(3)
        )
    torch.rand(3)  # whatever else a process does with random numbers
    resumed = _start(name, backbone, release, fill=fill)
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [3, 4]
    expected, tensors = whole.release().tensors, resumed.release().tensors
    assert {"memory.frames", "memory.ids", "memory.tasks", "memory.seen"} < set(tensors)
    assert expected.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, expected[key]), key
    assert not torch.equal(tensors["clip.text_projection"], release.tensors["clip.text_projection"]), (
        "something was learned"
    )
    assert set(tensors["memory.tasks"].tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["der", "er"])
def test_a_release_grows_to_the_capacity_and_no_further(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    release = None
    for task, kept in zip("abcd", (4, 6, 6, 6), strict=True):
        method = _start(name, backbone, release, epochs=1)
        learn_task(method, _task(tmp_path, task, videos=2))
        release = method.release()
        added = {n: t for n, t in release.tensors.items() if not n.startswith("clip.")}
        assert added.pop("memory.seen").ndim == 0
        columns = {"frames", "ids", "tasks"} | ({"queries", "videos"} if name == "der" else set())
        assert set(added) == {f"memory.{column}" for column in columns}
        assert {len(tensor) for tensor in added.values()} == {kept}
        assert added["memory.frames"].shape[1:] == (FRAMES, SIDE, SIDE, 3)


def test_the_ring_holds_pairs_of_its_task_one_per_video_before_a_second(
    backbone: Backbone, tmp_path: Path
) -> None:
    task = _task(tmp_path, "one", videos=5, captions=3)
    method = _start("er", backbone, memory=7, epochs=1)
    learn_task(method, task)
    rows = method.memory.rows()
    frames = {clip.id: torch.from_numpy(np.load(clip.frames_path)) for clip in task.clips}
    owners: Counter[str] = Counter()
    captions = set()
    for kept, ids in zip(rows["frames"], rows["ids"], strict=True):
        (clip,) = (clip for clip in task.clips if torch.equal(frames[clip.id], kept))
        said = [text for text in clip.captions if torch.equal(method.tokenize([text])[0], ids)]
        assert len(said) == 1, "a video stays with a caption of its own"
        owners[clip.id] += 1
        captions.add(said[0])
    assert len(captions) == 7
    assert sorted(owners.values()) == [1, 1, 1, 2, 2]


def test_a_task_that_is_not_trained_leaves_the_memory_alone(backbone: Backbone, tmp_path: Path) -> None:
    method = _start("er", backbone, epochs=1)
    learn_task(method, _task(tmp_path, "one"))
    before = method.memory.rows()["ids"].clone()
    learn_task(method, _task(tmp_path, "mute", captions=0))
    assert torch.equal(method.memory.rows()["ids"], before)


def test_stored_captions_are_embedded_as_they_were(backbone: Backbone) -> None:
    method = _start("er", backbone)
    ids = method.tokenize(TEXTS)
    assert ids.shape == (3, 64)
    torch.testing.assert_close(method.encode_ids(ids), encode_texts(backbone, backbone.tokenize(TEXTS))[0])
    shorter = encode_texts(backbone, backbone.tokenize(TEXTS[1:2]))[0]
    torch.testing.assert_close(method.encode_ids(ids[1:2]), shorter)


@pytest.mark.parametrize("name", ["der", "er", "lump"])
def test_without_a_past_a_step_is_one_of_fine_tuning(name: str, backbone: Backbone) -> None:
    method, plain = _start(name, backbone), start_method("finetune", backbone, {}, None)
    for each in (method, plain):
        each.begin_task("one", "one")
    frames = _frames(1)
    assert torch.equal(method.loss(frames, TEXTS, None), plain.loss(frames, TEXTS, None))


def test_replay_slows_forgetting(backbone: Backbone, tmp_path: Path) -> None:
    first, second = _task(tmp_path, "one", captions=1), _task(tmp_path, "two", captions=1)
    settings = {
        "epochs": 12,
        "batch_size": 5,
        "learning_rate": 1e-3,
        "logit_scale": 20.0,
        "schedule": "cosine",
    }
    left = {}
    for name in ("finetune", "er"):
        extra: dict[str, Any] = {"memory": 5, "replay_batch": 5} if name == "er" else {}
        method: Method = start_method(name, backbone, {**settings, **extra}, None)
        learn_task(method, first)
        learn_task(method, second)
        frames = torch.from_numpy(np.stack([np.load(clip.frames_path) for clip in first.clips]))
        with torch.no_grad():
            left[name] = method.embed(frames, [c.captions[0] for c in first.clips])  # type: ignore[attr-defined]
    losses = {name: in_task_loss(*vectors, 20.0).item() for name, vectors in left.items()}
    assert losses["er"] < 0.5 * losses["finetune"]


# -- the methods ----------------------------------------------------------------------------------------


def _frames(seed: int, count: int = 3) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, FRAMES, SIDE, SIDE, 3), dtype=np.uint8))


def _with_past(method: ReplayMethod, pairs: int = 2) -> tuple[Tensor, list[str]]:
    """Fill the memory with pairs of one past task, and begin the next."""
    method.begin_task("one", "one")
    frames, texts = _frames(7, pairs), ["an old triangle", "an older line"][:pairs]
    vectors = method.embed(frames, texts) if method.stores_vectors else None
    method.record_batch(frames, method.tokenize(texts), vectors)
    assert method._step_rows is not None
    method.memory.add_to_ring(method._step_rows)
    method.end_task()
    method.record_task("one", "one", texts)
    with torch.no_grad():  # the model moves on
        method.model.clip.text_projection.mul_(1 + 0.3 * torch.randn(128, generator=_generator()))
        method.model.clip.visual.proj.mul_(1 + 0.3 * torch.randn(128, generator=_generator()))
    method.begin_task("two", "two")
    return frames, texts


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_er_contrasts_the_union_of_current_and_past_pairs(backbone: Backbone) -> None:
    method = _start("er", backbone, fill="reservoir")
    assert isinstance(method, Er)
    old_frames, old_texts = _with_past(method)
    frames = _frames(1)
    queries = encode_texts(method.model, method.model.tokenize(TEXTS + old_texts))[0]
    videos = encode_frames(method.model, torch.cat([frames, old_frames]))[0]
    expected = in_task_loss(queries, videos, method.config.logit_scale)
    torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, rtol=1e-4, atol=1e-4)
    assert len(method.memory) == 2
    method.after_step()
    assert len(method.memory) == 5, "the reservoir takes the current pairs and not the replayed ones"


def test_der_holds_retrieval_logits_to_the_stored_ones(backbone: Backbone) -> None:
    method = _start("der", backbone, response=0.7, replay=0.0, logit_scale=20.0)
    assert isinstance(method, Der)
    old_frames, old_texts = _with_past(method)
    stored = method.memory.rows()
    frames = _frames(1)
    with torch.no_grad():
        now = method.embed(old_frames, old_texts)
    total = 0.0
    for i in range(2):
        for j in range(2):
            before = 20.0 * float(stored["queries"][i] @ stored["videos"][j])
            total += (20.0 * float(now[0][i] @ now[1][j]) - before) ** 2
    assert total > 0.01, "the model has moved"
    with torch.no_grad():
        own = float(in_task_loss(*method.embed(frames, TEXTS), 20.0))
        assert float(method.loss(frames, TEXTS, None)) == pytest.approx(own + 0.7 * total / 4, rel=1e-4)
    assert not stored["queries"].requires_grad


def test_der_plus_plus_learns_the_past_pairs_too(backbone: Backbone) -> None:
    losses = {}
    for replay in (0.0, 0.5):
        method = _start("der", backbone, response=0.7, replay=replay, logit_scale=20.0)
        old = _with_past(method)
        losses[replay] = method.loss(_frames(1), TEXTS, None).item()
    expected = 0.5 * in_task_loss(*method.embed(*old), 20.0).item()
    assert losses[0.5] - losses[0.0] == pytest.approx(expected, rel=1e-4)


def test_no_response_loss_while_the_model_stands_still() -> None:
    queries, videos = (F.normalize(torch.randn(4, 8), dim=-1) for _ in range(2))
    assert float(response_loss((queries, videos), (queries, videos), 20.0)) == 0


def test_der_stores_the_vectors_of_the_time(backbone: Backbone, tmp_path: Path) -> None:
    method = _start("der", backbone, fill="ring", epochs=1, learning_rate=1e-3)
    learn_task(method, _task(tmp_path, "one"))
    rows = method.memory.rows()
    torch.testing.assert_close(rows["videos"], encode_frames(method.model, rows["frames"])[0])
    torch.testing.assert_close(rows["queries"], method.encode_ids(rows["ids"]))
    learn_task(method, _task(tmp_path, "two"))
    old = method.memory.rows()
    assert torch.equal(old["videos"][:3], rows["videos"][:3]), "they stay while the model moves"
    assert not torch.allclose(encode_frames(method.model, old["frames"][:3])[0], old["videos"][:3], atol=1e-3)


def test_asymmetric_contrast_has_current_anchors_alone() -> None:
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


def test_two_equal_views_without_a_past_give_the_usual_contrast() -> None:
    torch.manual_seed(2)
    queries, videos = (F.normalize(torch.randn(4, 6), dim=-1) for _ in range(2))
    both = asymmetric_loss(queries, torch.cat([videos, videos]), 4, 5.0)
    usual = in_task_loss(queries, videos, 5.0)
    torch.testing.assert_close(both, usual + math.log(2) / 2)  # each text has twice as many negatives


def test_relations_are_distilled_row_by_row() -> None:
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
    assert moving.grad.abs().max() < 1e-6, "at equal temperatures, standing still is best"


def test_co2l_adds_both_terms_on_two_views(backbone: Backbone) -> None:
    settings = {"jitter": 0.0, "gray": 0.0, "logit_scale": 20.0, "distillation": 0.5}
    method = _start("co2l", backbone, **settings)
    assert isinstance(method, Co2l)
    old_frames, old_texts = _with_past(method)
    teacher = method.previous_model
    assert teacher is not None
    with torch.no_grad():
        method.model.clip.text_projection.mul_(1.5)
        method.model.clip.visual.proj.add_(0.02)
    frames = _frames(1)
    everything = torch.cat([frames, old_frames])
    queries, videos = method.embed(everything, TEXTS + old_texts)
    old_queries, old_videos = method.embed(everything, TEXTS + old_texts, teacher)
    videos, old_videos = torch.cat([videos] * 2), torch.cat([old_videos] * 2)
    now, before = queries @ videos.T, old_queries @ old_videos.T
    relations = relation_loss(now, before, 0.2, 0.01) + relation_loss(now.T, before.T, 0.2, 0.01)
    expected = asymmetric_loss(queries, videos, 3, 20.0) + 0.5 * relations / 2
    torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, rtol=1e-4, atol=1e-4)


def test_the_teacher_of_co2l_is_the_model_before_the_task(backbone: Backbone, tmp_path: Path) -> None:
    method = _start("co2l", backbone, epochs=1, learning_rate=1e-3)
    method.begin_task("one", "one")
    assert method.previous_model is None, "nothing to keep on the first task"  # type: ignore[attr-defined]
    method.end_task()
    learn_task(method, _task(tmp_path, "one"))
    release = method.release()
    resumed = _start("co2l", backbone, release, epochs=1)
    resumed.begin_task("two", "two")
    teacher = resumed.previous_model  # type: ignore[attr-defined]
    assert all(torch.equal(tensor, release.tensors[name]) for name, tensor in teacher.tensors().items())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any("previous" in name for name in resumed.state_dict())
    resumed.end_task()
    assert resumed.previous_model is None  # type: ignore[attr-defined]


def test_views_of_a_video_differ_and_its_frames_are_distorted_alike(backbone: Backbone) -> None:
    method = _start("co2l", backbone, jitter=0.4, gray=0.0)
    assert isinstance(method, Co2l)
    still = _frames(1)[:, :1].expand(-1, FRAMES, -1, -1, -1)
    torch.manual_seed(0)
    one, two = method.augment(still), method.augment(still)
    assert one.shape == still.shape
    assert one.dtype == torch.uint8
    assert not torch.equal(one, two)
    assert torch.equal(one[:, 0], one[:, 1])
    gray = _start("co2l", backbone, jitter=0.0, gray=1.0)
    assert isinstance(gray, Co2l)
    colourless = gray.augment(still)
    assert torch.equal(colourless[..., 0], colourless[..., 1])


def test_lump_mixes_pixels_and_query_vectors_by_one_share(backbone: Backbone) -> None:
    method = _start("lump", backbone, logit_scale=20.0)
    assert isinstance(method, Lump)
    _with_past(method)
    frames = _frames(1)
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
        mixed.append(share * frames[i].float() + (1 - share) * past["frames"][j].float())
    videos = encode_frames(method.model, torch.stack(mixed))[0]
    torch.testing.assert_close(loss, in_task_loss(torch.stack(queries), videos, 20.0), rtol=1e-4, atol=1e-4)


# -- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("er", {"memory": 0}, "memory: "),
        ("er", {"fill": "random"}, "fill: "),
        ("er", {"replay_batch": 0}, "replay_batch: "),
        ("der", {"response": -1}, "response: "),
        ("co2l", {"past_temperature": 0, "gray": 2}, "past_temperature: .*gray: "),
        ("lump", {"mixup": 0}, "mixup: "),
        ("lump", {"replay_batch": 4}, "replay_batch: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure(name, "tiny", settings)


def test_a_library_keeps_its_capacity_and_rule(backbone: Backbone) -> None:
    method = _start("er", backbone)
    method.begin_task("one", "one")
    method.end_task()
    method.record_task("one", "one", TEXTS)
    release = method.release()
    kept = start_method("er", backbone, {}, release)
    assert kept.config.model_dump()["memory"] == 6
    with pytest.raises(MethodError, match="memory is 6, fill is 'ring'"):
        _start("er", backbone, release, memory=7, fill="reservoir")
