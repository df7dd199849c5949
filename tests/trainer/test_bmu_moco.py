"""Base-MoCo and BMU-MoCo: equations against slow loops, the order of updates, queues, best epoch, variants."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_files import read_release, write_release
from models.releases.release_state import ReleaseState
from tests.trainer.killing import Killed, kill_at
from trainer.methods import MethodError, configure, start_method
from trainer.methods.base_moco import BaseMoco, moco_loss
from trainer.methods.bmu_moco import BmuMoco
from trainer.methods.shared.key_queues import KeyQueues
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES, SIDE = 2, 56
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]
VARIANTS = ["both", "local", "global", "ensemble", "fixed"]
Rows = list[list[float]]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _frames(seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (len(TEXTS), FRAMES, SIDE, SIDE, 3), dtype=np.uint8))


def _base(backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> BaseMoco:
    method = start_method("base_moco", backbone, {"queue": 7, **settings}, previous)
    assert isinstance(method, BaseMoco)
    return method


def _bmu(backbone: Backbone, variant: str, previous: ReleaseState | None = None, **settings: Any) -> BmuMoco:
    method = start_method("bmu_moco", backbone, {"queue": 7, "variant": variant, **settings}, previous)
    assert isinstance(method, BmuMoco)
    return method


def _steps(method: BaseMoco, seeds: range, optimiser: torch.optim.Optimizer | None = None) -> None:
    """Steps as the loop takes them."""
    optimiser = optimiser or torch.optim.AdamW(method.parameter_groups())
    for seed in seeds:
        optimiser.zero_grad()
        method.loss(_frames(seed), TEXTS, None).backward()
        optimiser.step()
        method.after_step()


def _learn(method: BaseMoco, task: str, seeds: range) -> None:
    method.begin_task(task, task)
    _steps(method, seeds)
    method.end_task()
    method.record_task(task, task, TEXTS)


def _second_task(backbone: Backbone, variant: str, **settings: Any) -> BmuMoco:
    """In its second task, with encoders that are three different networks."""
    method = _bmu(backbone, variant, **settings)
    _learn(method, "one", range(1))
    method.begin_task("two", "two")
    torch.manual_seed(5)
    with torch.no_grad():
        for model in (method.model, *(pair.encoders for pair in method.momentum.values())):
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return method


def _weights(model: Backbone) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if name != "clip.logit_scale"}


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def _distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((left[n] - right[n]).double().square().sum()) for n in left))


# -- equations 10, 11, 16, 17 ---------------------------------------------------------------------------


def _slow_loss(vectors: Rows, keys: list[Rows], queues: list[Rows], tau: float) -> float:
    """One direction, as printed: ``keys[p][i]`` is positive p of vector i, ``queues[p]`` negatives."""
    total = 0.0
    for i, vector in enumerate(vectors):
        above = sum(math.exp(_dot(vector, pair[i]) / tau) for pair in keys)
        below = above + sum(math.exp(_dot(vector, key) / tau) for queue in queues for key in queue)
        total += math.log(above / below)
    return -total / len(vectors)


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _unit(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("pairs", [1, 2])
def test_equations_10_and_16(pairs: int) -> None:
    torch.manual_seed(1)
    vectors, keys, queues = _unit(4, 6), _unit(pairs, 4, 6), _unit(pairs, 5, 6)
    loss = moco_loss(vectors, keys, queues.flatten(0, 1), 1 / 0.07)
    expected = _slow_loss(vectors.tolist(), keys.tolist(), queues.tolist(), 0.07)
    assert float(loss) == pytest.approx(expected, rel=1e-9)


def test_two_positives_are_one_sum_and_not_the_mean_of_two_losses() -> None:
    torch.manual_seed(1)
    vectors, keys, queues = _unit(4, 6), _unit(2, 4, 6), _unit(2, 5, 6)
    together = moco_loss(vectors, keys, queues.flatten(0, 1), 10)
    apart = sum(moco_loss(vectors, keys[p : p + 1], queues[p], 10) for p in (0, 1)) / 2
    assert abs(float(together - apart)) > 1e-2


def test_equal_keys_and_queues_make_equation_16_equation_10() -> None:
    torch.manual_seed(1)
    vectors, keys, queue = _unit(4, 6), _unit(1, 4, 6), _unit(5, 6)
    vectors.requires_grad_()
    one = moco_loss(vectors, keys, queue, 20)
    two = moco_loss(vectors, torch.cat([keys, keys]), torch.cat([queue, queue]), 20)
    torch.testing.assert_close(two, one, rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(loss, vectors)[0] for loss in (one, two)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-12)


def _slow_total(method: BaseMoco, names: list[str], frames: Tensor) -> float:
    """Equation 18 from the encoders and queues as they are now."""
    tau = 1 / method.config.logit_scale
    with torch.no_grad():
        text, video = (t.tolist() for t in method.embed(frames, TEXTS))
        pairs = [method.momentum[name] for name in names]
        keys = [method.embed(frames, TEXTS, pair.encoders) for pair in pairs]
    text_keys, video_keys = [k[0].tolist() for k in keys], [k[1].tolist() for k in keys]
    text_queues = [pair.queues.texts.tolist() for pair in pairs]
    video_queues = [pair.queues.videos.tolist() for pair in pairs]
    v2t = _slow_loss(video, text_keys, text_queues, tau)
    return v2t + _slow_loss(text, video_keys, video_queues, tau)


@pytest.mark.parametrize(
    ("variant", "pairs"),
    [("both", ["local", "global"]), ("local", ["local"]), ("global", ["global"]), ("fixed", ["local"])],
)
def test_the_loss_is_equation_18_of_a_variants_pairs(
    backbone: Backbone, variant: str, pairs: list[str]
) -> None:
    method = _second_task(backbone, variant)
    assert list(method.momentum) == pairs
    loss = float(method.loss(_frames(9), TEXTS, None).detach())
    assert loss == pytest.approx(_slow_total(method, pairs, _frames(9)), rel=1e-4)


def test_base_moco_is_equations_10_and_11(backbone: Backbone) -> None:
    method = _base(backbone)
    method.begin_task("one", "one")
    _steps(method, range(2))
    loss = float(method.loss(_frames(9), TEXTS, None).detach())
    assert loss == pytest.approx(_slow_total(method, ["local"], _frames(9)), rel=1e-4)


def test_no_gradient_reaches_momentum_encoders_or_queues(backbone: Backbone) -> None:
    method = _second_task(backbone, "both")
    method.loss(_frames(1), TEXTS, None).backward()
    for pair in method.momentum.values():
        assert all(not t.requires_grad and t.grad is None for t in [*pair.parameters(), *pair.buffers()])
    trained = [p for p in method.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(t.numel() for t in _weights(method.model).values())
    assert any(float(p.grad.abs().max()) > 0 for p in trained if p.grad is not None)


# -- equations 8, 12, 13, 14 and their order ------------------------------------------------------------


def _mix(share: float, left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: share * left[name].double() + (1 - share) * right[name].double() for name in left}


def _update(order: str, theta: Any, local: Any, overall: Any, m: float, back: float) -> tuple[Any, Any, Any]:
    """Updates in an order: 2 and 3 are equations 12 and 13, 8 and 4 equations 8 and 14."""
    for equation in order:
        if equation == "2":
            theta = _mix(back, theta, local)
        elif equation == "3":
            theta = _mix(back, theta, overall)
        elif equation == "8":
            local = _mix(m, local, theta)
        else:
            overall = _mix(m, overall, theta)
    return theta, local, overall


@pytest.mark.parametrize(("variant", "order"), [("both", "2384"), ("local", "28"), ("global", "34")])
def test_a_step_is_equations_12_13_8_14_in_this_order(backbone: Backbone, variant: str, order: str) -> None:
    method = _second_task(backbone, variant, momentum=0.9, encoder_momentum=0.8)
    models = [method.model]
    models += [
        method.momentum[n].encoders if n in method.momentum else method.model for n in ("local", "global")
    ]
    before = [_weights(model) for model in models]
    method.after_step()
    after = [_weights(model) for model in models]

    def error(of: str) -> float:
        expected = _update(of, *before, m=0.9, back=0.8)
        used = [0, *(i for i, name in enumerate(["local", "global"], start=1) if name in method.momentum)]
        return max(_distance(expected[i], after[i]) for i in used)

    assert error(order) < 1e-3
    others = {"both": ["3284", "8423", "2834", "2838"], "local": ["82"], "global": ["43"]}[variant]
    assert all(error(other) > 1 for other in others)


def test_base_moco_follows_and_is_not_pulled(backbone: Backbone) -> None:
    method = _base(backbone, momentum=0.9)
    method.begin_task("one", "one")
    kept = method.momentum["local"].encoders
    before = _weights(kept)
    with torch.no_grad():
        for parameter in method.model.parameters():
            parameter.mul_(2)
    online = _weights(method.model)
    method.after_step()
    assert _equal(_weights(method.model), online)
    assert _distance(_weights(kept), _mix(0.9, before, online)) < 1e-4


@pytest.mark.parametrize(("variant", "pulls"), [("local", 1), ("both", 2)])
def test_the_gap_shrinks_by_m_and_a_factor_for_every_pull(
    backbone: Backbone, variant: str, pulls: int
) -> None:
    m, back = 0.95, 0.9
    method = _second_task(backbone, variant, momentum=m, encoder_momentum=back)
    local = method.momentum["local"].encoders
    for pair in method.momentum.values():
        pair.encoders.load_tensors(local.tensors())
    gaps = [_distance(_weights(method.model), _weights(local))]
    for _ in range(4):
        method.after_step()
        gaps.append(_distance(_weights(method.model), _weights(local)))
    for before, after in pairwise(gaps):
        assert after / before == pytest.approx(m * back**pulls, rel=1e-4)


def test_pairs_that_start_equal_stay_equal(backbone: Backbone) -> None:
    method = _bmu(backbone, "both", pull_from_first_task=True)
    method.begin_task("one", "one")
    _steps(method, range(3))
    local, overall = (_weights(method.momentum[n].encoders) for n in ("local", "global"))
    assert _equal(local, overall)
    assert not _equal(local, _weights(method.model))


# -- Base-MoCo as the limit -----------------------------------------------------------------------------


def test_without_pull_the_local_variant_is_base_moco_bit_for_bit(backbone: Backbone) -> None:
    base, same = _base(backbone), _bmu(backbone, "local", encoder_momentum=1)
    other = _bmu(backbone, "local")
    for method in (base, same, other):
        _learn(method, "one", range(1))
        _learn(method, "two", range(1, 4))
    expected = base.release().tensors
    tensors = same.release().tensors
    assert tensors.pop("trained_tasks") == 2
    assert _equal(tensors, expected)
    assert not _equal(_weights(other.model), _weights(base.model))


def test_without_pull_from_the_first_task_on(backbone: Backbone) -> None:
    base, same = _base(backbone), _bmu(backbone, "local", encoder_momentum=1, pull_from_first_task=True)
    for method in (base, same):
        _learn(method, "one", range(2))
    assert _equal(_weights(same.model), _weights(base.model))


@pytest.fixture(scope="module")
def first_model(backbone: Backbone) -> dict[str, Tensor]:
    """Base-MoCo's encoders after a task of two steps."""
    base = _base(backbone)
    _learn(base, "one", range(2))
    return _weights(base.model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants_share_base_mocos_model_of_the_first_task(
    backbone: Backbone, first_model: dict[str, Tensor], variant: str
) -> None:
    shared, literal = _bmu(backbone, variant), _bmu(backbone, variant, pull_from_first_task=True)
    for method in (shared, literal):
        _learn(method, "one", range(2))
    assert _equal(_weights(shared.model), first_model)
    assert not _equal(_weights(literal.model), first_model)
    assert shared.is_bidirectional, "from now on"


def test_a_task_that_is_only_indexed_is_not_the_first(backbone: Backbone) -> None:
    method = _bmu(backbone, "both")
    before = method.fingerprint()
    method.begin_task("bare", "bare", trained=False)
    method.end_task()
    method.record_task("bare", "bare", [])
    assert method.fingerprint() == before
    assert not method.is_bidirectional
    _learn(method, "one", range(1))
    assert method.is_bidirectional


# -- queues ---------------------------------------------------------------------------------------------


def test_a_queue_is_a_ring_for_batches_of_any_size() -> None:
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


def test_keys_are_of_the_encoders_before_the_step_and_join_after_it(backbone: Backbone) -> None:
    method = _second_task(backbone, "both", momentum=0.5)
    pairs = method.momentum.values()
    with torch.no_grad():
        keys = [method.embed(_frames(4), TEXTS, pair.encoders) for pair in pairs]
    before = [pair.queues.texts.clone() for pair in pairs]
    start = [int(pair.queues.oldest) for pair in pairs]
    method.loss(_frames(4), TEXTS, None)
    assert all(torch.equal(p.queues.texts, b) for p, b in zip(pairs, before, strict=True)), "not in the loss"
    method.after_step()
    for pair, (texts, videos), first in zip(pairs, keys, start, strict=True):
        places = [(first + i) % 7 for i in range(len(TEXTS))]
        assert torch.equal(pair.queues.texts[places], texts)
        assert torch.equal(pair.queues.videos[places], videos)


def test_queues_outlive_tasks_and_releases(backbone: Backbone) -> None:
    method = _bmu(backbone, "both")
    drawn = [pair.queues.texts.clone() for pair in method.momentum.values()]
    assert not torch.equal(*drawn), "random vectors of their own"
    _learn(method, "one", range(2))
    expected = {n: pair.queues.state_dict() for n, pair in method.momentum.items()}
    resumed = _bmu(backbone, "both", method.release())
    for run in (method, resumed):
        run.begin_task("two", "two")
        for name, pair in run.momentum.items():
            assert _equal(pair.queues.state_dict(), expected[name])


# -- local and global pairs -----------------------------------------------------------------------------


def test_the_local_pair_starts_anew_with_every_task_and_the_global_one_never(backbone: Backbone) -> None:
    method = _bmu(backbone, "both")
    start = _weights(method.model)
    assert _equal(_weights(method.momentum["global"].encoders), start)
    for number in range(2):
        method.begin_task(str(number), str(number))
        local, overall = (method.momentum[n].encoders for n in ("local", "global"))
        _steps(method, range(2))
        online, before = _weights(method.model), _weights(overall)
        assert not _equal(_weights(local), online)
        method.end_task()
        assert _equal(_weights(local), online)
        assert _equal(_weights(overall), before)
        assert not _equal(before, online)
        method.record_task(str(number), str(number), TEXTS)
    assert _distance(_weights(overall), start) > 0


def test_a_release_holds_what_the_next_task_needs_and_no_more(backbone: Backbone) -> None:
    method = _bmu(backbone, "both")
    _learn(method, "one", range(2))
    release = method.release()
    towers = set(method.model.tensors())
    queues = {f"{n}.queues.{k}" for n in ("local", "global") for k in ("texts", "videos", "oldest")}
    assert set(release.tensors) == towers | queues | {f"global.{t}" for t in towers} | {"trained_tasks"}
    resumed = _bmu(backbone, "both", release)
    assert _equal(resumed.training_tensors(), method.training_tensors())
    for run in (method, resumed):
        _learn(run, "two", range(2, 4))
    assert _equal(resumed.training_tensors(), method.training_tensors())


# -- variants of table 3 --------------------------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_all_encoders_at_the_end_of_a_task(
    backbone: Backbone, tmp_path: Path
) -> None:
    method, unpulled = _bmu(backbone, "ensemble"), _bmu(backbone, "both", encoder_momentum=1)
    for run in (method, unpulled):
        _learn(run, "one", range(1))
        run.begin_task("two", "two")
        _steps(run, range(1, 3))
    assert _equal(method.training_tensors(), unpulled.training_tensors()), "during a task nothing is pulled"
    members = [_weights(m) for m in (method.model, *(p.encoders for p in method.momentum.values()))]
    method.end_task()
    mean = {name: sum(m[name].double() for m in members) / 3 for name in members[0]}
    assert _distance(_weights(method.model), mean) < 1e-5
    assert _distance(_weights(method.model), members[0]) > 1e-3
    assert _equal(_weights(method.momentum["local"].encoders), _weights(method.model))
    assert _equal(_weights(method.momentum["global"].encoders), members[2])
    method.record_task("two", "two", TEXTS)
    write_release(tmp_path, method.release())
    encoder = open_query_encoder(backbone, read_release(tmp_path), {})
    with torch.no_grad():
        expected = method.embed(_frames(1), TEXTS)[0]
    np.testing.assert_allclose(encoder.encode(TEXTS, ["two"])[:, 0], expected, atol=1e-6)


