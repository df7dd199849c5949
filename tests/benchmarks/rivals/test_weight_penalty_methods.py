"""EWC, AFEC, MAS, SI and RWalk: each importance against loops, the penalties, and the drift over two tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.rivals.weight_penalties import Ewc, Rwalk, RwalkConfig, Si, SiConfig
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    learn_steps,
    random_frames,
    run_steps,
    weights,
    write_task,
)
from trainer.methods.base import in_task_loss
from trainer.methods.shared.weight_penalty import WeightPenaltyMethod, mean_gradients
from trainer.task_data import Clip, Pair, TaskData, load_frames
from trainer.training_loop import learn_task

NAMES = ["ewc", "mas", "rwalk", "si"]
BIAS = "clip.visual.ln_post.bias"  # a small weight on which every video depends


def captioned_task(folder: Path, name: str, captions: int = 1) -> TaskData:
    """Write a task of four videos with several captions each."""
    return write_task(folder, name, [[f"{text} {name} {c}" for c in range(captions)] for text in TEXTS])


def video_output(model: Backbone, clip: Clip) -> Tensor:
    """Return the output ``[dim]`` of open_clip's own forward pass, without normalization."""
    pixels = load_frames([clip])[0].permute(0, 3, 1, 2).float()
    return model.clip.encode_image((pixels - model.mean) / model.std, normalize=False).mean(dim=0)


def text_output(model: Backbone, text: str) -> Tensor:
    ids = model.tokenize([text])
    ids = torch.nn.functional.pad(ids, (0, len(model.text.positional_embedding) - ids.shape[1]))
    return model.clip.encode_text(ids, normalize=False)[0]


class RandomImportance(WeightPenaltyMethod):
    """A method with random importance."""

    name = "random_importance"

    def compute_importance(self, pairs: Any) -> dict[str, Tensor]:
        torch.manual_seed(3)
        return {name: torch.rand_like(weight) for name, weight in self.penalized_parameters().items()}


def test_penalty_loss_equals_a_slow_loop(backbone: Backbone) -> None:
    method = RandomImportance(backbone, RandomImportance.config_class(penalty=3.0))
    method.begin_task("one", "one")
    method.end_task()
    method.begin_task("two", "two")
    with torch.no_grad():
        for weight in method.penalized_parameters().values():
            weight += 0.01 * torch.randn_like(weight)
    expected = 0.0
    for name, weight in method.penalized_parameters().items():
        moved = weight.detach().double() - method.anchor[name].double()
        expected += 3.0 / 2 * float((method.importance[name].double() * moved**2).sum())
    assert expected > 1
    assert "clip.logit_scale" not in method.importance
    assert method.penalty_loss().item() == pytest.approx(expected, rel=1e-4)
    plain = method.task_loss(random_frames(1), TEXTS, None)
    assert method.loss(random_frames(1), TEXTS, None).item() == pytest.approx(
        plain.item() + expected, rel=1e-4
    )
    method.penalty_loss().backward()
    gradient = method.penalized_parameters()[BIAS].grad
    moved_bias = method.penalized_parameters()[BIAS].detach() - method.anchor[BIAS]
    torch.testing.assert_close(gradient, 3.0 * method.importance[BIAS] * moved_bias)


@pytest.mark.parametrize("name", NAMES)
def test_first_task_equals_fine_tuning(name: str, backbone: Backbone, tmp_path: Path) -> None:
    settings = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-4}
    method, plain = create_method(name, backbone, **settings), create_method("finetune", backbone, **settings)
    task = captioned_task(tmp_path, "one")
    for run in (method, plain):
        learn_task(run, task)
    assert all(torch.equal(method.model.tensors()[n], t) for n, t in plain.model.tensors().items())
    assert method.importance.keys() == method.anchor.keys()
    assert all(bool((path_integral >= 0).all()) for path_integral in method.importance.values())
    assert sum(float(path_integral.sum()) for path_integral in method.importance.values()) > 0
    assert torch.equal(method.anchor[BIAS], plain.model.tensors()[BIAS])


def test_mean_gradients_of_polynomials() -> None:
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


