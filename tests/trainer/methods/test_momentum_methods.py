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
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_files import read_release, write_release
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import (
    create_method,
    equal_tensors,
    index_task,
    learn_steps,
    random_frames,
    run_steps,
    weights,
)
from trainer.methods.bmu_moco import BmuMoco
from trainer.methods.shared.momentum import KeyQueues, MomentumMethod, moco_loss
from trainer.task_data import Clip

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]
VARIANTS = ["both", "local", "global", "ensemble", "fixed"]
Vectors = list[list[float]]


def base_moco_method(
    backbone: Backbone, previous: ReleaseState | None = None, **settings: Any
) -> MomentumMethod:
    method = create_method("base_moco", backbone, previous, queue=7, **settings)
    assert isinstance(method, MomentumMethod)
    return method


def bmu_moco_method(
    backbone: Backbone, variant: str, previous: ReleaseState | None = None, **settings: Any
) -> BmuMoco:
    method = create_method("bmu_moco", backbone, previous, queue=7, variant=variant, **settings)
    assert isinstance(method, BmuMoco)
    return method


def learn(method: MomentumMethod, task: str, seeds: range) -> None:
    learn_steps(method, task, seeds, TEXTS)


def second_task_method(backbone: Backbone, variant: str, **settings: Any) -> BmuMoco:
    """Return a method in its second task whose encoders have three different sets of weights."""
    method = bmu_moco_method(backbone, variant, **settings)
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


# -- equations 10, 11, 16, 17 ---------------------------------------------------------------------------


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
    vectors, keys, queues = (
        random_unit_vectors(4, 6),
        random_unit_vectors(pairs, 4, 6),
        random_unit_vectors(pairs, 5, 6),
    )
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


@pytest.mark.parametrize(
    ("variant", "pairs"),
    [("both", ["local", "global"]), ("local", ["local"]), ("global", ["global"]), ("fixed", ["local"])],
)
def test_loss_is_equation_18_over_the_pairs_of_the_variant(
    backbone: Backbone, variant: str, pairs: list[str]
) -> None:
    method = second_task_method(backbone, variant)
    assert list(method.momentum) == pairs
    loss = float(method.loss(random_frames(9, 3), TEXTS, None).detach())
    assert loss == pytest.approx(slow_total_loss(method, pairs, random_frames(9, 3)), rel=1e-4)


def test_base_moco_loss_is_equations_10_and_11(backbone: Backbone) -> None:
    method = base_moco_method(backbone)
    method.begin_task("one", "one")
    run_steps(method, range(2), texts=TEXTS)
    loss = float(method.loss(random_frames(9, 3), TEXTS, None).detach())
    assert loss == pytest.approx(slow_total_loss(method, ["local"], random_frames(9, 3)), rel=1e-4)


# -- equations 8, 12, 13, 14 and their order ------------------------------------------------------------


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


@pytest.mark.parametrize(("variant", "order"), [("both", "2384"), ("local", "28"), ("global", "34")])
def test_step_applies_equations_12_13_8_14_in_this_order(
    backbone: Backbone, variant: str, order: str
) -> None:
    method = second_task_method(backbone, variant, momentum=0.9, encoder_momentum=0.8)
    models = [method.model]
    models += [
        method.momentum[n].encoders if n in method.momentum else method.model for n in ("local", "global")
    ]
    before = [trained_weights(model) for model in models]
    method.after_step()
    after = [trained_weights(model) for model in models]

    def error(of: str) -> float:
        expected = apply_updates(of, *before, m=0.9, back=0.8)
        used = [0, *(i for i, name in enumerate(["local", "global"], start=1) if name in method.momentum)]
        return max(distance(expected[i], after[i]) for i in used)

    assert error(order) < 1e-4
    others = {"both": ["3284", "8423", "2834", "2838"], "local": ["82"], "global": ["43"]}[variant]
    assert all(error(other) > 0.1 for other in others)


def test_base_moco_updates_momentum_without_pull(backbone: Backbone) -> None:
    method = base_moco_method(backbone, momentum=0.9)
    method.begin_task("one", "one")
    kept = method.momentum["local"].encoders
    before = trained_weights(kept)
    with torch.no_grad():
        for parameter in method.model.parameters():
            parameter.mul_(2)
    online = trained_weights(method.model)
    method.after_step()
    assert equal_tensors(trained_weights(method.model), online)
    assert distance(trained_weights(kept), interpolate(0.9, before, online)) < 1e-4