def test_a_fixed_pair_stays_what_the_task_found_and_holds_the_encoders(backbone: Backbone) -> None:
    back = 0.9
    method = _bmu(backbone, "fixed", encoder_momentum=back)
    _learn(method, "one", range(1))
    anchor = _weights(method.model)
    method.begin_task("two", "two")
    _steps(method, range(2))
    assert _equal(_weights(method.momentum["local"].encoders), anchor)
    # A step of one everywhere can carry the encoders no further than m̂ / (1 − m̂) from what the task found.
    for _ in range(100):
        with torch.no_grad():
            for parameter in method.model.parameters():
                parameter.add_(1)
        method.after_step()
    for name, weight in _weights(method.model).items():
        torch.testing.assert_close(
            weight - anchor[name], torch.full_like(weight, back / (1 - back)), rtol=1e-3, atol=1e-3
        )
    method.end_task()
    assert _equal(_weights(method.momentum["local"].encoders), _weights(method.model))


# -- best epoch -----------------------------------------------------------------------------------------


def _epochs(
    method: BaseMoco, recalls: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Tensor]]:
    """A step and a validation per recall; the states after each epoch."""
    optimiser = torch.optim.AdamW(method.parameter_groups())
    states = []
    for seed, recall in enumerate(recalls):
        _steps(method, range(seed, seed + 1), optimiser)
        monkeypatch.setattr(method, "validation_recall", lambda clips, value=recall: value)
        method.after_epoch(())
        states.append({name: tensor.clone() for name, tensor in method.training_tensors().items()})
    return states