def slow_fisher(method: Ewc, pairs: list[Pair], size: int) -> Tensor:
    """Return the Fisher information of one weight, by backward passes through open_clip."""
    method.model.zero_grad()
    total, count = torch.zeros(()), 0
    remaining = [pair.caption for pair in pairs]
    for frames, texts in method.small_batches(pairs, size):
        batch = [next(pair for pair in pairs if pair.caption == text) for text in texts]
        assert torch.equal(frames, load_frames([pair.clip for pair in batch]))
        queries = torch.stack([text_output(method.model, text) for text in texts])
        videos = torch.stack([video_output(method.model, pair.clip) for pair in batch])
        queries, videos = (v / v.norm(dim=-1, keepdim=True) for v in (queries, videos))
        in_task_loss(queries, videos, method.config.logit_scale).backward()
        gradient = method.penalized_parameters()[BIAS].grad
        assert gradient is not None
        total, count = total + gradient**2, count + 1
        gradient.zero_()
        remaining = [text for text in remaining if text not in texts]
    assert not remaining
    assert count == len(pairs) // size
    return total / count


def test_fisher_of_ewc_equals_a_slow_loop_and_is_summed_over_tasks(
    backbone: Backbone, tmp_path: Path
) -> None:
    method = create_method("ewc", backbone, fisher_batch=2, decay=0.5, epochs=1, batch_size=4)
    pairs = [captioned_task(tmp_path, name, captions=2).pairs for name in ("one", "other")]
    method.begin_task("one", "one")
    first = slow_fisher(method, pairs[0], 2)
    method.end_task(pairs[0])
    torch.testing.assert_close(method.importance[BIAS], first, rtol=1e-3, atol=1e-9)
    assert first.max() > 1e-6
    method.record_task("one", "one", TEXTS)
    method.begin_task("two", "two")
    second = slow_fisher(method, pairs[1], 2)
    method.end_task(pairs[1])
    torch.testing.assert_close(method.importance[BIAS], first / 2 + second, rtol=1e-3, atol=1e-9)


def test_importance_of_mas_equals_a_slow_loop(backbone: Backbone, tmp_path: Path) -> None:
    method = create_method("mas", backbone)
    names = [BIAS, "clip.visual.proj", "clip.text_projection", "clip.ln_final.weight"]
    total = {name: torch.zeros(()) for name in names}
    for word in ("one", "other"):
        task = captioned_task(tmp_path, word, captions=2)
        method.begin_task(word, word)
        videos = [video_output(method.model, clip) for clip in task.train]
        texts = [text_output(method.model, text) for text in task.training_captions]
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


