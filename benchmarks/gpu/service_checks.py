"""Check the service on a device: a batch that does not fit in memory, decoding, and searches with texts encoded on it.

Such a batch is learned in parts or, undivided, fails with a clear error.
"""

from __future__ import annotations

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan
from benchmarks.gpu.tower_checks import draw_frames, make_captions
from benchmarks.ingest.clip_files import write_ordinary_clips
from benchmarks.search.search_cost import K, compare_latency, start_engine
from benchmarks.search.synthetic_library import make_library, prepare_catalog
from cinestrata_schemas.tasks import TaskSpec
from media.media_paths import content_hash, frame_cache_path
from media.video_decoder import VideoDecoder
from media.video_limits import VideoInfo
from models.backbones.backbone_loading import load_backbone
from models.backbones.tower_computation import compute_device
from service.core.settings import settings
from service.tasks import commands, lifecycle, probing
from trainer import training_loop
from trainer.training_memory import MemoryPlan
from trainer.worker import job_environment, learning_job

_GIB = 1024**3
_VIDEOS, _CAPTIONS = 32, 32  # as many pairs as the largest batch
_BATCH = 1024  # pairs


def check_out_of_memory(plan: GpuPlan) -> Figures:
    """Learn two tasks with a batch of 1024 pairs in one process with little memory: undivided, then in parts."""
    backbone = "tiny" if plan.device == "cpu" else plan.backbone_name(plan.models[0])
    prepare_catalog(plan.folder / "memory", backbone)
    with patch.object(probing, "VideoDecoder", _DrawnFrames):
        undivided, divided = _post("undivided"), _post("divided")
    # Before memory is limited, as in a worker that had a task before.
    job_environment.task_backbone(undivided)
    _limit_memory(plan)
    figures: Figures = {"memory_gib": plan.memory_gib}
    with patch.object(training_loop, "plan_memory", lambda *_, **__: MemoryPlan(None, 0, 0)):
        learning_job.run_learning_job(undivided)
    failed = commands.get_task(undivided)
    figures |= {"error": failed.error, "hint": failed.error_hint}
    if failed.state != "failed" or "memory" not in str(failed.error).lower() or not failed.error_hint:
        raise CheckFailed(f"the undivided batch is {failed.state}, without an error about memory", figures)
    learning_job.run_learning_job(divided)
    learned = commands.get_task(divided)
    figures["peak_memory_gib"] = round((learned.progress.peak_memory or 0) / _GIB, 2)
    if learned.state != "ready":
        raise CheckFailed(f"the next task of this worker is {learned.state}: {learned.error}", figures)
    return figures


def _post(name: str) -> str:
    """Create a probed task whose frames are drawn, and return its ID."""
    folder = settings().media_root / name
    folder.mkdir(parents=True)
    texts = make_captions(_VIDEOS * _CAPTIONS)
    entries: list[dict[str, Any]] = []
    for number in range(_VIDEOS):
        (folder / f"{number}.mp4").write_bytes(f"{name} {number}".encode())
        entries.append({"uri": f"{name}/{number}.mp4", "captions": texts[number::_VIDEOS], "split": "train"})
    training = {"epochs": 1, "batch_size": _BATCH, "max_steps": 1}
    spec = {"name": name, "method": "ffa_tame", "settings": training, "videos": entries}
    task = commands.create_task(TaskSpec.model_validate(spec)).task.id
    claim = lifecycle.claim_probing(task, "gpu-check")
    if claim is None:
        raise CheckFailed("the task cannot be claimed")
    with claim:
        probing.probe(claim)
    return task


def _limit_memory(plan: GpuPlan) -> None:
    """Limit this process to the planned memory: of the GPU, or on a CPU, beyond what it already has."""
    device = compute_device(plan.device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, plan.memory_gib * _GIB / total))
        return
    used = Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]  # in KiB
    limit = 1024 * int(used) + int(plan.memory_gib * _GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


class _DrawnFrames(VideoDecoder):
    """A decoder that draws the frames of any file, so that the check needs no codecs."""

    def decode(self, path: Path, *, frames: int, size: Any, cache: Path | None = None, **_: Any) -> VideoInfo:  # type: ignore[override]
        digest = content_hash(path)
        if cache is not None:
            file = frame_cache_path(cache, frames, size, digest)
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, draw_frames(int(digest[:8], 16), frames, size))
        kind = {"container": "drawn", "codec": "drawn", "width": size, "height": size}
        extent = {"fps": 1.0, "duration": float(frames), "frames": frames}
        return VideoInfo(content_hash=digest, bytes=path.stat().st_size, **kind, **extent)  # type: ignore[arg-type]


def measure_decoding(plan: GpuPlan) -> Figures:
    """Measure how many clips of ten seconds the machine decodes per second, with one decoder for each core."""
    cores = len(os.sched_getaffinity(0))
    paths = write_ordinary_clips(plan.folder / "clips", 2)

    def decode(decoder: VideoDecoder) -> None:
        for path in paths:
            decoder.decode(path, frames=plan.frames, size=224)

    with ExitStack() as stack, ThreadPoolExecutor(cores) as threads:
        decoders = [stack.enter_context(VideoDecoder()) for _ in range(cores)]
        list(threads.map(decode, decoders))  # starts the processes
        began = time.perf_counter()
        list(threads.map(decode, decoders))
        seconds = (time.perf_counter() - began) / (cores * len(paths))
    return {"clips_per_second": round(1 / seconds, 1), "core_seconds_per_clip": round(seconds * cores, 3)}


_ROUNDS = 3
_COMPARED = 50  # searches
_MIN_AGREEMENT = 0.9  # share of the CPU's first results; rounding may swap near ties


def measure_searches(plan: GpuPlan) -> Figures:
    """Measure median latency with the text tower on the CPU and on the device in turns."""
    name = plan.backbone_name(plan.models[0])
    root = plan.folder / "searches"
    prepare_catalog(root, name)
    library = make_library(
        root / "library",
        load_backbone(name),
        tasks=plan.searched_domains,
        videos=plan.searched_vectors // plan.searched_domains,
        queries=plan.searches + _COMPARED,
    )
    on_cpu, on_device = start_engine(library), start_engine(library, query_device=plan.device)
    texts = [query.text for query in library.queries[: plan.searches]]
    compared = library.queries[plan.searches :]
    cpu, device = compare_latency(
        lambda text: on_cpu.search(text, K), lambda text: on_device.search(text, K), texts, _ROUNDS
    )
    answers = [
        [{result.video_id for result in engine.search(query.text, K).results} for query in compared]
        for engine in (on_cpu, on_device)
    ]
    agreement = sum(len(one & other) for one, other in zip(*answers, strict=True)) / sum(map(len, answers[0]))
    figures: Figures = {
        "vectors": library.vectors,
        "domains": library.tasks,
        "cpu_p50_ms": round(cpu.p50, 2),
        "p50_ms": round(device.p50, 2),
        "p99_ms": round(device.p99, 2),
        "agreement_at_10": round(agreement, 3),
    }
    if agreement < _MIN_AGREEMENT:
        raise CheckFailed("searches on the device do not find what those on the CPU find", figures)
    return figures
