"""Check that towers, adapters and maps give equal vectors on device and CPU; measure embedding and training."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import profile

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan, Skipped, TrainingSize
from benchmarks.learning.sequential_learning import ResourceMeter
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.tower_computation import compute_device, has_fast_bfloat16, mixed_precision
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.tower_forward import encode_frames, encode_texts
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import read_release, write_release
from models.releases.release_state import ReleaseState
from trainer.methods import Method, start_method
from trainer.task_data import Clip, TaskData
from trainer.training_loop import TrainingProgress, fit, learn_task
from trainer.training_replicas import training_group

_SUBJECTS = ("taxi", "boat", "dog", "kite", "lamp", "train", "bird", "clock")
_COLORS = ("red", "blue", "green", "white", "black", "yellow")
_PLACES = ("harbour", "market", "field", "station", "kitchen", "garden", "bridge")


def make_captions(count: int) -> list[str]:
    """Write distinct captions: three words that vary, and a number."""
    return [
        f"a {_COLORS[n % 6]} {_SUBJECTS[n % 8]} moves through the {_PLACES[n % 7]}, take {n}"
        for n in range(count)
    ]


def write_task(folder: Path, backbone: Backbone, videos: int, captions: Sequence[str]) -> TaskData:
    """Write a task of training videos with random frames of a backbone's size that share the captions."""
    folder.mkdir(parents=True, exist_ok=True)
    frames, size = backbone.spec.frames, backbone.spec.shape[0]
    clips = []
    for number in range(videos):
        path = folder / f"{frames}x{size}-{number}.npy"
        if not path.exists():
            np.save(path, draw_frames(number, frames, size))
        clips.append(Clip(f"drawn-{number}", number, path, tuple(captions[number::videos]), "train"))
    return TaskData("drawn", "drawn", tuple(clips))


def draw_frames(seed: int, frames: int, size: int) -> np.ndarray:
    """Draw random frames ``uint8 [frames, size, size, 3]`` in coarse squares that differ between videos."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 256, (frames, 7, 7, 3), dtype=np.uint8)
    rows = np.arange(size) * 7 // size
    return cells[:, rows][:, :, rows]


Vectors = npt.NDArray[np.float32]

# Lowest cosine between two unit vectors of the same input. A GPU computes patch embeddings in TensorFloat-32 (10 bits).
FLOAT32_COSINE = 0.9999
BFLOAT16_COSINE = 0.99
_METHODS = ("analytic", "ffa_tame", "strata", "bmu_moco")
_FEW = 4  # compared videos and texts


def check_towers(plan: GpuPlan, model: str) -> Figures:
    """Check both frozen towers' vectors on the device and on the CPU, in float32 and in bfloat16."""
    backbone = load_backbone(plan.backbone_name(model), plan.frames)
    frames = torch.from_numpy(
        np.stack([draw_frames(n, backbone.spec.frames, backbone.spec.shape[0]) for n in range(_FEW)])
    )
    texts = make_captions(_FEW)
    expected = _encode(backbone, frames, texts)
    backbone.to(compute_device(plan.device))
    figures: Figures = {}
    for precision, lowest in (("float32", FLOAT32_COSINE), ("bfloat16", BFLOAT16_COSINE)):
        with mixed_precision(enabled=precision == "bfloat16"):
            encoded = _encode(backbone, frames, texts)
        for kind in expected:
            _compare(f"{kind}_{precision}", expected[kind], encoded[kind], lowest, figures)
    return figures


