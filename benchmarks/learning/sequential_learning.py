"""Learn in memory: tasks in order, each with a release and a shard, and measure what the phases cost.

The learning job does the same, one task at a time, on a published library (:mod:`trainer.task_pipeline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import select_query_tensors
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from trainer.methods import Method
from trainer.task_data import StoredVectors, TaskData, vector_ids
from trainer.training_loop import fit, learn_task
from trainer.training_memory import peak_bytes, reset_peak
from trainer.video_embedding import MemoryShard


def remember_outputs(backbone: Backbone, cache: Path) -> None:
    """Make a backbone with a frozen network compute the outputs for each video and each text batch once.

    Video tokens and features are kept in files, also for copies of the backbone, which share the network. Text vectors
    are kept in memory, for the backbone's own text tower. A backbone without a frozen network is left alone.
    """
    if not backbone.has_frozen_network:
        return
    folder = cache / f"features-{backbone.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    kind, vectors = type(backbone), dict[bytes, Tensor]()

    def remembered(frames: Tensor, compute: Callable[[Tensor], Tensor], suffix: str) -> Tensor:
        rows = []
        for video in frames.contiguous():
            path = folder / f"{blake2b(video.numpy().data, digest_size=16).hexdigest()}{suffix}.npy"
            if not path.exists():
                with NamedTemporaryFile(dir=folder, delete=False) as file:  # other runs may read the folder
                    np.save(file, compute(video[None])[0].cpu().numpy())
                Path(file.name).replace(path)
            rows.append(torch.from_numpy(np.load(path)))
        return torch.stack(rows).to(backbone.device)

    class Remembering(kind):  # type: ignore[misc, valid-type]
        def video_features(self, frames: Tensor) -> Tensor:
            return remembered(frames, super().video_features, "")

        def embed_frames(self, frames: Tensor) -> Tensor:
            return remembered(frames, super().embed_frames, "-tokens")

        def text_vectors(self, ids: Tensor) -> Tensor:
            if self.text is not backbone.text:
                return cast(Tensor, super().text_vectors(ids))
            key = np.array(ids.shape).tobytes() + ids.cpu().numpy().tobytes()
            if key not in vectors:
                with torch.no_grad():
                    vectors[key] = super().text_vectors(ids)
            return vectors[key]

    backbone.__class__ = Remembering


_MIB = 1024**2
_CPU = torch.device("cpu")


class ResourceMeter:
    """Measures time and memory per phase; each value is a list with one number per execution of the phase."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {}
        # Resident memory of the process with mapped files. Where the kernel's mark cannot be reset, since its start.
        self.peak_mib: dict[str, list[float]] = {}
        self.peak_device_mib: dict[str, list[float]] = {}  # that torch allocated on the GPU
        self._device = device if device.type == "cuda" else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as one execution of a phase."""
        reset_peak(_CPU)
        if self._device is not None:
            reset_peak(self._device)
        began = time.perf_counter()
        yield
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            self.peak_device_mib.setdefault(name, []).append(peak_bytes(self._device) / _MIB)
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        self.peak_mib.setdefault(name, []).append(peak_bytes(_CPU) / _MIB)

    def peak_gib(self, name: str) -> float:
        """Get the peak memory of the phase's last execution in GiB: of the GPU, if there is one."""
        return (self.peak_device_mib or self.peak_mib)[name][-1] / 1024


class SequentialLearner:
    """Learns tasks one by one and keeps their releases and shards in memory, with ``round_vectors`` as the store rounds
    them.

    As in the learning job, each task starts from the previous task's release, and the stored vectors of earlier
    training videos are available to the loss.
    """

    def __init__(
        self, method: str, backbone: Backbone, settings: Mapping[str, Any], *, round_vectors: bool = False
    ) -> None:
        self._method_name, self._backbone, self._settings = method, backbone, settings
        self._round_vectors = round_vectors
        self.method: Method | None = None
        self.release: ReleaseState | None = None
        self.tasks: list[TaskData] = []
        self.shards: dict[str, MemoryShard] = {}
        self.pinned: dict[str, ReleaseState] = {}

    def learn(self, tasks: Sequence[TaskData]) -> None:
        """Train and index each task in order."""
        for task in tasks:
            self.train(task)
            self.index(task)

    def train(self, task: TaskData) -> list[float]:
        """Train the next task, starting from the newest release, and return the mean loss of each epoch."""
        method = start_method(self._method_name, self._backbone, self._settings, self.release)
        memory = StoredVectors([(self.shards[past.task_id], vector_ids(past.train)) for past in self.tasks])
        losses = learn_task(method, task, memory)
        self._complete(method, [task])
        return losses

    def train_jointly(self, tasks: Sequence[TaskData]) -> list[float]:
        """Train the union of all tasks from the backbone, for as many epochs as each task gets alone.

        The number of optimizer steps is thus the sum over the tasks. The release has one routing profile per task.
        """
        clips = tuple(clip for task in tasks for clip in task.clips)
        union = TaskData("all", "all tasks", clips)
        method = start_method(self._method_name, self._backbone, self._settings, None)
        method.begin_task(union.task_id, union.name)
        losses = fit(method, union)
        method.end_task(union.pairs)
        for task in tasks:
            method.record_task(task.task_id, task.name, task.training_captions)
        self._complete(method, tasks)
        return losses

    def index(self, task: TaskData) -> MemoryShard:
        """Embed the task's videos with the current video encoder, and pin the shard to the newest release."""
        if self.method is None or self.release is None:
            raise ValueError("no task was trained")
        vectors = self.method.embed_videos(task.clips)
        if self._round_vectors:
            vectors = vectors.astype(np.float16).astype(np.float32)
        shard = MemoryShard(vector_ids(task.clips), vectors)
        self.shards[task.task_id] = shard
        self.pinned[task.task_id] = select_query_tensors(self.release)
        return shard

    def query_encoder(self) -> QueryEncoder:
        """Build the newest release's query encoder over the indexed shards."""
        if self.method is None:
            raise ValueError("no task was trained")
        return self.method.query_encoder(self.pinned)

    def _complete(self, method: Method, tasks: Sequence[TaskData]) -> None:
        self.method, self.release = method, method.release()
        self.tasks += tasks
