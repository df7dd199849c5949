"""Cache tokens after the frozen part of the image tower, so that a video passes it once per task, not once per step.

The cache is an anonymous file that disappears with the process, however the process ends, so there are no stale entries
and none of another precision. Training that resumes from a checkpoint recomputes the tokens and gets the same bits,
because each video is computed alone, whatever its batch and the cache contain.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch
from torch import Tensor

from index.arrays import Frames
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import run_first_blocks
from trainer.methods.base import Method
from trainer.task_data import Clip, load_frames, open_frames

log = structlog.get_logger(__name__)


@contextmanager
def open_video_loader(method: Method, folder: Path | None) -> Iterator[VideoLoader]:
    """Open a loader of frames or, if part of the image tower is frozen, of the tokens after it.

    Args:
        folder: Folder for the cache file, on a disk with room; by default the system's temporary folder.
    """
    blocks, budget = method.frozen_image_block_count, method.config.feature_cache_bytes
    has_frozen_part = blocks > 0 or method.backbone.has_frozen_network
    if budget == 0 or method.needs_frames or not has_frozen_part:
        yield VideoLoader(method.backbone)
        return
    folder = folder or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    budget = min(budget, shutil.disk_usage(folder).free // 2)  # checkpoints and catalog need disk space too
    with tempfile.TemporaryFile(dir=folder) as file:
        yield _TokenCache(method.backbone, blocks, file.fileno(), budget)


class VideoLoader:
    """Loader of a step's videos from their frame files."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def load(self, clips: Sequence[Clip]) -> Tensor:
        """Load frames ``uint8 [n, M, H, W, 3]`` or tokens ``[n, M, P+1, width]`` onto the device.

        Raises:
            FramesMissing: See :func:`trainer.task_data.open_frames`.
        """
        return load_frames(clips).to(self._backbone.device)


class _TokenCache(VideoLoader):
    """Loader of tokens after the frozen blocks, which a file keeps one video after the other."""

    def __init__(self, backbone: Backbone, blocks: int, file: int, budget: int) -> None:
        super().__init__(backbone)
        self._blocks = blocks
        self._file, self._budget = file, budget
        self._places: dict[Path, tuple[int, Tensor]] = {}  # offset, and an empty tensor with shape and type
        self._end = 0

    def load(self, clips: Sequence[Clip]) -> Tensor:
        # Open cached videos too: missing frames may belong to a deleted video, which must end the training.
        opened = open_frames(clips)
        return torch.stack(
            [self._tokens(clip.frames_path, frames) for clip, frames in zip(clips, opened, strict=True)]
        )

    def _cached(self, path: Path) -> Tensor | None:
        if path in self._places:
            place, like = self._places[path]
            tokens = torch.empty_like(like, device="cpu")
            if os.preadv(self._file, [_bytes(tokens)], place) == tokens.nbytes:
                return tokens
        return None

    def _tokens(self, path: Path, frames: Frames) -> Tensor:
        tokens = self._cached(path)
        if tokens is not None:
            return tokens.to(self._backbone.device)
        video = torch.from_numpy(frames[None].copy())
        tokens = run_first_blocks(self._backbone, video, self._blocks)[0].contiguous()
        if path not in self._places and self._end + tokens.nbytes <= self._budget:
            self._store(path, tokens)
        return tokens

    def _store(self, path: Path, tokens: Tensor) -> None:
        try:
            written = os.pwrite(self._file, _bytes(tokens.cpu()), self._end)
        except OSError as error:
            log.warning("frozen_prefix_cache_full", error=str(error))
            self._budget = 0
            return
        if written == tokens.nbytes:
            self._places[path] = self._end, tokens.to("meta")
            self._end += written


def _bytes(tokens: Tensor) -> memoryview:
    return tokens.view(torch.uint8).numpy().data  # numpy has no bfloat16