# -- Base-MoCo as the limit -----------------------------------------------------------------------------


def test_local_variant_without_pull_equals_base_moco_bit_for_bit(backbone: Backbone) -> None:
    base, same = base_moco_method(backbone), bmu_moco_method(backbone, "local", encoder_momentum=1)
    other = bmu_moco_method(backbone, "local")
    for method in (base, same, other):
        learn(method, "one", range(1))
        learn(method, "two", range(1, 4))
    expected = base.release().tensors
    tensors = same.release().tensors
    assert tensors.pop("trained_tasks") == 2
    assert equal_tensors(tensors, expected)
    assert not equal_tensors(trained_weights(other.model), trained_weights(base.model))


@pytest.fixture(scope="module")
def first_model(backbone: Backbone) -> dict[str, Tensor]:
    """Base-MoCo's encoders after a task of two steps."""
    base = base_moco_method(backbone)
    learn(base, "one", range(2))
    return trained_weights(base.model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants_learn_the_first_task_as_base_moco(
    backbone: Backbone, first_model: dict[str, Tensor], variant: str
) -> None:
    shared, literal = (
        bmu_moco_method(backbone, variant),
        bmu_moco_method(backbone, variant, pull_from_first_task=True),
    )
    for method in (shared, literal):
        learn(method, "one", range(2))
    assert equal_tensors(trained_weights(shared.model), first_model)
    assert not equal_tensors(trained_weights(literal.model), first_model)
    assert shared.is_bidirectional, "from the second task on"


def test_task_without_training_does_not_count_as_first_task(backbone: Backbone) -> None:
    method = bmu_moco_method(backbone, "both")
    before = method.fingerprint()
    index_task(method, "bare")
    assert method.fingerprint() == before
    assert not method.is_bidirectional
    learn(method, "one", range(1))
    assert method.is_bidirectional


# -- queues ---------------------------------------------------------------------------------------------


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
    method = second_task_method(backbone, "both", momentum=0.5)
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
        places = [(first + i) % 7 for i in range(len(TEXTS))]
        assert torch.equal(pair.queues.texts[places], texts)
        assert torch.equal(pair.queues.videos[places], videos)


def test_queues_persist_over_tasks_and_releases(backbone: Backbone) -> None:
    method = bmu_moco_method(backbone, "both")
    drawn = [pair.queues.texts.clone() for pair in method.momentum.values()]
    assert not torch.equal(*drawn), "each queue has its own random vectors"
    learn(method, "one", range(2))
    expected = {n: pair.queues.state_dict() for n, pair in method.momentum.items()}
    resumed = bmu_moco_method(backbone, "both", method.release())
    for run in (method, resumed):
        run.begin_task("two", "two")
        for name, pair in run.momentum.items():
            assert equal_tensors(pair.queues.state_dict(), expected[name])


# -- local and global pairs -----------------------------------------------------------------------------


def test_local_pair_is_reset_at_every_task_and_global_pair_never(backbone: Backbone) -> None:
    method = bmu_moco_method(backbone, "both")
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


def test_release_contains_exactly_the_state_of_the_next_task(backbone: Backbone) -> None:
    method = bmu_moco_method(backbone, "both")
    learn(method, "one", range(2))
    release = method.release()
    towers = set(method.model.tensors())
    queues = {f"{n}.queues.{k}" for n in ("local", "global") for k in ("texts", "videos", "oldest")}
    assert set(release.tensors) == towers | queues | {f"global.{t}" for t in towers} | {"trained_tasks"}
    resumed = bmu_moco_method(backbone, "both", release)
    assert equal_tensors(resumed.training_tensors(), method.training_tensors())
    for run in (method, resumed):
        learn(run, "two", range(2, 4))
    assert equal_tensors(resumed.training_tensors(), method.training_tensors())


# -- variants of table 3 --------------------------------------------------------------------------------


def test_ensemble_is_the_mean_of_all_encoders_at_the_end_of_a_task(
    backbone: Backbone, tmp_path: Path
) -> None:
    method, unpulled = (
        bmu_moco_method(backbone, "ensemble"),
        bmu_moco_method(backbone, "both", encoder_momentum=1),
    )
    for run in (method, unpulled):
        learn(run, "one", range(1))
        run.begin_task("two", "two")
        run_steps(run, range(1, 3), texts=TEXTS)
    assert equal_tensors(method.training_tensors(), unpulled.training_tensors()), "no pull during a task"
    members = [trained_weights(m) for m in (method.model, *(p.encoders for p in method.momentum.values()))]
    method.end_task()
    mean = {name: sum(m[name].double() for m in members) / 3 for name in members[0]}
    assert distance(trained_weights(method.model), mean) < 1e-5
    assert distance(trained_weights(method.model), members[0]) > 1e-3
    assert equal_tensors(trained_weights(method.momentum["local"].encoders), trained_weights(method.model))
    assert equal_tensors(trained_weights(method.momentum["global"].encoders), members[2])
    method.record_task("two", "two", TEXTS)
    write_release(tmp_path, method.release())
    encoder = open_query_encoder(backbone, read_release(tmp_path), {})
    with torch.no_grad():
        expected = method.embed(random_frames(1, 3), TEXTS)[0]
    np.testing.assert_allclose(encoder.encode(TEXTS, ["two"])[:, 0], expected, atol=1e-6)


def test_fixed_pair_is_constant_and_bounds_the_encoders(backbone: Backbone) -> None:
    back = 0.9
    method = bmu_moco_method(backbone, "fixed", encoder_momentum=back)
    learn(method, "one", range(1))
    anchor = trained_weights(method.model)
    method.begin_task("two", "two")
    run_steps(method, range(2), texts=TEXTS)
    assert equal_tensors(trained_weights(method.momentum["local"].encoders), anchor)
    # With steps of 1, the distance of the encoders from the anchor is bounded by m̂ / (1 − m̂).
    for _ in range(100):
        with torch.no_grad():
            for parameter in method.model.parameters():
                parameter.add_(1)
        method.after_step()
    for name, weight in trained_weights(method.model).items():
        torch.testing.assert_close(
            weight - anchor[name], torch.full_like(weight, back / (1 - back)), rtol=1e-3, atol=1e-3
        )
    method.end_task()
    assert equal_tensors(trained_weights(method.momentum["local"].encoders), trained_weights(method.model))


# -- best epoch -----------------------------------------------------------------------------------------


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
    method = second_task_method(backbone, "both")
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


def test_best_epoch_is_in_checkpoints_and_not_in_releases(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = bmu_moco_method(backbone, "both")
    method.begin_task("one", "one")
    states = run_epochs(method, [0.7, 0.3], monkeypatch)
    saved = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert equal_tensors(
        {n.removeprefix("best."): t for n, t in saved.items() if n.startswith("best.")}, states[0]
    )
    resumed = bmu_moco_method(backbone, "both")
    resumed.begin_task("one", "one")
    resumed.load_state_dict(saved)
    assert equal_tensors(resumed.state_dict(), saved)
    for run in (method, resumed):
        run_epochs(run, [0.6], monkeypatch)
        run.end_task()
        assert torch.equal(run.training_tensors()["clip.visual.proj"], states[0]["clip.visual.proj"])
        assert not [name for name in run.state_dict() if name.startswith(("best", "local.clip."))]


def write_clips(folder: Path, name: str, seeds: list[int], split: Any, captions: int) -> list[Clip]:
    clips = []
    for number, seed in enumerate(seeds):
        path = folder / f"{name}-{number}.npy"
        np.save(path, random_frames(seed)[0].numpy())
        texts = tuple(f"{name} {number} caption {c}" for c in range(captions))
        clips.append(Clip(f"{name}-{number}", number, path, texts, split))
    return clips


def test_validation_recall_counts_ties_as_misses(backbone: Backbone, tmp_path: Path) -> None:
    method = second_task_method(backbone, "both", batch_size=2)
    clips = write_clips(tmp_path, "val", [1, 2, 3, 4, 5], "val", 2)
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


# -- settings -------------------------------------------------------------------------------------------