def check_releases(plan: GpuPlan) -> Figures:
    """Check that a release learned on either device encodes alike on both, and that closed-form maps are equal."""
    figures: Figures = {}
    backbones = {name: load_backbone("tiny").to(compute_device(name)) for name in ("cpu", plan.device)}
    task = write_task(plan.folder / "releases", backbones["cpu"], 12, make_captions(12))
    for name in _METHODS:
        learned = {}
        for device, backbone in backbones.items():
            settings = {"epochs": 1, "precision": "float32"} if name != "analytic" else {}
            method = start_method(name, backbone, settings, None)
            learn_task(method, task)
            learned[device] = _reread(plan, method.release(), f"{name}-{device}")
            encoded = {on: _encode_release(other, learned[device], task) for on, other in backbones.items()}
            for kind, expected in encoded["cpu"].items():
                label = f"{name}_learned_on_{device}_{kind}"
                _compare(label, expected, encoded[plan.device][kind], FLOAT32_COSINE, figures)
        if name == "analytic":
            on_cpu, on_device = (
                _encode_release(backbones["cpu"], learned[device], task) for device in ("cpu", plan.device)
            )
            for kind, expected in on_cpu.items():
                _compare(f"analytic_map_{kind}", expected, on_device[kind], FLOAT32_COSINE, figures)
    return figures


def measure_embedding(plan: GpuPlan, model: str) -> Figures:
    """Measure how many videos per second the frozen image tower embeds, in a worker's way; the second run counts."""
    device = compute_device(plan.device)
    backbone = load_backbone(plan.backbone_name(model), plan.frames).to(device)
    count = plan.embedded_videos
    task = write_task(plan.folder / "frames", backbone, count, make_captions(count))
    method = start_method("zero_shot", backbone, {}, None)
    meter = ResourceMeter(device)
    for _ in range(2):
        with meter.phase("embedding"), torch.inference_mode():
            vectors = method.embed_videos(task.clips)
    figures = {
        "videos_per_second": round(count / meter.seconds["embedding"][-1], 2),
        "videos": count,
        "frames": backbone.spec.frames,
        "peak_memory_gib": round(meter.peak_gib("embedding"), 2),
    }
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
        raise CheckFailed("the vectors are not unit vectors", figures)
    return figures


@torch.inference_mode()
def _encode(backbone: Backbone, frames: torch.Tensor, texts: list[str]) -> dict[str, Vectors]:
    videos = encode_frames(backbone, frames)[0]
    encoded_texts = encode_texts(backbone, backbone.tokenize(texts))[0]
    return {"videos": videos.float().cpu().numpy(), "texts": encoded_texts.float().cpu().numpy()}


def _encode_release(backbone: Backbone, release: ReleaseState, task: TaskData) -> dict[str, Vectors]:
    pinned = {task.task_id: release}
    queries = open_query_encoder(backbone, release, pinned)
    videos = VideoEncoder(backbone, {task.task_id: release.fingerprint}, pinned)
    frames = torch.from_numpy(np.stack([np.load(clip.frames_path) for clip in task.clips[:_FEW]]))
    return {
        "videos": videos.encode(frames, [task.task_id])[:, 0],
        "texts": queries.encode(make_captions(_FEW), [task.task_id], queries.modes[-1])[:, 0],
    }


def _reread(plan: GpuPlan, release: ReleaseState, name: str) -> ReleaseState:
    """Read the release back as another process would."""
    folder = plan.folder / "written" / name
    folder.mkdir(parents=True)
    write_release(folder, release)
    return read_release(folder)


def _compare(name: str, expected: Vectors, vectors: Vectors, lowest: float, figures: Figures) -> None:
    """Record the lowest cosine between the rows of two arrays of unit vectors; raise CheckFailed if it is too low."""
    if not np.isfinite(vectors).all():
        raise CheckFailed(f"{name}: the device computes vectors that are not finite", figures)
    cosine = float((expected * vectors).sum(axis=1).min())
    figures[f"{name}_cosine"] = round(cosine, 7)
    figures[f"{name}_difference"] = float(f"{np.abs(expected - vectors).max():.2e}")
    if cosine < lowest:
        raise CheckFailed(f"{name}: the lowest cosine to the CPU is {cosine:.6f}, below {lowest}", figures)


