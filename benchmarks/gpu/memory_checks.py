"""A batch that does not fit the memory fails its task with a clear error; the worker learns the next task."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.gpu.check_plan import GpuPlan
from benchmarks.gpu.check_runner import CheckFailed, Figures
from benchmarks.gpu.drawn_frames import draw_frames, make_captions
from benchmarks.gpu.service_process import fresh_library
from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from media.media_paths import content_hash, frame_cache_path
from media.video_decoder import VideoDecoder
from media.video_limits import VideoInfo
from models.backbones.tower_computation import compute_device
from service.core.settings import settings
from service.tasks import commands, lifecycle, probing
from trainer.worker import job_environment, learning_job

_GIB = 1024**3
_VIDEOS, _CAPTIONS = 32, 32  # as many pairs as the largest batch
_LARGE, _SMALL = 1024, 4  # pairs of a batch


def check_out_of_memory(plan: GpuPlan) -> Figures:
    """Learn a task with a batch of 1024 pairs in little memory, then one with a batch of 4 in the same process."""
    backbone = "tiny" if plan.device == "cpu" else plan.backbone_name(plan.models[0])
    fresh_library(plan, "memory", backbone)
    with patch.object(probing, "VideoDecoder", _DrawnFrames):
        large = _post("large", videos=_VIDEOS, captions=_CAPTIONS, batch=_LARGE)
        small = _post("small", videos=_SMALL, captions=1, batch=_SMALL)
    job_environment.task_backbone()  # loaded before the memory is limited, as by a worker with an earlier task
    _limit_memory(plan)
    figures: Figures = {"memory_gib": plan.memory_gib}
    learning_job.run_learning_job(large)
    failed = commands.get_task(large)
    figures |= {"error": failed.error, "hint": failed.error_hint}
    if failed.state != "failed" or "memory" not in str(failed.error).lower() or not failed.error_hint:
        raise CheckFailed(
            f"the task of the large batch is {failed.state}, without an error about memory", figures
        )
    learning_job.run_learning_job(small)
    learned = commands.get_task(small)
    if learned.state != "ready":
        raise CheckFailed(f"the next task of this worker is {learned.state}: {learned.error}", figures)
    return figures


def _post(name: str, *, videos: int, captions: int, batch: int) -> str:
    """Id of a probed task whose frames are drawn."""
    folder = settings().media_root / name
    folder.mkdir()
    texts = make_captions(videos * captions)
    entries: list[dict[str, Any]] = []
    for number in range(videos):
        (folder / f"{number}.mp4").write_bytes(f"{name} {number}".encode())
        entries.append(
            {"uri": f"{name}/{number}.mp4", "captions": texts[number::videos], "split": "train"},
        )
    spec = TaskSpec.model_validate(
        {
            "name": name,
            "method": "ffa_tame",
            "settings": {"epochs": 1, "batch_size": batch, "max_steps": 2},
            "videos": entries,
        }
    )
    task: TaskDetails = commands.create_task(spec).task
    claim = lifecycle.claim_probing(task.id, "gpu-check")
    if claim is None:
        raise CheckFailed("the task cannot be claimed")
    with claim:
        probing.probe(claim)
    return task.id


def _limit_memory(plan: GpuPlan) -> None:
    """Let this process have only as much memory as the plan says: of the GPU, or beyond what it has on a CPU."""
    device = compute_device(plan.device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, plan.memory_gib * _GIB / total))
        return
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")
    )
    limit = 1024 * int(line.split()[1]) + int(plan.memory_gib * _GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


class _DrawnFrames(VideoDecoder):
    """A decoder that draws the frames of any file, so that the check needs no codecs."""

    def decode(self, path: Path, *, frames: int, size: int, cache: Path | None = None, **_: Any) -> VideoInfo:  # type: ignore[override]
        digest = content_hash(path)
        if cache is not None:
            file = frame_cache_path(cache, frames, size, digest)
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, draw_frames(int(digest[:8], 16), frames, size))
        return VideoInfo(
            content_hash=digest,
            bytes=os.stat(path).st_size,
            container="drawn",
            codec="drawn",
            width=size,
            height=size,
            fps=1.0,
            duration=float(frames),
            frames=frames,
        )
