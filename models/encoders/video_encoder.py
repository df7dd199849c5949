"""Encode clips into the vector spaces of shards: the video counterpart of the query encoder.

Every shard was embedded by the video side of its own release and is comparable with no other. A clip is therefore
encoded once by every video encoder behind the searched shards; shards with the same encoder share the vector. Some
families change small adapters from release to release, others a whole image tower. Weights are read on first use, and
the most recently used ones stay in memory up to a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.adapters.analytic_maps import AnalyticVideoMap, VectorLayout
from models.backbones import PRECISIONS, Precision
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import VideoLoader, encoder_family, select_video_tensors
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState, video_fingerprint

_CACHE_BYTES = 512 * 1024**2


class VideoEncoder:
    """Encodes frames with the video encoders of shards. Threads can share it; it runs one forward pass at a time.

    Args:
        fingerprints: Fingerprint of the video encoder that embedded each task's shard, by task.
        pinned: Release that made each task's shard, by task; read on first use.
        cache_bytes: Maximum size of the weights that stay in memory, over all releases.
    """

    def __init__(
        self,
        backbone: Backbone,
        fingerprints: Mapping[str, str],
        pinned: Mapping[str, ReleaseState],
        *,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self.tasks = list(fingerprints)
        self._backbone = backbone
        self._fingerprints = fingerprints
        self._pinned = pinned
        self._cache_bytes = cache_bytes
        self._lock = Lock()
        self._releases: OrderedDict[str, ReleaseState] = OrderedDict()  # video side alone, by fingerprint
        self._precisions: dict[str, Precision] = {}  # of the image tower, by fingerprint
        self._loaders: dict[str, VideoLoader] = {}  # by kind of release

    @torch.inference_mode()
    def encode(self, frames: Tensor, tasks: Sequence[str]) -> npt.NDArray[np.float32]:
        """Encode each clip for each task, to unit vectors ``[n, len(tasks), dim]`` in the spaces of their shards.

        Frames are ``uint8 [n, M, H, W, 3]`` of the backbone's size, as many as it reads or one each. Raise ReleaseError
        for other frames, an unknown task, or a release without the weights that its shard was embedded with.
        """
        count, (height, width) = self._backbone.spec.frames, self._backbone.spec.shape
        if tuple(frames.shape[1:]) not in ((count, height, width, 3), (1, height, width, 3)):
            raise ReleaseError(f"frames are {list(frames.shape)}, not [n, {count}, {height}, {width}, 3]")
        unknown = [task for task in tasks if task not in self._fingerprints]
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        encoded: dict[str, npt.NDArray[np.float32]] = {}
        with self._lock:
            for task in tasks:
                fingerprint = self._fingerprints[task]
                if fingerprint not in encoded:
                    vectors = self._load(self._release(task, fingerprint))(frames)
                    encoded[fingerprint] = vectors.float().cpu().numpy()
        dim = self._backbone.dim
        chosen = [encoded[self._fingerprints[task]] for task in tasks]
        return np.stack(chosen, axis=1) if chosen else np.empty((len(frames), 0, dim), np.float32)

    def for_task(self, task: str) -> Callable[[Tensor], Tensor]:
        """Encode for one task only: a function from frames ``uint8 [n, M, H, W, 3]`` to vectors ``[n, dim]``."""
        return lambda frames: torch.from_numpy(self.encode(frames, [task])[:, 0])

    @property
    def cached_bytes(self) -> int:
        """Size of the weights in memory."""
        return sum(array.nbytes for release in self._releases.values() for array in release.tensors.values())

    def _release(self, task: str, fingerprint: str) -> ReleaseState:
        """Look up the video side of the release that made a task's shard, and verify its fingerprint."""
        if fingerprint in self._releases:
            self._releases.move_to_end(fingerprint)
            self._backbone.image_precision = self._precisions[fingerprint]
            return self._releases[fingerprint]
        if task not in self._pinned:
            raise ReleaseError(f"the release that made the shard of task {task!r} is missing")
        release = select_video_tensors(self._pinned[task])
        backbone, actual = self._backbone, list[str]()
        for precision in PRECISIONS:
            backbone.image_precision = self._precisions[fingerprint] = precision
            actual.append(
                video_fingerprint(backbone.image_fingerprint, backbone.dim, release.frames, release.tensors)
            )
            if actual[-1] == fingerprint:
                break
        else:
            raise ReleaseError(
                f"the release that made the shard of task {task!r} lacks the video encoder that embedded it "
                f"(fingerprint {fingerprint[:12]}, found {actual[0][:12]})"
            )
        self._releases[fingerprint] = release
        while len(self._releases) > 1 and self.cached_bytes > self._cache_bytes:
            self._releases.popitem(last=False)
        return release

    def _load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        """Load the function that encodes frames with a release's video side."""
        if release.kind not in self._loaders:
            self._loaders[release.kind] = encoder_family(release.kind).video_loader(self._backbone)
        try:
            return self._loaders[release.kind](release)
        except (KeyError, RuntimeError) as error:
            raise ReleaseError(f"the release's video side does not fit the backbone: {error}") from error


def apply_video_map(
    video_map: AnalyticVideoMap, backbone: Backbone, features: Tensor, layout: VectorLayout
) -> Tensor:
    """Map video features ``[n, F]`` to unit vectors ``[n, dim]``."""
    projected = backbone.project_features(features)
    vectors = video_map(features.cpu().numpy(), projected.detach().cpu().numpy(), layout)
    return torch.from_numpy(vectors).to(features.device)
