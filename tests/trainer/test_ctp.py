"""CTP: each equation against loops, and what it does over two tasks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.releases.release_state import ReleaseState
from tests.trainer.killing import Killed, kill_at
from trainer.methods import MethodError, configure, start_method
from trainer.methods.ctp import Ctp, mask_words, momentum_contrast_loss, topology_loss
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES = 2
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
SMALL: dict[str, Any] = {"queue": 6, "fusion_layers": 1}
RETRIEVAL = {**SMALL, "masked_language": False}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _start(backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Ctp:
    method = start_method("ctp", backbone, {**SMALL, **settings}, previous)
    assert isinstance(method, Ctp)
    return method


def _frames(seed: int, videos: int = 4) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (videos, FRAMES, 56, 56, 3), dtype=np.uint8))


def _learn(method: Ctp, task: str, *, seed: int, steps: int = 3) -> None:
    method.begin_task(task, task)
    optimiser = torch.optim.AdamW(method.parameter_groups())
    torch.manual_seed(seed)
    for _ in range(steps):
        _step(method, optimiser, seed)
    method.end_task()
    method.record_task(task, task, TEXTS)


def _step(method: Ctp, optimiser: torch.optim.Optimizer, seed: int) -> None:
    optimiser.zero_grad()
    method.loss(_frames(seed), TEXTS, None).backward()
    optimiser.step()
    method.after_step()


def _units(count: int, dim: int = 5) -> Tensor:
    return F.normalize(torch.randn(count, dim), dim=-1)


def _weights(network: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


# -- the equations --------------------------------------------------------------------------------------


def test_equation_4() -> None:
    torch.manual_seed(1)
    queries, videos, query_keys, video_keys = _units(3), _units(3), _units(7), _units(7)
    total = 0.0
    for online, keys in ((videos, query_keys), (queries, video_keys)):
        for i in range(3):
            scores = [math.exp(float(online[i] @ keys[j]) / 0.07) for j in range(7)]
            total -= math.log(scores[i] / sum(scores)) / 3 / 2
    loss = momentum_contrast_loss(queries, videos, query_keys, video_keys, 1 / 0.07)
    assert float(loss) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("suppress", [False, True])
def test_equations_6_to_9(suppress: bool) -> None:
    torch.manual_seed(2)
    now, before = (_units(4), _units(4)), (_units(4), _units(4))
    total = 0.0
    for i in range(4):
        others = [j for j in range(4) if not (suppress and j == i)]  # exp(-1000/τ) is zero
        old = [math.exp(float(before[0][i] @ before[1][j]) / 0.07) for j in others]
        new = [math.exp(float(now[0][i] @ now[1][j]) / 0.07) for j in others]
        for p, q in zip(old, new, strict=True):
            total -= p / sum(old) * math.log(q / sum(new)) / 4
    loss = topology_loss(now[0] @ now[1].T, before[0] @ before[1].T, 1 / 0.07, suppress=suppress)
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_an_unchanged_topology_has_no_gradient_even_when_everything_turned() -> None:
    torch.manual_seed(3)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5))
    before = (_units(4), _units(4))
    now = tuple((vectors @ rotation).requires_grad_() for vectors in before)
    topology_loss(now[0] @ now[1].T, before[0] @ before[1].T, 10.0).backward()
    for vectors in now:
        assert vectors.grad is not None
        torch.testing.assert_close(vectors.grad, torch.zeros(4, 5), atol=1e-5, rtol=0)


def test_a_batch_of_one_has_no_topology() -> None:
    for suppress in (False, True):
        assert float(topology_loss(torch.ones(1, 1), -torch.ones(1, 1), 10.0, suppress=suppress)) == 0


@pytest.mark.parametrize("pulled_by", ["both", "current", "previous"])
def test_equation_3(backbone: Backbone, pulled_by: str) -> None:
    method = _start(backbone, momentum=0.8, pulled_by=pulled_by)
    _learn(method, "one", seed=1)
    method.begin_task("two", "two")
    optimiser = torch.optim.AdamW(method.parameter_groups())
    _step(method, optimiser, seed=2)
    assert method.previous is not None
    kept, previous = _weights(method.momentum), _weights(method.previous)
    _step(method, optimiser, seed=2)
    share = {"both": (0.1, 0.1), "current": (0.0, 0.2), "previous": (0.2, 0.0)}[pulled_by]
    moved = 0.0
    for k, p, now, after in zip(
        kept, previous, _weights(method.online), _weights(method.momentum), strict=True
    ):
        torch.testing.assert_close(after, 0.8 * k + share[0] * p + share[1] * now, atol=1e-6, rtol=1e-5)
        moved += float((now - p).abs().sum())
    assert moved > 0
    assert all(torch.equal(a, b) for a, b in zip(previous, _weights(method.previous), strict=True)), (
        "the previous networks stay"
    )


def test_the_first_task_follows_the_present_alone(backbone: Backbone) -> None:
    method = _start(backbone, pulled_by="previous", first_momentum=0.75)
    start = _weights(method.online)
    method.begin_task("one", "one")
    assert method.previous is None
    _step(method, torch.optim.AdamW(method.parameter_groups()), seed=1)
    for before, now, after in zip(start, _weights(method.online), _weights(method.momentum), strict=True):
        torch.testing.assert_close(after, 0.75 * before + 0.25 * now, atol=1e-6, rtol=1e-5)


def test_a_task_starts_from_copies_of_what_the_last_one_left(backbone: Backbone) -> None:
    method = _start(backbone)
    _learn(method, "one", seed=1)
    left = _weights(method.online)
    assert not all(map(torch.equal, left, _weights(method.momentum)))
    method.begin_task("two", "two")
    assert method.previous is not None
    for network in (method.online, method.momentum, method.previous):
        assert all(map(torch.equal, left, _weights(network)))
    assert not any(p.requires_grad for n in (method.momentum, method.previous) for p in n.parameters())


def test_a_task_that_is_only_indexed_is_not_the_first(backbone: Backbone) -> None:
    method = _start(backbone)
    method.begin_task("bare", "bare", trained=False)
    method.end_task()
    method.record_task("bare", "bare", [])
    method.begin_task("one", "one")
    assert method.previous is None
    method.end_task()
    method.begin_task("bare too", "bare too", trained=False)
    method.end_task()
    method.begin_task("two", "two")
    assert method.previous is not None


def test_equation_10_without_masked_language(backbone: Backbone) -> None:
    weights = {"momentum_contrast": 0.5, "cross_modal": 2.0, "same_modal": 3.0}
    method = _start(backbone, **RETRIEVAL, **weights)
    _learn(method, "one", seed=1)
    method.begin_task("two", "two")
    optimiser = torch.optim.AdamW(method.parameter_groups())
    for _ in range(2):
        _step(method, optimiser, seed=2)
    assert method.previous is not None
    frames, scale = _frames(2), method.config.logit_scale
    with torch.no_grad():
        texts, videos = method.embed(frames, TEXTS)
        kept_texts, kept_videos = method.embed(frames, TEXTS, method.momentum.towers)
        old_texts, old_videos = method.embed(frames, TEXTS, method.previous.towers)
        truth = torch.arange(4)

        def cross_entropy(now: Tensor, before: Tensor) -> Tensor:
            return -(before.softmax(-1) * now.log_softmax(-1)).sum(-1).mean()

        ita = F.cross_entropy(scale * videos @ texts.T, truth) + F.cross_entropy(
            scale * texts @ videos.T, truth
        )
        to_text = scale * videos @ torch.cat([kept_texts, method.queues.texts]).T
        to_video = scale * texts @ torch.cat([kept_videos, method.queues.videos]).T
        compatible = F.cross_entropy(to_text, truth) + F.cross_entropy(to_video, truth)
        across = cross_entropy(scale * videos @ texts.T, scale * old_videos @ old_texts.T)
        across = across + cross_entropy(scale * texts @ videos.T, scale * old_texts @ old_videos.T)
        hidden = -1000 * scale * torch.eye(4)
        open_ = scale * (1 - torch.eye(4))
        within = sum(
            cross_entropy(open_ * (now @ now.T) + hidden, open_ * (old @ old.T) + hidden)
            for now, old in ((videos, old_videos), (texts, old_texts))
        )
        expected = (ita + 0.5 * compatible + 2.0 * across + 3.0 * within) / 2
        torch.testing.assert_close(method.loss(frames, TEXTS, None), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(kept_videos, old_videos)
    assert not torch.allclose(kept_videos, videos)


def test_equations_2_and_5(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of masked words in the loss is what the loss without them lacks."""
    method = _start(backbone, momentum_contrast=0.5)
    _learn(method, "one", seed=1)
    method.begin_task("two", "two")
    _step(method, torch.optim.AdamW(method.parameter_groups()), seed=2)
    assert method.previous is not None
    assert method.online.fusion is not None
    assert method.momentum.fusion is not None
    frames, ids = _frames(2), method.model.tokenize(TEXTS)
    with torch.no_grad():
        torch.manual_seed(4)
        whole = method.loss(frames, TEXTS, None)
        torch.manual_seed(4)
        end = method.model.end_of_text(ids)
        shown, chosen, masked = mask_words(ids, end, 0.15)
        hard = soft = 0.0
        for n in range(len(TEXTS)):
            told = []
            for networks in (method.online, method.momentum):
                towers, fusion = networks.towers, networks.fusion
                assert fusion is not None
                length = int(end[n]) + 1
                embedded = towers.text.token_embedding(shown[n : n + 1, :length]).clone()
                embedded[masked[n : n + 1, :length]] = fusion.mask
                embedded = embedded + towers.text.positional_embedding[:length]
                tokens = towers.embed_frames(frames[n : n + 1])
                for block in towers.visual_blocks:
                    tokens = block(tokens.flatten(0, 1)).view(tokens.shape)
                fused = fusion.fuse(towers, embedded, end[n : n + 1], tokens)[0]
                logits = fusion.predict_words(fused, towers.text.token_embedding.weight)
                told.append(logits.log_softmax(dim=-1))
            for place in torch.nonzero(chosen[n])[:, 0].tolist():
                hard -= float(told[0][place, ids[n, place]])
                soft -= float((told[1][place].exp() * told[0][place]).sum())
        count = int(chosen.sum())
        monkeypatch.setattr(Ctp, "_masked_language_losses", lambda *_: (torch.tensor(0.0), torch.tensor(0.0)))
        rest = method.loss(frames, TEXTS, None)
    assert float(whole - rest) == pytest.approx((hard + 0.5 * soft) / count, rel=1e-4)


