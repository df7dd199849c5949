"""Cache tokens after the frozen part of the image tower, so that a video passes it once per task, not once per step.

The cache is an anonymous file that disappears with the process, however the process ends, so there are no stale entries
and none of another precision. Training that resumes from a checkpoint recomputes the tokens and gets the same bits,
because each video is computed alone, whatever its batch and the cache contain.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import run_first_blocks
from trainer.methods.base import Method
from trainer.task_data import Clip, load_frames, open_frames, pinned, read_ahead

log = structlog.get_logger(__name__)


@contextmanager
def open_video_loader(method: Method, folder: Path | None) -> Iterator[VideoLoader]:
    """Open a loader of frames or, if part of the image tower is frozen, of the tokens after it, which a file in
    ``folder`` keeps, by default in the system's temporary folder.
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
    """Loader of videos, whose thread reads the next step's files while the model trains on the current ones.

    The thread does nothing random and computes nothing on the device, so the learned bits do not depend on its pace.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def load(self, steps: Iterable[Sequence[Clip]]) -> Iterator[Tensor]:
        """Load each step's frames ``uint8 [n, M, H, W, 3]`` or tokens ``[n, M, P+1, width]`` onto the device;
        FramesMissing is raised when the step is due.
        """
        for clips, read in read_ahead(steps, self._read):
            yield self._complete(clips, read)

    def _read(self, clips: Sequence[Clip]) -> Any:
        """Read files, in the thread."""
        return pinned(load_frames(clips))

    def _complete(self, clips: Sequence[Clip], read: Any) -> Tensor:
        """Move to the device what :meth:`_read` has read."""
        frames: Tensor = read
        return frames.to(self._backbone.device, non_blocking=True)


class _TokenCache(VideoLoader):
    """Loader of tokens after the frozen blocks, which a file keeps one video after the other."""

    def __init__(self, backbone: Backbone, blocks: int, file: int, budget: int) -> None:
        super().__init__(backbone)
        self._blocks = blocks
        self._file, self._budget = file, budget
        self._offsets: dict[Path, tuple[int, Tensor]] = {}  # and an empty tensor with shape and type
        self._end = 0

    def _read(self, clips: Sequence[Clip]) -> list[Tensor]:
        """Read each video's tokens ``[M, P+1, width]`` or, if it is not cached, its frames ``[M, H, W, 3]``."""
        videos = []
        # Open cached videos too: missing frames may belong to a deleted video, which must end the training.
        for clip, frames in zip(clips, open_frames(clips), strict=True):
            tokens = self._cached(clip.frames_path)
            videos.append(torch.from_numpy(frames.copy()) if tokens is None else pinned(tokens))
        return videos

    def _complete(self, clips: Sequence[Clip], read: Any) -> Tensor:
        device = self._backbone.device
        return torch.stack(
            [
                self._tokens(clip.frames_path, video)
                if video.dim() == 4
                else video.to(device, non_blocking=True)
                for clip, video in zip(clips, read, strict=True)
            ]
        )

    def _cached(self, path: Path) -> Tensor | None:
        if path in self._offsets:
            offset, like = self._offsets[path]
            tokens = torch.empty_like(like, device="cpu")
            if os.preadv(self._file, [_bytes(tokens)], offset) == tokens.nbytes:
                return tokens
        return None

    def _tokens(self, path: Path, frames: Tensor) -> Tensor:
        tokens = self._cached(path)  # a step may have stored them after the frames were read
        if tokens is not None:
            return tokens.to(self._backbone.device)
        tokens = run_first_blocks(self._backbone, frames[None], self._blocks)[0].contiguous()
        if path not in self._offsets and self._end + tokens.nbytes <= self._budget:
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
            self._offsets[path] = self._end, tokens.to("meta")
            self._end += written


def _bytes(tokens: Tensor) -> memoryview:
    return tokens.view(torch.uint8).numpy().data  # numpy has no bfloat16
