"""What a run costs: wall time and peak memory by phase, and the method's size without the frozen backbone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from models.backbones.device_memory import peak_bytes, reset_peak
from models.encoders.encoder_registry import select_query_tensors
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease
from models.releases.release_state import ReleaseState
from trainer.methods.base import Method

_MIB = 1024**2
_CPU = torch.device("cpu")


class ResourceMeter:
    """Measures time and memory per phase; each value is a list with one number per execution of the phase.

    Args:
        device: Device of the backbone; on a GPU, its memory is measured too.

    Attributes:
        peak_mib: The process's peak resident memory during the phase, including mapped files. The kernel's high-water
            mark is reset before each phase; where that is impossible, the value is the peak since the process started.
        peak_device_mib: Peak memory that torch allocated on the GPU; empty without one.
        memory: Which measure ``peak_mib`` uses.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peak_mib: dict[str, list[float]] = {}
        self.peak_device_mib: dict[str, list[float]] = {}
        self.memory = "VmHWM of each phase" if reset_peak(_CPU) else "ru_maxrss of the process so far"
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


@dataclass(frozen=True)
class ParameterCounts:
    """A method's sizes after a run's last task.

    Attributes:
        trained: Parameters with a gradient in the last task: :func:`count_trained_parameters`.
        release: Numbers in the newest release's files: :func:`count_release_numbers`.
        search: Numbers that searches over all tasks need, by query mode: :func:`count_search_numbers`.
    """

    trained: int
    release: int
    search: Mapping[str, int]


def count_trained_parameters(method: Method, captions: Sequence[str]) -> int:
    """Count the parameters with a gradient in a task; 0 for a closed-form method.

    In a table of token embeddings, only the rows of the captions' tokens count, because no other row has a gradient.

    Args:
        method: Method after ``begin_task``.
    """
    table = (method.backbone.vocabulary, method.backbone.text_width)
    rows = len(method.backbone.tokenize(captions).unique()) if captions else 0
    return sum(
        rows * table[1] if tuple(parameter.shape) == table else parameter.numel()
        for group in method.parameter_groups()
        for parameter in group["params"]
    )


def count_release_numbers(release: ReleaseState, earlier: int) -> int:
    """Count the values in a release's tensor files, of any precision.

    The files contain adapters or towers, the statistics or replay memory for the next task, and the routing profiles of
    the tasks that the release adds.

    Args:
        earlier: Number of its tasks that previous releases already have.
    """
    parent = ParentRelease("earlier", earlier) if earlier else None
    with tempfile.TemporaryDirectory() as folder:
        write_release(Path(folder), release, parent=parent)
        return sum(_count_values(file) for file in Path(folder).glob("*.safetensors"))


def count_search_numbers(release: ReleaseState, pinned: Mapping[str, ReleaseState], mode: str) -> int:
    """Count the values that searches over all tasks need: query encoders and routing profiles.

    Args:
        pinned: The release that made each task's shard.
        mode: Query mode; ``pinned`` needs the query encoder of every shard's release, other modes that of ``release``.
    """
    states = pinned.values() if mode == "pinned" else [release]
    # Shards made by one release, as after joint training, share an encoder.
    tensors = {
        id(tensor): tensor for state in states for tensor in select_query_tensors(state).tensors.values()
    }
    encoders = sum(tensor.size for tensor in tensors.values())
    return encoders + len(release.profiles.tokens) + len(release.profiles.values)


def _count_values(file: Path) -> int:
    with safe_open(file, framework="pt") as opened:
        return sum(int(np.prod(opened.get_slice(name).get_shape())) for name in opened.keys())  # noqa: SIM118