# -- the parts ------------------------------------------------------------------------------------------


def test_the_queue_holds_the_latest_keys(backbone: Backbone) -> None:
    method = _start(backbone, **RETRIEVAL)
    method.begin_task("one", "one")
    keys: list[tuple[Tensor, Tensor]] = []
    optimiser = torch.optim.AdamW(method.parameter_groups())
    for seed in range(3):
        with torch.no_grad():
            keys.append(method.embed(_frames(seed), TEXTS, method.momentum.towers))
        _step(method, optimiser, seed)
    for side, stored in enumerate((method.queues.texts, method.queues.videos)):
        latest = torch.cat([pair[side] for pair in keys])[-6:]
        in_order = torch.roll(stored, -int(method.queues.oldest), 0)
        torch.testing.assert_close(in_order, latest, atol=1e-5, rtol=1e-4)


def test_the_queue_starts_random_and_passes_from_task_to_task(backbone: Backbone) -> None:
    method = _start(backbone, **RETRIEVAL)
    torch.testing.assert_close(method.queues.videos.norm(dim=-1), torch.ones(6))
    assert not torch.allclose(method.queues.videos, method.queues.texts)
    _learn(method, "one", seed=1)
    assert not any(name.startswith("momentum.") for name in method.release().tensors)
    stored = method.queues.videos.clone()
    resumed = _start(backbone, method.release(), **RETRIEVAL)
    resumed.begin_task("two", "two")
    assert torch.equal(resumed.queues.videos, stored)


