"""Weight penalties: each importance against loops, and what they do over two tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from tests.trainer.killing import Killed, kill_at
from trainer.losses import in_task_loss
from trainer.methods import MethodError, configure, start_method
from trainer.methods.ewc import Ewc, EwcConfig
from trainer.methods.finetune import Finetune
from trainer.methods.mas import MasConfig
from trainer.methods.rwalk import Rwalk, RwalkConfig
from trainer.methods.shared.weight_penalty import WeightPenaltyMethod, mean_gradients
from trainer.methods.si import Si, SiConfig
from trainer.task_data import Clip, Pair, TaskData, load_frames
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES = 2
NAMES = ["ewc", "mas", "rwalk", "si"]
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
BIAS = "clip.visual.ln_post.bias"  # a small weight on which every video depends


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _start(name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Any:
    return start_method(name, backbone, settings, previous)


def _frames(seed: int, videos: int = 4) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (videos, FRAMES, 56, 56, 3), dtype=np.uint8))


def _task(folder: Path, name: str, captions: int = 1) -> TaskData:
    clips = []
    for number, text in enumerate(TEXTS):
        path = folder / f"{name}-{number}.npy"
        np.save(path, _frames(10 * len(name) + number, 1)[0].numpy())
        told = tuple(f"{text} {name} {c}" for c in range(captions))
        clips.append(Clip(f"{name}-{number}", 100 * len(name) + number, path, told, "train"))
    return TaskData(name, name, tuple(clips))


def _weights(method: Finetune) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in method.model.named_parameters()}


def _video_output(model: Backbone, clip: Clip) -> Tensor:
    """``[dim]``, by open_clip's own forward pass, not brought to unit length."""
    pixels = load_frames([clip])[0].permute(0, 3, 1, 2).float()
    return model.clip.encode_image((pixels - model.mean) / model.std, normalize=False).mean(dim=0)


def _text_output(model: Backbone, text: str) -> Tensor:
    return model.clip.encode_text(model._tokenizer([text]), normalize=False)[0]


# -- the shared term ------------------------------------------------------------------------------------


class _Given(WeightPenaltyMethod):
    """A penalty whose importance the test gives."""

    name = "given"

    def compute_importance(self, pairs: Any) -> dict[str, Tensor]:
        torch.manual_seed(3)
        return {name: torch.rand_like(weight) for name, weight in self.penalized_parameters().items()}


class _TextOnly(_Given):
    def is_penalized(self, name: str) -> bool:
        return not name.startswith("clip.visual.")


def _given(kind: type[_Given], backbone: Backbone, penalty: float) -> _Given:
    method = kind(backbone, kind.config_class(penalty=penalty))
    method.begin_task("one", "one")
    method.end_task()
    method.begin_task("two", "two")
    return method


def test_the_penalty_against_a_loop(backbone: Backbone) -> None:
    method = _given(_Given, backbone, penalty=3.0)
    with torch.no_grad():
        for weight in method.penalized_parameters().values():
            weight += 0.01 * torch.randn_like(weight)
    expected = 0.0
    for name, weight in method.model.named_parameters():
        if name == "clip.logit_scale":
            assert name not in method.importance
            continue
        omega = method.importance[name].double().numpy()
        moved = weight.detach().double().numpy() - method.anchor[name].double().numpy()
        expected += 3.0 / 2 * float((omega * moved**2).sum())
    assert expected > 1
    assert method.penalty_loss().item() == pytest.approx(expected, rel=1e-4)
    plain = method.task_loss(_frames(1), TEXTS, None)
    assert method.loss(_frames(1), TEXTS, None).item() == pytest.approx(plain.item() + expected, rel=1e-4)
    method.penalty_loss().backward()
    gradient = method.penalized_parameters()[BIAS].grad
    found = (
        3.0 * method.importance[BIAS] * (method.penalized_parameters()[BIAS].detach() - method.anchor[BIAS])
    )
    torch.testing.assert_close(gradient, found)