def random_walk(method: Any, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Run steps in random directions; return the gradient of the task loss and the update of one weight per step."""
    path = []
    weight = dict(method.model.named_parameters())[BIAS]
    for step in range(steps):
        loss = in_task_loss(
            encode_texts(method.model, method.model.tokenize(TEXTS))[0],
            encode_frames(method.model, random_frames(step))[0],
            method.config.logit_scale,
        )
        (gradient,) = torch.autograd.grad(loss, [weight])
        before = weight.detach().clone()
        method.model.zero_grad()
        method.loss(random_frames(step), TEXTS, None).backward()
        assert torch.nn.utils.clip_grad_norm_(method.model.parameters(), 1e-2) > 0.1
        with torch.no_grad():
            weight += 5e-3 * torch.randn_like(weight)
        method.after_step()
        path.append((gradient, weight.detach() - before))
    return path


class SiOfOneWeight(Si):
    def is_penalized(self, name: str) -> bool:
        return name == BIAS


class RwalkOfOneWeight(Rwalk):
    def is_penalized(self, name: str) -> bool:
        return name == BIAS


def test_path_integral_of_si_over_two_tasks(backbone: Backbone) -> None:
    """Equations 3 and 5 use the gradient of the task loss before clipping and without the penalty."""
    method = SiOfOneWeight(backbone, SiConfig(penalty=50.0, damping=1e-5, logit_scale=20.0))
    expected = torch.zeros(())
    for number, task in enumerate(("one", "two")):
        start = weights(method.model)[BIAS]
        method.begin_task(task, task)
        path = random_walk(method, 3)
        path_integral = sum((-gradient * step for gradient, step in path), torch.zeros(()))
        torch.testing.assert_close(method.path[BIAS], path_integral, rtol=1e-3, atol=1e-9)
        assert (path_integral < 0).any()
        if number:
            assert method.penalty_loss().item() > 1e-6
        moved = weights(method.model)[BIAS] - start
        method.end_task()
        expected = expected + path_integral.clamp(min=0) / (moved**2 + 1e-5)
        torch.testing.assert_close(method.importance[BIAS], expected, rtol=1e-3, atol=1e-6)
        assert not method.path
    assert list(method.importance) == [BIAS]


def test_importance_of_rwalk_equals_a_slow_loop_over_two_tasks(backbone: Backbone) -> None:
    """Equations 6 to 8 with windows of two steps, the last of each task with one step."""
    rate, damping = 0.7, 1e-12
    config = RwalkConfig(penalty=5.0, window=2, fisher_rate=rate, damping=damping, logit_scale=20.0)
    method = RwalkOfOneWeight(backbone, config)
    fisher: Tensor | None = None
    score: Tensor | None = None
    for task in ("one", "two"):
        method.begin_task(task, task)
        path = random_walk(method, 5)
        method.end_task()
        walked = torch.zeros(())
        for window in (path[:2], path[2:4], path[4:]):
            newest = torch.stack([gradient**2 for gradient, _ in window]).mean(dim=0)
            fisher = newest if fisher is None else fisher
            gain = sum((-gradient * step for gradient, step in window), torch.zeros(()))
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


BIAS = "clip.visual.ln_post.bias"  # a small weight on which every video depends


def afec_in_second_task(backbone: Backbone, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Return AFEC at the start of its second task, and the data of this task."""
    first, second = (
        write_task(folder, name, [[f"{text} {name}"] for text in TEXTS]) for name in ("one", "two")
    )
    method = create_method("afec", backbone, epochs=1, batch_size=4, fisher_batch=2, **settings)
    learn_task(method, first)
    method.begin_task("two", "two")
    return method, second


def test_first_task_is_that_of_ewc(backbone: Backbone) -> None:
    afec, ewc = (create_method(name, backbone) for name in ("afec", "ewc"))
    for method in (afec, ewc):
        learn_steps(method, "one", range(3))
    assert afec.fingerprint() == ewc.fingerprint()
    assert afec.expanded is None
    assert not any(name.startswith("expanded.") for name in afec.release().tensors)


def test_loss_equals_equation_10_by_a_slow_loop(backbone: Backbone, tmp_path: Path) -> None:
    method, task = afec_in_second_task(backbone, tmp_path, penalty=3e2, expansion_penalty=20.0)
    run_steps(method, range(3))
    assert method.convergence_loss().item() == 0, "the first epoch has no second penalty"
    method.begin_epoch(1, task.pairs)
    anchor = weights(method.expanded)
    # F_e, by one backward pass per small batch.
    fisher = {name: torch.zeros_like(weight).double() for name, weight in anchor.items()}
    batches = list(method.small_batches(task.pairs, 2))
    for frames, texts in batches:
        method.expanded.zero_grad()
        in_task_loss(*method.embed(frames, texts, method.expanded), method.config.logit_scale).backward()
        for name, weight in method.expanded.named_parameters():
            if weight.grad is not None:
                fisher[name] += weight.grad.double() ** 2 / len(batches)
    assert fisher[BIAS].max() > 1e-6
    torch.testing.assert_close(method.expanded_fisher[BIAS].double(), fisher[BIAS], rtol=1e-3, atol=1e-9)
    run_steps(method, range(3, 5))  # θ and θ_e move on; the penalty keeps the θ_e of the end of the epoch
    assert not torch.equal(weights(method.expanded)[BIAS], anchor[BIAS])
    old = new = 0.0
    for name, weight in weights(method.model).items():
        moved = weight.double()
        new += float((fisher[name] * (moved - anchor[name].double()) ** 2).sum())
        if name in method.importance:
            distance = (moved - method.anchor[name].double()) ** 2
            old += float((method.importance[name].double() * distance).sum())
    frames = random_frames(9)
    task_loss, expansion = (
        in_task_loss(*method.embed(frames, TEXTS, model), method.config.logit_scale).item()
        for model in (method.model, method.expanded)
    )
    assert min(old, new) > 1e-6
    assert method.convergence_loss().item() == pytest.approx(20.0 / 2 * new, rel=1e-3)
    expected = task_loss + 3e2 / 2 * old + 20.0 / 2 * new + expansion
    assert method.loss(frames, TEXTS, None).item() == pytest.approx(expected, rel=1e-4)