def test_a_batch_may_be_larger_than_the_queue_or_have_none(backbone: Backbone) -> None:
    for size in (0, 3):
        method = _start(backbone, **{**RETRIEVAL, "queue": size})
        method.begin_task("one", "one")
        with torch.no_grad():
            _, videos = method.embed(_frames(1), TEXTS)
        _step(method, torch.optim.AdamW(method.parameter_groups()), seed=1)
        stored = torch.roll(method.queues.videos, -int(method.queues.oldest), 0)
        torch.testing.assert_close(stored, videos[4 - size :], atol=1e-5, rtol=1e-4)


def test_words_are_chosen_and_masked_as_bert_does() -> None:
    torch.manual_seed(5)
    start, stop = 8190, 8191
    ids = torch.randint(0, 1000, (400, 50))
    end = torch.randint(1, 50, (400,))
    ids[:, 0] = start
    ids[torch.arange(400), end] = stop
    shown, chosen, masked = mask_words(ids, end, 0.15)
    place = torch.arange(50)
    words = (place > 0) & (place < end.unsqueeze(1))
    assert not (chosen & ~words).any()
    assert torch.equal(chosen.any(dim=1), end > 1), "at least one wherever there is a word"
    long = end > 30
    assert float(chosen[long].sum() / words[long].sum()) == pytest.approx(0.15, abs=0.015)
    assert float(masked.sum() / chosen.sum()) == pytest.approx(0.8, abs=0.03)
    changed = shown != ids
    assert float(changed.sum() / chosen.sum()) == pytest.approx(0.1, abs=0.025)
    assert not (changed & (masked | ~chosen)).any()
    assert int(shown[changed].max()) < start
    torch.manual_seed(5)
    torch.randint(0, 1000, (400, 50)), torch.randint(1, 50, (400,))
    assert torch.equal(mask_words(ids, end, 0.15)[1], chosen), "the global generator alone decides"