def test_one_tower_alone_can_be_held(backbone: Backbone) -> None:
    both, text = _given(_Given, backbone, penalty=1.0), _given(_TextOnly, backbone, penalty=1.0)
    assert {n for n in both.importance if not n.startswith("clip.visual.")} == set(text.importance)
    assert set(text.anchor) == set(text.importance)
    with torch.no_grad():
        text.model.clip.visual.proj += 1
    assert text.penalty_loss().item() == 0
    with torch.no_grad():
        text.model.clip.text_projection += 1
    assert text.penalty_loss().item() > 0
    assert all(
        weight.requires_grad for weight in (text.model.clip.visual.proj, text.model.clip.text_projection)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_first_task_is_plain_fine_tuning(name: str, backbone: Backbone, tmp_path: Path) -> None:
    settings = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-4}
    method, plain = _start(name, backbone, **settings), _start("finetune", backbone, **settings)
    task = _task(tmp_path, "one")
    for run in (method, plain):
        learn_task(run, task)
    assert all(torch.equal(method.model.tensors()[n], t) for n, t in plain.model.tensors().items())
    assert method.importance.keys() == method.anchor.keys()
    assert all(bool((omega >= 0).all()) for omega in method.importance.values())
    assert sum(float(omega.sum()) for omega in method.importance.values()) > 0
    assert torch.equal(method.anchor[BIAS], plain.model.tensors()[BIAS])


def test_mean_gradients_of_a_polynomial() -> None:
    weights = {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor(1.0, requires_grad=True)}

    def outputs() -> Iterator[Tensor]:
        yield (weights["a"] ** 2).sum()  # gradient [2, 4]
        yield -weights["a"].sum()  # gradient [-1, -1]

    squares = mean_gradients(outputs(), weights, torch.square)
    torch.testing.assert_close(squares["a"], torch.tensor([2.5, 8.5]))
    sizes = mean_gradients(outputs(), weights, torch.abs)
    torch.testing.assert_close(sizes["a"], torch.tensor([1.5, 2.5]))
    assert sizes["b"] == 0
    assert mean_gradients([], weights, torch.abs)["a"].tolist() == [0, 0]


# -- EWC ------------------------------------------------------------------------------------------------


def _fisher(method: Ewc, pairs: list[Pair], size: int) -> Tensor:
    """Of one weight, by backward passes through open_clip."""
    method.model.zero_grad()
    total, count = torch.zeros(()), 0
    waiting = [pair.caption for pair in pairs]
    for frames, texts in method.small_batches(pairs, size):
        chosen = [next(pair for pair in pairs if pair.caption == text) for text in texts]
        assert torch.equal(frames, load_frames([pair.clip for pair in chosen]))
        queries = torch.stack([_text_output(method.model, text) for text in texts])
        videos = torch.stack([_video_output(method.model, pair.clip) for pair in chosen])
        queries, videos = (v / v.norm(dim=-1, keepdim=True) for v in (queries, videos))
        in_task_loss(queries, videos, method.config.logit_scale).backward()
        gradient = method.penalized_parameters()[BIAS].grad
        assert gradient is not None
        total, count = total + gradient**2, count + 1
        gradient.zero_()
        waiting = [text for text in waiting if text not in texts]
    assert not waiting
    assert count == len(pairs) // size
    return total / count


def test_the_fisher_of_ewc_against_a_loop_and_its_sum_over_tasks(backbone: Backbone, tmp_path: Path) -> None:
    method = _start("ewc", backbone, fisher_batch=2, decay=0.5, epochs=1, batch_size=4)
    pairs = [_task(tmp_path, name, captions=2).pairs for name in ("one", "other")]
    method.begin_task("one", "one")
    first = _fisher(method, pairs[0], 2)
    method.end_task(pairs[0])
    torch.testing.assert_close(method.importance[BIAS], first, rtol=1e-3, atol=1e-9)
    assert first.max() > 1e-6
    method.record_task("one", "one", TEXTS)
    method.begin_task("two", "two")
    second = _fisher(method, pairs[1], 2)
    method.end_task(pairs[1])
    torch.testing.assert_close(method.importance[BIAS], first / 2 + second, rtol=1e-3, atol=1e-9)


def test_small_batches_keep_the_captions_of_a_video_apart(backbone: Backbone, tmp_path: Path) -> None:
    pairs = _task(tmp_path, "one", captions=3).pairs
    for _, texts in _start("ewc", backbone).small_batches(pairs, 4):
        assert len({text.split(" one ")[0] for text in texts}) == 4


# -- MAS ------------------------------------------------------------------------------------------------


