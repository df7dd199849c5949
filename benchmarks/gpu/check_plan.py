"""Sizes of the checks: realistic for a GPU, and small enough for a CPU to run the same code in a minute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.check_runner import Skipped


class TrainingSize(NamedTuple):
    """Size of a measured training run.

    Attributes:
        model: Model name in open_clip.
        method: Method that is trained.
        batch: Pairs per step.
        steps: Steps in each of two epochs, of which the second is measured.
    """

    model: str
    method: str
    batch: int
    steps: int


@dataclass(frozen=True)
class GpuPlan:
    """Sizes of all checks; the defaults fit a GPU with 80 GB.

    Attributes:
        device: ``cuda`` or ``cpu``.
        folder: Folder for checkpoints, frames and libraries.
        frames: Frames per video; 12, as in both papers' tables on MSR-VTT.
        models: Model names in open_clip, smallest first.
        searches: Searches for measuring latency; twice as many measure capacity.
        clients: Concurrent clients for measuring capacity.
        memory_gib: Memory of the worker that runs out of it.
    """

    device: str
    folder: Path
    frames: int = 12
    models: tuple[str, ...] = ("ViT-B-32", "ViT-L-14")
    embedded_videos: int = 256
    trainings: tuple[TrainingSize, ...] = (
        TrainingSize("ViT-B-32", "ffa_tame", 8, 60),
        TrainingSize("ViT-B-32", "bmu_moco", 48, 15),
        TrainingSize("ViT-L-14", "ffa_tame", 8, 20),
        TrainingSize("ViT-L-14", "bmu_moco", 12, 12),
    )
    scanned_vectors: tuple[int, ...] = (10**6, 10**7)
    searched_vectors: int = 100_000
    searched_domains: int = 10
    searches: int = 200
    clients: int = 16
    memory_gib: float = 8

    def backbone_name(self, model: str) -> str:
        """Name the backbone of a model with random weights; raise Skipped if its checkpoint was not written."""
        weights = self.folder / model / "open_clip_model.safetensors"
        if not weights.exists():
            raise Skipped(f"there is no checkpoint of {model}")
        return f"open_clip:{model}/{weights}"


def plan_checks(device: str, folder: Path) -> GpuPlan:
    """Choose the sizes for a device, ``cuda`` or ``cpu``."""
    plan = GpuPlan(device, folder)
    if device == "cuda":
        return plan
    model = "ViT-S-32-alt"
    return replace(
        plan,
        frames=2,
        models=(model,),
        embedded_videos=4,
        trainings=(TrainingSize(model, "ffa_tame", 2, 2), TrainingSize(model, "bmu_moco", 2, 2)),
        scanned_vectors=(5000,),
        searched_vectors=400,
        searched_domains=2,
        searches=50,
        clients=2,
        memory_gib=1.5,
    )