def test_captions_without_a_word_can_be_learned(backbone: Backbone) -> None:
    method = _start(backbone)
    method.begin_task("one", "one")
    loss = method.loss(_frames(1, videos=1), [""], None)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.online.parameters())


def test_topology_is_preserved_over_two_tasks(backbone: Backbone) -> None:
    """The same steps move a batch's similarities less where equations 7 and 9 count."""
    first = _start(backbone, **RETRIEVAL, learning_rate=2e-4)
    _learn(first, "one", seed=1, steps=4)
    release, drift = first.release(), {}
    for weight in (0.0, 5.0):
        settings = {"momentum_contrast": 0.0, "cross_modal": weight, "same_modal": weight}
        method = _start(backbone, release, **RETRIEVAL, **settings, learning_rate=2e-4)
        before = _similarities(method)
        method.begin_task("two", "two")
        optimiser = torch.optim.SGD(method.parameter_groups())
        optimiser.param_groups[0]["lr"] = 1e-4
        for _ in range(8):
            _step(method, optimiser, seed=2)
        after = _similarities(method)
        drift[weight] = [float((a - b).abs().mean()) for a, b in zip(after, before, strict=True)]
    for held, free in zip(drift[5.0], drift[0.0], strict=True):
        assert held < 0.6 * free


def _similarities(method: Ctp) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        texts, videos = method.embed(_frames(2), TEXTS)
    return texts @ videos.T, texts @ texts.T


