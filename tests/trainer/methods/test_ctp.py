"""CTP: each equation against loops, masked words, key queues, and topology over two tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    index_task,
    learn_steps,
    random_frames,
    random_unit_vectors,
    run_steps,
)
from trainer.methods.ctp import Ctp, mask_words, momentum_contrast_loss, topology_loss

RETRIEVAL: dict[str, Any] = {"queue": 6, "masked_language": False}


def ctp_method(backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Ctp:
    method = create_method("ctp", backbone, previous, **{"queue": 6, **settings})
    assert isinstance(method, Ctp)
    return method


def learn(method: Ctp, task: str, *, seed: int, steps: int = 3) -> None:
    torch.manual_seed(seed)
    learn_steps(method, task, [seed] * steps)


def parameters_of(network: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_equation_4() -> None:
    torch.manual_seed(1)
    queries, videos, query_keys, video_keys = map(random_unit_vectors, (3, 3, 7, 7))
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
    now, before = ((random_unit_vectors(4), random_unit_vectors(4)) for _ in range(2))
    total = 0.0
    for i in range(4):
        others = [j for j in range(4) if not (suppress and j == i)]  # exp(-1000/τ) is zero
        old = [math.exp(float(before[0][i] @ before[1][j]) / 0.07) for j in others]
        new = [math.exp(float(now[0][i] @ now[1][j]) / 0.07) for j in others]
        for p, q in zip(old, new, strict=True):
            total -= p / sum(old) * math.log(q / sum(new)) / 4
    loss = topology_loss(now[0] @ now[1].T, before[0] @ before[1].T, 1 / 0.07, suppress=suppress)
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_equation_3(backbone: Backbone) -> None:
    method = ctp_method(backbone, momentum=0.8)
    learn(method, "one", seed=1)
    method.begin_task("two", "two")
    optimizer = torch.optim.AdamW(method.parameter_groups())
    run_steps(method, [2], optimizer)
    assert method.previous is not None
    momentum, previous = parameters_of(method.momentum), parameters_of(method.previous)
    run_steps(method, [2], optimizer)
    moved = 0.0
    updated = parameters_of(method.momentum)
    for m, p, now, after in zip(momentum, previous, parameters_of(method.online), updated, strict=True):
        torch.testing.assert_close(after, 0.8 * m + 0.1 * p + 0.1 * now, atol=1e-6, rtol=1e-5)
        moved += float((now - p).abs().sum())
    assert moved > 0
    assert all(torch.equal(a, b) for a, b in zip(previous, parameters_of(method.previous), strict=True)), (
        "the previous networks do not change"
    )


def test_task_starts_with_copies_of_the_trained_networks(backbone: Backbone) -> None:
    method = ctp_method(backbone)
    learn(method, "one", seed=1)
    left = parameters_of(method.online)
    assert not all(map(torch.equal, left, parameters_of(method.momentum)))
    method.begin_task("two", "two")
    assert method.previous is not None
    for network in (method.online, method.momentum, method.previous):
        assert all(map(torch.equal, left, parameters_of(network)))
    assert not any(p.requires_grad for n in (method.momentum, method.previous) for p in n.parameters())


def test_task_without_training_does_not_count_as_first_task(backbone: Backbone) -> None:
    method = ctp_method(backbone)
    index_task(method, "bare")
    method.begin_task("one", "one")
    assert method.previous is None
    method.end_task()
    index_task(method, "also bare")
    method.begin_task("two", "two")
    assert method.previous is not None


def test_equation_10_without_masked_language(backbone: Backbone) -> None:
    weights = {"momentum_contrast": 0.5, "cross_modal": 2.0, "same_modal": 3.0}
    method = ctp_method(backbone, **RETRIEVAL, **weights)
    learn(method, "one", seed=1)
    method.begin_task("two", "two")
    optimizer = torch.optim.AdamW(method.parameter_groups())
    for _ in range(2):
        run_steps(method, [2], optimizer)
    assert method.previous is not None
    frames, scale = random_frames(2), method.config.logit_scale
    with torch.no_grad():
        texts, videos = method.embed(frames, TEXTS)
        momentum_texts, momentum_videos = method.embed(frames, TEXTS, method.momentum.towers)
        old_texts, old_videos = method.embed(frames, TEXTS, method.previous.towers)
        truth = torch.arange(4)

        def cross_entropy(now: Tensor, before: Tensor) -> Tensor:
            return -(before.softmax(-1) * now.log_softmax(-1)).sum(-1).mean()

        ita = sum(F.cross_entropy(scale * logits, truth) for logits in (videos @ texts.T, texts @ videos.T))
        to_text = scale * videos @ torch.cat([momentum_texts, method.queues.texts]).T
        to_video = scale * texts @ torch.cat([momentum_videos, method.queues.videos]).T
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
    assert not torch.allclose(momentum_videos, old_videos)
    assert not torch.allclose(momentum_videos, videos)


def test_equations_2_and_5(backbone: Backbone) -> None:
    """The loss minus the loss without masked language is the masked-language term."""
    method = ctp_method(backbone, momentum_contrast=0.5)
    learn(method, "one", seed=1)
    method.begin_task("two", "two")
    run_steps(method, [2])
    assert method.previous is not None
    assert method.online.fusion is not None
    assert method.momentum.fusion is not None
    frames, ids = random_frames(2), method.model.tokenize(TEXTS)
    with torch.no_grad():
        torch.manual_seed(4)
        whole = method.loss(frames, TEXTS, None)
        torch.manual_seed(4)
        end = method.model.end_of_text(ids)
        shown, chosen, masked = mask_words(ids, end, 0.15, range(int(ids[0, 0])))
        hard = soft = 0.0
        for n in range(len(TEXTS)):
            log_probabilities = []
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
                log_probabilities.append(logits.log_softmax(dim=-1))
            for position in torch.nonzero(chosen[n])[:, 0].tolist():
                hard -= float(log_probabilities[0][position, ids[n, position]])
                soft -= float((log_probabilities[1][position].exp() * log_probabilities[0][position]).sum())
        count = int(chosen.sum())
        method.config = method.config.model_copy(update={"masked_language": False})
        rest = method.loss(frames, TEXTS, None)
    assert float(whole - rest) == pytest.approx((hard + 0.5 * soft) / count, rel=1e-4)


def test_queue_contains_the_latest_keys(backbone: Backbone) -> None:
    method = ctp_method(backbone, **RETRIEVAL)
    method.begin_task("one", "one")
    keys: list[tuple[Tensor, Tensor]] = []
    optimizer = torch.optim.AdamW(method.parameter_groups())
    for seed in range(3):
        with torch.no_grad():
            keys.append(method.embed(random_frames(seed), TEXTS, method.momentum.towers))
        run_steps(method, [seed], optimizer)
    for side, stored in enumerate((method.queues.texts, method.queues.videos)):
        latest = torch.cat([pair[side] for pair in keys])[-6:]
        in_order = torch.roll(stored, -int(method.queues.oldest), 0)
        torch.testing.assert_close(in_order, latest, atol=1e-5, rtol=1e-4)


def test_batch_larger_than_the_queue_and_queue_of_length_zero(backbone: Backbone) -> None:
    for size in (0, 3):
        method = ctp_method(backbone, **{**RETRIEVAL, "queue": size})
        method.begin_task("one", "one")
        with torch.no_grad():
            _, videos = method.embed(random_frames(1), TEXTS)
        run_steps(method, [1])
        stored = torch.roll(method.queues.videos, -int(method.queues.oldest), 0)
        torch.testing.assert_close(stored, videos[4 - size :], atol=1e-5, rtol=1e-4)


def test_mask_words_selects_and_masks_as_bert_does() -> None:
    torch.manual_seed(5)
    start, stop = 8190, 8191
    ids = torch.randint(0, 1000, (400, 50))
    end = torch.randint(1, 50, (400,))
    ids[:, 0] = start
    ids[torch.arange(400), end] = stop
    shown, chosen, masked = mask_words(ids, end, 0.15, range(int(ids[0, 0])))
    position = torch.arange(50)
    words = (position > 0) & (position < end.unsqueeze(1))
    assert not (chosen & ~words).any()
    assert torch.equal(chosen.any(dim=1), end > 1), "at least one per caption with words"
    long = end > 30
    assert float(chosen[long].sum() / words[long].sum()) == pytest.approx(0.15, abs=0.015)
    assert float(masked.sum() / chosen.sum()) == pytest.approx(0.8, abs=0.03)
    changed = shown != ids
    assert float(changed.sum() / chosen.sum()) == pytest.approx(0.1, abs=0.025)
    assert not (changed & (masked | ~chosen)).any()
    assert int(shown[changed].max()) < start
    torch.manual_seed(5)
    torch.randint(0, 1000, (400, 50)), torch.randint(1, 50, (400,))
    assert torch.equal(mask_words(ids, end, 0.15, range(int(ids[0, 0])))[1], chosen), (
        "only the global generator decides"
    )


def test_caption_without_words_has_a_finite_loss(backbone: Backbone) -> None:
    method = ctp_method(backbone)
    method.begin_task("one", "one")
    loss = method.loss(random_frames(1, videos=1), [""], None)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.online.parameters())