def test_the_importance_of_mas_against_a_loop(backbone: Backbone, tmp_path: Path) -> None:
    method = _start("mas", backbone)
    names = [BIAS, "clip.visual.proj", "clip.text_projection", "clip.ln_final.weight"]
    total = {name: torch.zeros(()) for name in names}
    for word in ("one", "other"):
        task = _task(tmp_path, word, captions=2)
        method.begin_task(word, word)
        videos = [_video_output(method.model, clip) for clip in task.train]
        texts = [_text_output(method.model, text) for text in task.training_captions]
        for outputs in (videos, texts):
            for output in outputs:
                method.model.zero_grad()
                (output**2).sum().backward()
                for name in names:
                    gradient = method.penalized_parameters()[name].grad
                    if gradient is not None:
                        total[name] = total[name] + gradient.abs() / len(outputs)
        method.end_task(task.pairs)
        for name in names:
            assert total[name].max() > 1e-3
            torch.testing.assert_close(method.importance[name], total[name], rtol=1e-3, atol=1e-5)


def test_unit_vectors_would_give_mas_nothing(backbone: Backbone) -> None:
    method = _start("mas", backbone)
    method.begin_task("one", "one")
    queries, videos = method.embed(_frames(1), TEXTS)
    lengths = (vectors.square().sum() for vectors in (queries, videos))
    assert all(
        omega.max() < 1e-4
        for omega in mean_gradients(lengths, method.penalized_parameters(), torch.abs).values()
    )


# -- SI -------------------------------------------------------------------------------------------------


