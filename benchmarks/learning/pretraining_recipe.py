"""Pre-train the ``tiny`` backbone: contrastive learning on the video world's plain domains.

Two frames per clip are rendered directly, and no clip is used twice. No benchmark or demo domain is used; the clips
share only primitive shapes, motions and everyday words with those.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.data.world import render, sample_pretraining_clip
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.tower_computation import mixed_precision
from models.encoders.tower_forward import encode_frames, encode_texts

_MAX_SCALE = 100.0  # CLIP's bound on 1/τ, which keeps early training stable


@dataclass(frozen=True)
class PretrainingRecipe:
    """Settings for pre-training; the defaults are those of the committed weights."""

    steps: int = 4800
    batch_size: int = 128
    frames: int = 2  # per clip, one from each half, so that changes over time are visible
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    seed: int = 7


class _PretrainingClips(IterableDataset[tuple[npt.NDArray[np.uint8], str]]):
    """An endless stream of (frames ``[M, H, W, 3]``, caption), seeded per worker process."""

    def __init__(self, recipe: PretrainingRecipe, size: int) -> None:
        self._recipe = recipe
        self._size = size

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.uint8], str]]:
        worker = get_worker_info()
        rng = np.random.default_rng([self._recipe.seed, worker.id if worker else 0])
        count = self._recipe.frames
        while True:
            clip = sample_pretraining_clip(rng)
            times = (np.arange(count) + rng.random(count)) / count
            yield render(clip.scene, size=self._size, times=times.tolist()), str(rng.choice(clip.captions))


def pretrain(
    destination: Path,
    recipe: PretrainingRecipe | None = None,
    *,
    device: str = "cpu",
    workers: int = 1,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train ``tiny`` from random weights and write its weights.

    Args:
        destination: Safetensors file to write.
        recipe: Settings; by default those of the committed weights.
        workers: Number of rendering processes. Each has its own clips, so the weights depend on how many there are.
        report: Called every 20 steps with the step and the mean loss since the previous call.
    """
    recipe = recipe or PretrainingRecipe()
    torch.manual_seed(recipe.seed)
    backbone = tiny_backbone().to(device).requires_grad_(True).train()
    loader = iter(
        DataLoader(
            _PretrainingClips(recipe, backbone.spec.size),
            batch_size=recipe.batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )
    )
    matrices = [p for p in backbone.parameters() if p.ndim >= 2]
    vectors = [p for p in backbone.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, recipe))
    truth = torch.arange(recipe.batch_size, device=device)
    total = 0.0
    for step in range(1, recipe.steps + 1):
        frames, captions = next(loader)
        with mixed_precision():
            videos, _ = encode_frames(backbone, frames.to(device))
            texts = encode_texts(backbone, backbone.tokenize(captions))[0]
        similarity = backbone.clip.logit_scale.exp() * texts @ videos.T
        loss = (F.cross_entropy(similarity, truth) + F.cross_entropy(similarity.T, truth)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            backbone.clip.logit_scale.clamp_(0, math.log(_MAX_SCALE))
        total += loss.item()
        if step % 20 == 0:
            report(step, total / 20)
            total = 0.0
    save_file(
        {name: t.detach().cpu().contiguous() for name, t in backbone.clip.state_dict().items()}, destination
    )


def _factor(step: int, recipe: PretrainingRecipe) -> float:
    """Compute the learning rate factor: linear warm-up, then cosine decay to zero."""
    warm = recipe.warmup * recipe.steps
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (recipe.steps - warm)))


def main() -> None:
    """Parse the command line and train, with a line of progress every 20 steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("models/backbones/tiny/weights.safetensors"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="number of processes that render videos")
    parser.add_argument("--steps", type=int, default=PretrainingRecipe.steps)
    options = parser.parse_args()

    def report(step: int, loss: float) -> None:
        sys.stderr.write(f"step {step} of {options.steps}, loss {loss:.3f}\n")

    options.out.parent.mkdir(parents=True, exist_ok=True)
    pretrain(
        options.out,
        PretrainingRecipe(steps=options.steps),
        device=options.device,
        workers=options.workers,
        report=report,
    )


if __name__ == "__main__":
    main()
