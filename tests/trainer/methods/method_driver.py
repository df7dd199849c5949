"""Helpers that drive learning methods on random videos and a very small backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals import METHODS, start_method
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec, TextBackground
from models.backbones.open_clip_backbone import OpenClipBackbone, small_tokenizer
from models.releases.release_state import Array, ReleaseState
from trainer.methods import Method
from trainer.task_data import Clip, Split, TaskData
from trainer.training_loop import TrainingProgress

FRAMES, SIDE = 2, 16  # frames per video and their size in pixels
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]

_CONTEXT, _VOCABULARY = 32, 8192
_DIM = 16  # coordinates of the joint space
_SEMANTIC, _RESERVED = 10, 128  # those of a ReservedBackbone
#: Small values of settings that determine the cost of a step; a method uses those that it has.
_SMALL_SETTINGS: dict[str, Any] = {
    "dropout": 0.0,
    "experts": 3,
    "fusion_layers": 1,
    "image_rank": 2,
    "memory": 4,
    "queue": 5,
    "rank": 2,
    "replay_batch": 2,
    "selector_width": 4,
    "sentences": 5,
    "words": 3,
}


class InterruptedTraining(BaseException):
    """Simulates the end of the process during training; no handler of the product catches it."""


def interrupt_at(step: int) -> Callable[[TrainingProgress], None]:
    """Return a progress listener that ends training after a step."""

    def report(progress: TrainingProgress) -> None:
        if progress.step == step:
            raise InterruptedTraining

    return report


class ReservedBackbone(OpenClipBackbone):
    """A backbone with coordinates that its weights never use, and a distribution of generic texts."""

    @property
    def semantic_dim(self) -> int:
        return _SEMANTIC

    @property
    def text_background(self) -> TextBackground:
        return TextBackground(np.full(_SEMANTIC, 0.05, np.float32), 10 * np.eye(_SEMANTIC, dtype=np.float32))


def random_backbone(seed: int = 0) -> Backbone:
    """Return an untrained CLIP with two blocks of width 32 per tower, which uses the recipes of ``tiny``."""
    return _wrap(OpenClipBackbone, _random_clip(seed))


def reserved_backbone(seed: int = 0) -> Backbone:
    """Return a :func:`random_backbone` whose last coordinates are zero, as those of ``small``."""
    clip = _random_clip(seed, _SEMANTIC + _RESERVED)
    with torch.no_grad():
        clip.visual.proj[:, -_RESERVED:] = 0
        clip.text_projection[:, -_RESERVED:] = 0
    return _wrap(ReservedBackbone, clip)


def _random_clip(seed: int, dim: int = _DIM) -> Any:
    torch.manual_seed(seed)
    return CLIP(
        embed_dim=dim,
        vision_cfg={"image_size": SIDE, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2},
        text_cfg={
            "context_length": _CONTEXT,
            "vocab_size": _VOCABULARY,
            "width": 32,
            "heads": 2,
            "layers": 2,
        },
    )


def _wrap(backbone_class: type[OpenClipBackbone], clip: Any) -> Backbone:
    tokenizer = small_tokenizer(_VOCABULARY, _CONTEXT)
    spec = FrameSpec(FRAMES, SIDE)
    return backbone_class("tiny", clip, tokenizer, spec, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def random_frames(seed: int, videos: int = len(TEXTS)) -> Tensor:
    """Return frames of random pixels, ``uint8 [videos, FRAMES, SIDE, SIDE, 3]``."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (videos, FRAMES, SIDE, SIDE, 3), dtype=np.uint8))


def random_unit_vectors(count: int, dim: int = 5) -> Tensor:
    return F.normalize(torch.randn(count, dim), dim=-1)