def test_pairs_become_unit_vectors_that_both_sides_decide(backbone: Backbone) -> None:
    method = _start(backbone)
    _learn(method, "one", seed=1)
    pairs = method.encode_pairs(_frames(1), TEXTS)
    assert pairs.shape == (4, backbone.text_width)
    torch.testing.assert_close(pairs.norm(dim=-1), torch.ones(4))
    assert not torch.allclose(pairs, method.encode_pairs(_frames(2), TEXTS), atol=1e-5)
    assert not torch.allclose(pairs, method.encode_pairs(_frames(1), TEXTS[::-1]), atol=1e-5)
    resumed = _start(backbone, method.release())
    torch.testing.assert_close(resumed.encode_pairs(_frames(1), TEXTS), pairs)
    alone = _start(backbone, **RETRIEVAL)
    with pytest.raises(MethodError, match="masked_language: false"):
        alone.encode_pairs(_frames(1), TEXTS)


def test_the_multi_modal_encoder_learns_at_its_own_rate(backbone: Backbone) -> None:
    method = _start(backbone, learning_rate=1e-5, fusion_learning_rate=1e-3)
    method.begin_task("one", "one")
    towers, fusion = method.parameter_groups()
    assert (towers["lr"], fusion["lr"]) == (1e-5, 1e-3)
    assert method.online.fusion is not None
    assert len(fusion["params"]) == len(list(method.online.fusion.parameters()))
    assert len(_start(backbone, **RETRIEVAL).parameter_groups()) == 1


# -- resuming and settings ------------------------------------------------------------------------------


def _task(folder: Path, name: str) -> TaskData:
    clips = []
    for number in range(3):
        path = folder / f"{name}-{number}.npy"
        np.save(path, _frames(number + len(name), videos=1)[0].numpy())
        clips.append(Clip(f"{name}-{number}", number, path, (f"{name} number {number} said",), "train"))
    return TaskData(name, name, tuple(clips))


def test_a_second_task_resumes_to_the_same_bits(backbone: Backbone, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 2, "queue": 5}
    method = _start(backbone, **settings)
    learn_task(method, _task(tmp_path, "one"))
    release, second = method.release(), _task(tmp_path, "second")
    whole, broken, resumed = (_start(backbone, release, **settings) for _ in range(3))
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(broken, second, checkpoints=checkpoints, report=kill_at(4))
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [3, 4, 5, 6]
    expected, found = whole.release().tensors, resumed.release().tensors
    assert expected.keys() == found.keys()
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"momentum": 1.0}, "momentum: "),
        ({"first_momentum": -0.1}, "first_momentum: "),
        ({"pulled_by": "neither"}, "pulled_by: "),
        ({"queue": -1}, "queue: "),
        ({"masked_words": 0.0}, "masked_words: "),
        ({"fusion_layers": 0}, "fusion_layers: "),
        ({"same_modal": -1.0}, "same_modal: "),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure("ctp", "tiny", settings)


def test_the_papers_temperature_and_queue_are_the_default(backbone: Backbone) -> None:
    config = configure("ctp", "open_clip:ViT-B-32/openai", {})
    assert config.logit_scale == pytest.approx(1 / 0.07, rel=1e-5)
    assert config.model_dump().items() >= {"queue": 1024, "momentum": 0.9, "first_momentum": 0.995}.items()


def test_a_library_keeps_its_encoder_and_queue(backbone: Backbone) -> None:
    method = _start(backbone, **RETRIEVAL)
    _learn(method, "one", seed=1)
    kept = start_method("ctp", backbone, {}, method.release())
    assert kept.config.model_dump()["queue"] == 6
    assert isinstance(kept, Ctp)
    assert kept.online.fusion is None
    with pytest.raises(MethodError, match="masked_language is False"):
        _start(backbone, method.release(), masked_language=True)