def check_processes(plan: GpuPlan) -> Figures:
    """Check that two processes, each with a GPU if that is the device, have the losses of one, with equal noise."""
    device = compute_device(plan.device)
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        raise Skipped("the machine has one GPU")
    backbone = load_backbone("tiny").to(device)
    task = write_task(plan.folder / "processes", backbone, 5, make_captions(5))
    settings = {"epochs": 2, "batch_size": 3, "dropout": 0.5, "precision": "float32"}
    losses = []
    for processes in (1, 2):
        method = start_method("ffa_tame", backbone, settings, None)
        with training_group(method, None, task, processes) as group:
            losses.append(learn_task(method, task, group=group))
    figures: Figures = {"losses_of_one_process": losses[0], "losses_of_two": losses[1]}
    if not np.allclose(losses[0], losses[1], rtol=1e-3):
        raise CheckFailed("two processes have other losses than one", figures)
    return figures


def profile_second_step(method: Method) -> Callable[[], int]:
    """Profile a method's second training step; the result counts the kernels that it launched.

    On a CPU, these are the operators that Python or the backward pass called.
    """
    after_step, numbers = method.after_step, itertools.count(1)
    is_gpu = method.backbone.device.type == "cuda"
    profiler = profile(acc_events=True)

    def profile_between_steps() -> None:
        after_step()
        number = next(numbers)
        if number == 1:
            profiler.start()
        elif number == 2:
            profiler.stop()

    def is_launch(event: Any) -> bool:
        if is_gpu:
            return event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
        parent = event.cpu_parent
        while parent is not None and not parent.name.startswith("aten::"):
            parent = parent.cpu_parent
        return parent is None and event.name.startswith("aten::")

    method.after_step = profile_between_steps  # type: ignore[method-assign]
    return lambda: sum(map(is_launch, profiler.events()))


_CAPTIONS = 5  # captions per video


def measure_training(plan: GpuPlan, size: TrainingSize) -> Figures:
    """Train for two epochs, with and without gradient checkpointing, and measure the second epoch.

    The first epoch warms up and fills the cache of the frozen blocks' outputs.
    """
    device = compute_device(plan.device)
    backbone = load_backbone(plan.backbone_name(size.model), plan.frames).to(device)
    pairs = size.batch * size.steps
    videos = max(size.batch, -(-pairs // _CAPTIONS))
    task = write_task(plan.folder / "frames", backbone, videos, make_captions(pairs))
    figures: Figures = {
        "batch": size.batch,
        "frames": backbone.spec.frames,
        "precision": "bfloat16" if has_fast_bfloat16(device) else "float32",
    }
    for prefix in ("", "checkpointing_"):
        measured = _train(backbone, task, size, checkpointing=bool(prefix))
        figures |= {f"{prefix}{name}": value for name, value in measured.items()}
        gc.collect()  # method and loop refer to each other, and the next peak must not include them
    if plan.device == "cuda":
        if figures["precision"] != "bfloat16":
            raise CheckFailed("the GPU is not used with bfloat16", figures)
        # Parts of a batch fill the same memory with and without checkpointing.
        saved = figures["peak_memory_gib"] - figures["checkpointing_peak_memory_gib"]
        if "micro_batch" not in figures and saved <= 0:
            raise CheckFailed("gradient checkpointing saves no memory", figures)
    return figures


def _train(backbone: Backbone, task: TaskData, size: TrainingSize, *, checkpointing: bool) -> Figures:
    """Train for two epochs; returns the rate of the second, the losses of the first and last step, and memory."""
    settings = {"epochs": 2, "batch_size": size.batch, "checkpointing": checkpointing}
    method = start_method(size.method, backbone, settings, None)
    method.begin_task(task.task_id, task.name)
    count_launches = profile_second_step(method)
    ticks: list[float] = []
    losses: list[float] = []

    def report(progress: TrainingProgress) -> None:
        if progress.loss is not None:
            losses.append(progress.loss)
        if progress.epoch == 1:
            ticks.clear()
        ticks.append(time.perf_counter())

    meter = ResourceMeter(backbone.device)
    with meter.phase("training"):
        fit(method, task, report=report)
    seconds, steps = ticks[-1] - ticks[0], len(ticks) - 1
    return {
        "videos_per_second": round(size.batch * steps / seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / steps, 1),
        "launches_per_step": count_launches(),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "peak_memory_gib": meter.peak_gib("training"),
        **({"micro_batch": method.micro_batch} if method.micro_batch else {}),
    }