def write_task(
    folder: Path,
    name: str,
    captions: Sequence[Sequence[str]],
    splits: Sequence[Split] = (),
    first_id: int = 0,
    *,
    side: int = SIDE,
    identical: bool = False,
) -> TaskData:
    """Write random videos and return their task.

    Args:
        folder: Folder of the frame files.
        name: Identifier and name of the task; determines the frames.
        captions: Captions of each video.
        splits: Split of the first videos; the others are training videos.
        first_id: Vector ID of the first video.
        side: Height and width of the frames in pixels.
        identical: Whether all videos have the same frames.
    """
    clips = []
    for number, texts in enumerate(captions):
        path = folder / f"{name}-{number}.npy"
        rng = np.random.default_rng([*name.encode(), 0 if identical else number])
        np.save(path, rng.integers(0, 256, (FRAMES, side, side, 3), dtype=np.uint8))
        split = splits[number] if number < len(splits) else "train"
        clips.append(Clip(f"{name}-{number}", first_id + number, path, tuple(texts), split))
    return TaskData(name, name, tuple(clips))


def create_method(
    name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any
) -> Any:
    """Return a method with small settings, which ``settings`` override."""
    fields = METHODS[name].config_class.model_fields
    small = {key: value for key, value in _SMALL_SETTINGS.items() if key in fields}
    return start_method(name, backbone, {**small, **settings}, previous)


def run_steps(
    method: Method,
    seeds: Iterable[int],
    optimizer: torch.optim.Optimizer | None = None,
    texts: Sequence[str] = TEXTS,
) -> None:
    """Run one training step per seed; a seed determines the frames of its step."""
    optimizer = optimizer or torch.optim.AdamW(method.parameter_groups())
    for seed in seeds:
        optimizer.zero_grad()
        method.loss(random_frames(seed, len(texts)), texts, None).backward()
        optimizer.step()
        method.after_step()


def learn_steps(method: Method, task: str, seeds: Iterable[int], texts: Sequence[str] = TEXTS) -> None:
    """Learn a task of a few steps without training data on disk."""
    method.begin_task(task, task)
    if method.is_closed_form:
        for seed in seeds:
            method.observe(random_frames(seed, len(texts)), [[text] for text in texts])
    elif method.is_trainable:
        method.train(True)
        run_steps(method, seeds, texts=texts)
        method.train(False)
    method.end_task()
    method.record_task(task, task, texts)


def index_task(method: Method, task: str) -> None:
    """Add a task without captions, which is not trained."""
    method.begin_task(task, task, trained=False)
    method.end_task()
    method.record_task(task, task, [])


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def equal_tensors(left: Mapping[str, Array | Tensor], right: Mapping[str, Array | Tensor]) -> bool:
    """Return whether two mappings have the same names and the same values."""
    assert left.keys() == right.keys()
    return all(np.array_equal(np.asarray(left[name]), np.asarray(right[name])) for name in left)


def replay_method(name: str, backbone: Backbone, release: ReleaseState | None = None, **settings: Any) -> Any:
    """Return a method with a memory of six pairs; all of them fit into two batches."""
    small = {"replay_batch": 3} if "replay_batch" in METHODS[name].config_class.model_fields else {}
    return create_method(name, backbone, release, **{"batch_size": 4, "memory": 6, **small, **settings})


def begin_second_task(method: Any, pairs: int = 2) -> tuple[Tensor, list[str]]:
    """Fill the memory with pairs of one past task, change the model, and begin the next task.

    Returns:
        Frames and captions of the past pairs.
    """
    method.begin_task("one", "one")
    frames, texts = random_frames(7, pairs), ["an old triangle", "an older line"][:pairs]
    rows = {"frames": frames, "ids": method.tokenize(texts), "tasks": torch.zeros(pairs, dtype=torch.int64)}
    if method.stores_vectors:
        queries, videos = method.embed(frames, texts)
        rows |= {"queries": queries.detach(), "videos": videos.detach()}
    method.memory.add_to_ring(rows)
    method.end_task()
    method.record_task("one", "one", texts)
    scale_projections(method.model, seed=3)
    method.begin_task("two", "two")
    return frames, texts


@torch.no_grad()
def scale_projections(model: Backbone, seed: int) -> None:
    """Change both projections into the joint space by random factors around 1."""
    for projection in (model.clip.text_projection, model.clip.visual.proj):
        projection.mul_(1 + 0.3 * torch.randn(model.dim, generator=torch.Generator().manual_seed(seed)))