@pytest.mark.parametrize(
    ("recalls", "best"),
    [([0.2, 0.8, 0.5], 1), ([0.5, 0.8, 0.8, 0.1], 2), ([0.0, 0.0], 1), ([None, None], 1), ([0.9, 0.1], 0)],
)
def test_a_task_ends_with_its_best_epoch(
    backbone: Backbone, recalls: list[float | None], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = _second_task(backbone, "both")
    states = _epochs(method, recalls, monkeypatch)
    method.end_task()
    after = method.training_tensors()
    restarted = {n for n in after if n.startswith("local.clip.")}
    assert _equal(*({n: t for n, t in s.items() if n not in restarted} for s in (after, states[best])))
    for name in restarted:
        assert torch.equal(after[name], states[best][name.removeprefix("local.")])
    method.begin_task("three", "three")
    worse = _epochs(method, [0.05], monkeypatch)
    method.end_task()
    assert torch.equal(method.training_tensors()["clip.visual.proj"], worse[0]["clip.visual.proj"]), (
        "not the old best"
    )


def test_the_local_pair_of_base_moco_starts_anew_from_the_best_epoch(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = _base(backbone)
    method.begin_task("one", "one")
    states = _epochs(method, [0.9, 0.1], monkeypatch)
    method.end_task()
    best = {name: states[0][name] for name in method.model.tensors()}
    assert _equal(method.model.tensors(), best)
    assert _equal(method.momentum["local"].encoders.tensors(), best)


def test_an_ensemble_is_made_of_the_best_epoch(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    method = _second_task(backbone, "ensemble")
    states = _epochs(method, [0.9, 0.1], monkeypatch)
    method.end_task()
    name = "clip.visual.proj"
    mean = sum(states[0][prefix + name].double() for prefix in ("", "local.", "global.")) / 3
    torch.testing.assert_close(method.training_tensors()[name].double(), mean, rtol=0, atol=1e-7)


def test_the_best_epoch_survives_a_checkpoint_and_is_not_in_a_release(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = _bmu(backbone, "both")
    method.begin_task("one", "one")
    states = _epochs(method, [0.7, 0.3], monkeypatch)
    saved = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    assert _equal({n.removeprefix("best."): t for n, t in saved.items() if n.startswith("best.")}, states[0])
    resumed = _bmu(backbone, "both")
    resumed.begin_task("one", "one")
    resumed.load_state_dict(saved)
    assert _equal(resumed.state_dict(), saved)
    for run in (method, resumed):
        _epochs(run, [0.6], monkeypatch)
        run.end_task()
        assert torch.equal(run.training_tensors()["clip.visual.proj"], states[0]["clip.visual.proj"])
        assert not [name for name in run.state_dict() if name.startswith(("best", "local.clip."))]


def _clips(folder: Path, name: str, seeds: list[int], split: Any, captions: int) -> list[Clip]:
    clips = []
    for number, seed in enumerate(seeds):
        path = folder / f"{name}-{number}.npy"
        np.save(path, _frames(seed)[0].numpy())
        texts = tuple(f"{name} {number} in other words {c}" for c in range(captions))
        clips.append(Clip(f"{name}-{number}", number, path, texts, split))
    return clips


def test_validation_recall_is_that_of_the_encoders_and_counts_ties_as_misses(
    backbone: Backbone, tmp_path: Path
) -> None:
    method = _second_task(backbone, "both", batch_size=2)
    clips = _clips(tmp_path, "val", [1, 2, 3, 4, 5], "val", 2)
    texts = [caption for clip in clips for caption in clip.captions]
    videos = torch.cat([method.encode_videos(torch.from_numpy(np.load(c.frames_path))[None]) for c in clips])
    # Every other caption is the one that a clip is found by; those that are left are for another clip.
    with torch.no_grad():
        queries = method.embed(torch.from_numpy(np.load(clips[0].frames_path))[None], texts)[0]
    winners = [int(np.argmax([float(q @ v) for v in videos])) for q in queries]
    asked: list[list[str]] = [[] for _ in clips]
    for number, (text, winner) in enumerate(zip(texts, winners, strict=True)):
        asked[winner if number % 2 else (winner + 1) % len(clips)].append(text)
    told = [
        Clip(c.id, c.vector_id, c.frames_path, tuple(captions), "val")
        for c, captions in zip(clips, asked, strict=True)
    ]
    assert method.validation_recall(told) == 0.5
    twins = [Clip("twin", 9, clip.frames_path, (), "val") for clip in told]
    assert method.validation_recall([*told, *twins]) == 0.0
    assert method.validation_recall(twins) is None
    assert method.validation_recall([]) is None


def _task(folder: Path, name: str) -> TaskData:
    clips = _clips(folder, f"{name}-train", [1, 2, 3], "train", 1)
    return TaskData(name, name, (*clips, *_clips(folder, f"{name}-val", [6, 7, 8], "val", 2)))


@pytest.mark.parametrize(
    ("name", "variant"), [("base_moco", None), ("bmu_moco", "both"), ("bmu_moco", "fixed")]
)
def test_an_interrupted_second_task_ends_with_the_same_bits(
    backbone: Backbone, tmp_path: Path, name: str, variant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second of three epochs is the best, whatever an untrained backbone finds.
    recalls: dict[int, list[float]] = {}

    def recall(self: BaseMoco, clips: list[Clip]) -> float:
        assert [clip.split for clip in clips] == ["val"] * 3
        return recalls[id(self)].pop(0)

    settings: dict[str, Any] = {"queue": 7, "epochs": 3, "batch_size": 2, "schedule": "step"}
    settings |= {"variant": variant} if variant else {}
    second = _task(tmp_path, "two")
    method = start_method(name, backbone, settings, None)
    assert isinstance(method, BaseMoco)
    _learn(method, "one", range(1))
    release = method.release()
    monkeypatch.setattr(BaseMoco, "validation_recall", recall)
    whole, broken, resumed = (start_method(name, backbone, settings, release) for _ in range(3))
    recalls |= {id(whole): [0.1, 0.9, 0.5], id(broken): [0.1, 0.9], id(resumed): [0.5]}
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(broken, second, checkpoints=checkpoints, report=kill_at(5))
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [5, 6]
    assert _equal(resumed.release().tensors, whole.release().tensors)


# -- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"variant": "all"}, "variant: "),
        ({"momentum": 1.1}, "momentum: "),
        ({"encoder_momentum": -0.1}, "encoder_momentum: "),
        ({"queue": 0}, "queue: "),
        ({"logit_scale": 0}, "logit_scale: "),
        ({"pull": 0.9}, "pull: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure("bmu_moco", "tiny", settings)
    if "encoder_momentum" not in settings and "variant" not in settings:
        with pytest.raises(MethodError, match=says):
            configure("base_moco", "tiny", settings)


def test_the_default_recipes_are_the_papers() -> None:
    for name in ("base_moco", "bmu_moco"):
        values = configure(name, "open_clip:ViT-B-16/openai", {}).model_dump()
        assert (values["epochs"], values["batch_size"], values["queue"]) == (10, 48, 1440)
        assert (values["learning_rate"], values["schedule"], values["weight_decay"]) == (5e-5, "step", 0)
        assert values["momentum"] == values.get("encoder_momentum", 0.99) == 0.99
        assert 1 / values["logit_scale"] == pytest.approx(0.07, rel=1e-4)
        assert 1 / configure(name, "tiny", {}).logit_scale == pytest.approx(0.05)


def test_a_library_keeps_its_pairs_and_queues(backbone: Backbone) -> None:
    method = _bmu(backbone, "local")
    _learn(method, "one", range(1))
    release = method.release()
    with pytest.raises(MethodError, match="variant is 'local'"):
        _bmu(backbone, "both", release)
    with pytest.raises(MethodError, match="queue is 7"):
        _bmu(backbone, "local", release, queue=8)
    kept = start_method("bmu_moco", backbone, {}, release)
    assert (kept.config.model_dump()["variant"], kept.config.model_dump()["queue"]) == ("local", 7)
    faster = _bmu(backbone, "local", release, encoder_momentum=0.5)
    assert faster.config.encoder_momentum == 0.5


def test_a_library_that_began_without_captions_can_start_to_learn(backbone: Backbone) -> None:
    frozen = start_method("zero_shot", backbone, {}, None)
    frozen.begin_task("bare", "bare")
    frozen.end_task()
    frozen.record_task("bare", "bare", [])
    method = _bmu(backbone, "both", frozen.release())
    assert not method.is_bidirectional
    _learn(method, "one", range(1))
    assert [task.task_id for task in method.learned_tasks] == ["bare", "one"]
