"""Base-MoCo and BMU-MoCo: equations against slow loops, order of updates, queues, best epoch, variants."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import (
    create_method,
    equal_tensors,
    index_task,
    learn_steps,
    random_frames,
    run_steps,
    weights,
    write_task,
)
from trainer.methods.shared.momentum import KeyQueues, MomentumMethod, moco_loss
from trainer.task_data import Clip

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]
Vectors = list[list[float]]


def learn(method: MomentumMethod, task: str, seeds: range) -> None:
    learn_steps(method, task, seeds, TEXTS)


def momentum_method(name: str, backbone: Backbone, **settings: Any) -> MomentumMethod:
    method = create_method(name, backbone, queue=7, **settings)
    assert isinstance(method, MomentumMethod)
    return method


def second_task_method(backbone: Backbone, name: str = "bmu_moco", **settings: Any) -> MomentumMethod:
    """Return a method in its second task whose encoders have different sets of weights."""
    method = momentum_method(name, backbone, **settings)
    learn(method, "one", range(1))
    method.begin_task("two", "two")
    torch.manual_seed(5)
    with torch.no_grad():
        for model in (method.model, *(pair.encoders for pair in method.momentum.values())):
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return method


def trained_weights(model: Backbone) -> dict[str, Tensor]:
    """Return copies of the trained weights."""
    return {name: weight for name, weight in weights(model).items() if name != "clip.logit_scale"}


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((left[n] - right[n]).double().square().sum()) for n in left))


def slow_loss(vectors: Vectors, keys: list[Vectors], queues: list[Vectors], tau: float) -> float:
    """Return one direction as printed: ``keys[p][i]`` is positive p of vector i, ``queues[p]`` are negatives."""
    total = 0.0
    for i, vector in enumerate(vectors):
        above = sum(math.exp(dot(vector, pair[i]) / tau) for pair in keys)
        below = above + sum(math.exp(dot(vector, key) / tau) for queue in queues for key in queue)
        total += math.log(above / below)
    return -total / len(vectors)


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def random_unit_vectors(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("pairs", [1, 2])
def test_equations_10_and_16(pairs: int) -> None:
    torch.manual_seed(1)
    shapes = (4, 6), (pairs, 4, 6), (pairs, 5, 6)
    vectors, keys, queues = (random_unit_vectors(*shape) for shape in shapes)
    loss = moco_loss(vectors, keys, queues.flatten(0, 1), 1 / 0.07)
    expected = slow_loss(vectors.tolist(), keys.tolist(), queues.tolist(), 0.07)
    assert float(loss) == pytest.approx(expected, rel=1e-9)


def slow_total_loss(method: MomentumMethod, names: list[str], frames: Tensor) -> float:
    """Return equation 18 from the current encoders and queues."""
    tau = 1 / method.config.logit_scale
    with torch.no_grad():
        text, video = (t.tolist() for t in method.embed(frames, TEXTS))
        pairs = [method.momentum[name] for name in names]
        keys = [method.embed(frames, TEXTS, pair.encoders) for pair in pairs]
    text_keys, video_keys = [k[0].tolist() for k in keys], [k[1].tolist() for k in keys]
    text_queues = [pair.queues.texts.tolist() for pair in pairs]
    video_queues = [pair.queues.videos.tolist() for pair in pairs]
    v2t = slow_loss(video, text_keys, text_queues, tau)
    return v2t + slow_loss(text, video_keys, video_queues, tau)


@pytest.mark.parametrize(("name", "pairs"), [("bmu_moco", ["local", "global"]), ("base_moco", ["local"])])
def test_loss_is_equation_18_over_all_pairs(backbone: Backbone, name: str, pairs: list[str]) -> None:
    method = second_task_method(backbone, name)
    assert list(method.momentum) == pairs
    loss = float(method.loss(random_frames(9, 3), TEXTS, None).detach())
    assert loss == pytest.approx(slow_total_loss(method, pairs, random_frames(9, 3)), rel=1e-4)


def interpolate(share: float, left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: share * left[name].double() + (1 - share) * right[name].double() for name in left}


def apply_updates(
    order: str, theta: Any, local: Any, overall: Any, m: float, back: float
) -> tuple[Any, Any, Any]:
    """Apply updates in an order: 2 and 3 are equations 12 and 13, 8 and 4 are equations 8 and 14."""
    for equation in order:
        if equation == "2":
            theta = interpolate(back, theta, local)
        elif equation == "3":
            theta = interpolate(back, theta, overall)
        elif equation == "8":
            local = interpolate(m, local, theta)
        else:
            overall = interpolate(m, overall, theta)
    return theta, local, overall


def test_step_applies_equations_12_13_8_14_in_this_order(backbone: Backbone) -> None:
    method = second_task_method(backbone, momentum=0.9, encoder_momentum=0.8)
    models = [method.model, *(method.momentum[name].encoders for name in ("local", "global"))]
    before = [trained_weights(model) for model in models]
    method.after_step()
    after = [trained_weights(model) for model in models]

    def error(of: str) -> float:
        expected = apply_updates(of, *before, m=0.9, back=0.8)
        return max(distance(one, other) for one, other in zip(expected, after, strict=True))

    assert error("2384") < 1e-4
    assert all(error(other) > 0.1 for other in ("3284", "8423", "2834", "2838"))


def test_first_task_is_learned_as_in_base_moco(backbone: Backbone) -> None:
    base, method, pulled = (momentum_method(name, backbone) for name in ("base_moco", "bmu_moco", "bmu_moco"))
    index_task(method, "bare")  # does not count as the first task
    for each in (base, method):
        learn(each, "one", range(2))
    assert equal_tensors(trained_weights(method.model), trained_weights(base.model))
    learn(pulled, "one", range(1))
    learn(pulled, "two", range(1, 2))
    assert not equal_tensors(trained_weights(pulled.model), trained_weights(base.model))


def test_queue_is_a_ring_buffer_for_batches_of_any_size() -> None:
    torch.manual_seed(1)
    queues = KeyQueues(5, 3)
    for name in ("texts", "videos"):
        torch.testing.assert_close(queues.get_buffer(name).norm(dim=-1), torch.ones(5))
    assert not torch.equal(queues.texts, queues.videos)
    texts, videos = (deque(t.clone().unbind(), maxlen=5) for t in (queues.texts, queues.videos))
    for size in (2, 2, 3, 5, 1, 7, 11, 4):
        new_texts, new_videos = torch.randn(size, 3), torch.randn(size, 3)
        queues.push(new_texts, new_videos)
        texts.extend(new_texts)
        videos.extend(new_videos)
        start = int(queues.oldest)
        assert torch.equal(queues.texts.roll(-start, 0), torch.stack(list(texts)))
        assert torch.equal(queues.videos.roll(-start, 0), torch.stack(list(videos)))


def test_keys_of_a_step_are_enqueued_after_it(backbone: Backbone) -> None:
    method = second_task_method(backbone, momentum=0.5)
    pairs = method.momentum.values()
    with torch.no_grad():
        keys = [method.embed(random_frames(4, 3), TEXTS, pair.encoders) for pair in pairs]
    before = [pair.queues.texts.clone() for pair in pairs]
    start = [int(pair.queues.oldest) for pair in pairs]
    method.loss(random_frames(4, 3), TEXTS, None)
    assert all(torch.equal(p.queues.texts, b) for p, b in zip(pairs, before, strict=True)), (
        "the loss does not push keys"
    )
    method.after_step()
    for pair, (texts, videos), first in zip(pairs, keys, start, strict=True):
        rows = [(first + i) % 7 for i in range(len(TEXTS))]
        assert torch.equal(pair.queues.texts[rows], texts)
        assert torch.equal(pair.queues.videos[rows], videos)


def test_local_pair_is_reset_at_every_task_and_global_pair_never(backbone: Backbone) -> None:
    method = momentum_method("bmu_moco", backbone)
    start = trained_weights(method.model)
    assert equal_tensors(trained_weights(method.momentum["global"].encoders), start)
    for number in range(2):
        method.begin_task(str(number), str(number))
        local, overall = (method.momentum[n].encoders for n in ("local", "global"))
        run_steps(method, range(2), texts=TEXTS)
        online, before = trained_weights(method.model), trained_weights(overall)
        assert not equal_tensors(trained_weights(local), online)
        method.end_task()
        assert equal_tensors(trained_weights(local), online)
        assert equal_tensors(trained_weights(overall), before)
        assert not equal_tensors(before, online)
        method.record_task(str(number), str(number), TEXTS)
    assert distance(trained_weights(overall), start) > 0


def run_epochs(
    method: MomentumMethod, recalls: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Tensor]]:
    """Run a step and a validation per recall; return the state after each epoch."""
    optimizer = torch.optim.AdamW(method.parameter_groups())
    states = []
    for seed, recall in enumerate(recalls):
        run_steps(method, [seed], optimizer, TEXTS)
        monkeypatch.setattr(method, "validation_recall", lambda clips, value=recall: value)
        method.after_epoch(())
        states.append({name: tensor.clone() for name, tensor in method.training_tensors().items()})
    return states


@pytest.mark.parametrize(
    ("recalls", "best"),
    [([0.2, 0.8, 0.5], 1), ([0.5, 0.8, 0.8, 0.1], 2), ([0.0, 0.0], 1), ([None, None], 1), ([0.9, 0.1], 0)],
)
def test_task_ends_with_its_best_epoch(
    backbone: Backbone, recalls: list[float | None], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = second_task_method(backbone)
    states = run_epochs(method, recalls, monkeypatch)
    method.end_task()
    after = method.training_tensors()
    restarted = {n for n in after if n.startswith("local.clip.")}
    assert equal_tensors(*({n: t for n, t in s.items() if n not in restarted} for s in (after, states[best])))
    for name in restarted:
        assert torch.equal(after[name], states[best][name.removeprefix("local.")])
    method.begin_task("three", "three")
    worse = run_epochs(method, [0.05], monkeypatch)
    method.end_task()
    assert torch.equal(method.training_tensors()["clip.visual.proj"], worse[0]["clip.visual.proj"]), (
        "the best epoch of the previous task is not restored"
    )


def test_validation_recall_counts_ties_as_misses(backbone: Backbone, tmp_path: Path) -> None:
    method = second_task_method(backbone, batch_size=2)
    captions = [[f"video {number} caption {c}" for c in range(2)] for number in range(5)]
    clips = write_task(tmp_path, "val", captions, ["val"] * 5).clips
    texts = [caption for clip in clips for caption in clip.captions]
    videos = torch.cat([method.encode_videos(torch.from_numpy(np.load(c.frames_path))[None]) for c in clips])
    # Half of the captions belong to the clip that they retrieve, the others to another clip.
    with torch.no_grad():
        queries = method.embed(torch.from_numpy(np.load(clips[0].frames_path))[None], texts)[0]
    winners = [int(np.argmax([float(q @ v) for v in videos])) for q in queries]
    captions_by_clip: list[list[str]] = [[] for _ in clips]
    for number, (text, winner) in enumerate(zip(texts, winners, strict=True)):
        captions_by_clip[winner if number % 2 else (winner + 1) % len(clips)].append(text)
    captioned = [
        Clip(c.id, c.vector_id, c.frames_path, tuple(captions), "val")
        for c, captions in zip(clips, captions_by_clip, strict=True)
    ]
    assert method.validation_recall(captioned) == 0.5
    twins = [Clip("twin", 9, clip.frames_path, (), "val") for clip in captioned]
    assert method.validation_recall([*captioned, *twins]) == 0.0
    assert method.validation_recall(twins) is None
    assert method.validation_recall([]) is None
