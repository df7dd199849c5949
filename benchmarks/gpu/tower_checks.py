"""Check that towers, adapters and maps give equal vectors on device and CPU; measure videos embedded per second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan
from benchmarks.gpu.drawn_frames import draw_frames, make_captions, write_task
from benchmarks.learning.run_costs import ResourceMeter
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.tower_computation import compute_device, mixed_precision
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.tower_forward import encode_frames, encode_texts
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import read_release, write_release
from models.releases.release_state import ReleaseState
from trainer.methods import start_method
from trainer.task_data import TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import embed_clips

Vectors = npt.NDArray[np.float32]

# Lowest cosine between two unit vectors of the same input. A GPU computes patch embeddings in TensorFloat-32 (10 bits).
FLOAT32_COSINE = 0.9999
BFLOAT16_COSINE = 0.99
_METHODS = ("analytic", "ffa_tame", "strata", "bmu_moco")
_FEW = 4  # compared videos and texts


def check_towers(plan: GpuPlan, model: str) -> Figures:
    """Check both frozen towers' vectors on the device and on the CPU, in float32 and in bfloat16."""
    backbone = load_backbone(plan.backbone_name(model), plan.frames)
    frames = torch.from_numpy(np.stack([draw_frames(n, *backbone.spec) for n in range(_FEW)]))
    texts = make_captions(_FEW)
    expected = _encode(backbone, frames, texts)
    backbone.to(compute_device(plan.device))
    figures: Figures = {}
    for precision, lowest in (("float32", FLOAT32_COSINE), ("bfloat16", BFLOAT16_COSINE)):
        with mixed_precision(enabled=precision == "bfloat16"):
            found = _encode(backbone, frames, texts)
        for kind in expected:
            _compare(f"{kind}_{precision}", expected[kind], found[kind], lowest, figures)
    return figures


def check_releases(plan: GpuPlan) -> Figures:
    """Check that a release learned on either device encodes alike on both, and that closed-form maps are equal."""
    figures: Figures = {}
    backbones = {name: load_backbone("tiny").to(compute_device(name)) for name in ("cpu", plan.device)}
    texts = make_captions(12)
    frames, size = backbones["cpu"].spec
    task = write_task(plan.folder / "releases", videos=12, frames=frames, size=size, captions=texts)
    for name in _METHODS:
        learned = {}
        for place, backbone in backbones.items():
            settings = {"epochs": 1, "precision": "float32"} if name != "analytic" else {}
            method = start_method(name, backbone, settings, None)
            learn_task(method, task)
            learned[place] = _reread(plan, method.release(), f"{name}-{place}")
            encoded = {on: _encode_release(other, learned[place], task) for on, other in backbones.items()}
            for kind, expected in encoded["cpu"].items():
                label = f"{name}_learned_on_{place}_{kind}"
                _compare(label, expected, encoded[plan.device][kind], FLOAT32_COSINE, figures)
        if name == "analytic":
            on_cpu, on_device = (
                _encode_release(backbones["cpu"], learned[place], task) for place in ("cpu", plan.device)
            )
            for kind, expected in on_cpu.items():
                _compare(f"analytic_map_{kind}", expected, on_device[kind], FLOAT32_COSINE, figures)
    return figures


def measure_embedding(plan: GpuPlan, model: str) -> Figures:
    """Measure how many videos per second the frozen image tower embeds, in a worker's way; the second run counts."""
    device = compute_device(plan.device)
    backbone = load_backbone(plan.backbone_name(model), plan.frames).to(device)
    frames, size = backbone.spec
    count = plan.embedded_videos
    task = write_task(
        plan.folder / "frames", videos=count, frames=frames, size=size, captions=make_captions(count)
    )
    method = start_method("zero_shot", backbone, {}, None)
    meter = ResourceMeter(device)
    for _ in range(2):
        with meter.phase("embedding"), torch.inference_mode():
            vectors = embed_clips(method.encode_videos, task.clips)
    figures = {
        "videos_per_second": round(count / meter.seconds["embedding"][-1], 2),
        "videos": count,
        "frames": frames,
        "peak_memory_gib": round(meter.peak_gib("embedding"), 2),
    }
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
        raise CheckFailed("the vectors are not unit vectors", figures)
    return figures


@torch.inference_mode()
def _encode(backbone: Backbone, frames: torch.Tensor, texts: list[str]) -> dict[str, Vectors]:
    videos = encode_frames(backbone, frames)[0]
    found = encode_texts(backbone, backbone.tokenize(texts))[0]
    return {"videos": videos.float().cpu().numpy(), "texts": found.float().cpu().numpy()}


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


def _compare(name: str, expected: Vectors, found: Vectors, lowest: float, figures: Figures) -> None:
    """Record the lowest cosine between the rows of two arrays of unit vectors; raise CheckFailed if it is too low."""
    if not np.isfinite(found).all():
        raise CheckFailed(f"{name}: the device computes vectors that are not finite", figures)
    cosine = float((expected * found).sum(axis=1).min())
    figures[f"{name}_cosine"] = round(cosine, 7)
    figures[f"{name}_difference"] = float(f"{np.abs(expected - found).max():.2e}")
    if cosine < lowest:
        raise CheckFailed(f"{name}: the lowest cosine to the CPU is {cosine:.6f}, below {lowest}", figures)