def _walk(method: Any, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Steps as the loop takes them, but into any direction: gradient of the task's loss, and motion, of one weight."""
    path = []
    weight = dict(method.model.named_parameters())[BIAS]
    for step in range(steps):
        loss = in_task_loss(
            encode_texts(method.model, method.model.tokenize(TEXTS))[0],
            encode_frames(method.model, _frames(step))[0],
            method.config.logit_scale,
        )
        (slope,) = torch.autograd.grad(loss, [weight])
        before = weight.detach().clone()
        method.model.zero_grad()
        method.loss(_frames(step), TEXTS, None).backward()
        assert torch.nn.utils.clip_grad_norm_(method.model.parameters(), 1e-2) > 0.1
        with torch.no_grad():
            weight += 5e-3 * torch.randn_like(weight)
        method.after_step()
        path.append((slope, weight.detach() - before))
    return path


class _SiOfOne(Si):
    def is_penalized(self, name: str) -> bool:
        return name == BIAS


class _RwalkOfOne(Rwalk):
    def is_penalized(self, name: str) -> bool:
        return name == BIAS


def test_the_path_of_si_over_two_tasks(backbone: Backbone) -> None:
    """Equations 3 and 5; neither clipping nor the penalty may reach the gradient that counts."""
    method = _SiOfOne(backbone, SiConfig(penalty=50.0, damping=1e-5, logit_scale=20.0))
    expected = torch.zeros(())
    for number, task in enumerate(("one", "two")):
        start = _weights(method)[BIAS]
        method.begin_task(task, task)
        path = _walk(method, 3)
        omega = sum((-slope * step for slope, step in path), torch.zeros(()))
        torch.testing.assert_close(method.path[BIAS], omega, rtol=1e-3, atol=1e-9)
        assert (omega < 0).any()
        if number:
            assert method.penalty_loss().item() > 1e-6
        moved = _weights(method)[BIAS] - start
        method.end_task()
        expected = expected + omega.clamp(min=0) / (moved**2 + 1e-5)
        torch.testing.assert_close(method.importance[BIAS], expected, rtol=1e-3, atol=1e-6)
        assert not method.path
    assert list(method.importance) == [BIAS]


def test_the_paths_of_all_weights_add_up_to_what_the_loss_lost(backbone: Backbone) -> None:
    method = _start("si", backbone)
    method.begin_task("one", "one")
    optimiser = torch.optim.SGD([p for p in method.model.parameters() if p.requires_grad], lr=1e-5)
    before = method.loss(_frames(1), TEXTS, None).item()
    for _ in range(3):
        optimiser.zero_grad()
        method.loss(_frames(1), TEXTS, None).backward()
        optimiser.step()
        method.after_step()
    lost = before - method.loss(_frames(1), TEXTS, None).item()
    assert lost > 1e-3
    assert sum(float(omega.sum()) for omega in method.path.values()) == pytest.approx(lost, rel=0.1)


# -- RWalk ----------------------------------------------------------------------------------------------


def test_rwalk_against_a_loop_over_two_tasks(backbone: Backbone) -> None:
    """Equations 6 to 8: windows of two steps, of which every task ends with a half one."""
    rate, damping = 0.7, 1e-12
    config = RwalkConfig(penalty=5.0, window=2, fisher_rate=rate, damping=damping, logit_scale=20.0)
    method = _RwalkOfOne(backbone, config)
    fisher: Tensor | None = None
    score: Tensor | None = None
    for task in ("one", "two"):
        method.begin_task(task, task)
        path = _walk(method, 5)
        method.end_task()
        walked = torch.zeros(())
        for window in (path[:2], path[2:4], path[4:]):
            newest = torch.stack([slope**2 for slope, _ in window]).mean(dim=0)
            fisher = newest if fisher is None else fisher
            gain = sum((-slope * step for slope, step in window), torch.zeros(()))
            moved = sum((step for _, step in window), torch.zeros(()))
            walked = walked + gain.clamp(min=0) / (fisher * moved**2 / 2 + damping)
            fisher = rate * newest + (1 - rate) * fisher
        assert fisher is not None
        score = walked if score is None else (score + walked) / 2
        torch.testing.assert_close(method.fisher[BIAS], fisher, rtol=1e-3, atol=1e-10)
        torch.testing.assert_close(method.score[BIAS], score, rtol=1e-2, atol=1e-4)
        importance = method.importance[BIAS]
        torch.testing.assert_close(
            importance, fisher / fisher.max() + score / score.max(), rtol=1e-2, atol=1e-3
        )
        assert importance.max() <= 2


def test_a_window_of_rwalk_ends_with_the_epoch(backbone: Backbone) -> None:
    method = _RwalkOfOne(backbone, RwalkConfig(window=10))
    method.begin_task("one", "one")
    _walk(method, 1)
    assert not method.fisher
    method.after_epoch(())
    assert method.fisher[BIAS].max() > 0
    stored = method.fisher[BIAS].clone()
    method.after_epoch(())
    assert torch.equal(method.fisher[BIAS], stored)


# -- over two tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_penalty_stays_nearer_where_it_matters(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    settings = {"epochs": 6, "batch_size": 4, "learning_rate": 1e-4}
    method = _start(name, backbone, **settings)
    learn_task(method, _task(tmp_path, "one"))
    release = method.release()
    importance, anchor = dict(method.importance), dict(method.anchor)
    distances = []
    for penalty in (0.0, 1e9):
        again = _start(name, backbone, release, penalty=penalty, **settings)
        learn_task(again, _task(tmp_path, "other"))
        now = _weights(again)
        distances.append(sum(float((o * (now[n] - anchor[n]) ** 2).sum()) for n, o in importance.items()))
    assert distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_without_captions_leaves_the_importance_alone(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    method = _start(name, backbone, epochs=1, batch_size=4)
    learn_task(method, _task(tmp_path, "one"))
    before = method.release().tensors
    method.begin_task("bare", "bare", trained=False)
    method.end_task()
    after = method.release().tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_second_task_resumes_to_the_same_bits(name: str, backbone: Backbone, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4}
    if name == "rwalk":
        settings["window"] = 2  # more than the step of an epoch
    method = _start(name, backbone, **settings)
    learn_task(method, _task(tmp_path, "one"))
    release, second = method.release(), _task(tmp_path, "other")
    whole, broken, resumed = (_start(name, backbone, release, **settings) for _ in range(3))
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(broken, second, checkpoints=checkpoints, report=kill_at(2))
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [2]
    expected, found = whole.release().tensors, resumed.release().tensors
    assert expected.keys() == found.keys()
    assert f"importance.{BIAS}" in found
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("ewc", {"penalty": -1.0}, "penalty: "),
        ("ewc", {"fisher_batch": 1}, "fisher_batch: "),
        ("ewc", {"decay": 1.5}, "decay: "),
        ("mas", {"penalty": float("inf")}, "penalty: "),
        ("si", {"damping": 0.0}, "damping: "),
        ("rwalk", {"fisher_rate": 0.0, "window": 0}, "fisher_rate: .*window: "),
        ("rwalk", {"decay": 1.0}, "decay: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure(name, "tiny", settings)


def test_defaults_are_those_of_the_papers() -> None:
    assert (EwcConfig().penalty, MasConfig().penalty) == (2e6, 2.0)
    assert (SiConfig().penalty, SiConfig().damping) == (0.2, 0.1)
    assert (RwalkConfig().penalty, RwalkConfig().fisher_rate, RwalkConfig().window) == (2.0, 0.9, 50)
