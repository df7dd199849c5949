"""Cache of tokens after the frozen part of the image tower: a video passes it once per task instead of once per step.

The cache is an anonymous file that disappears with the process, however the process ends, so no stale entry and no
entry of another precision can exist. Training that resumes from a checkpoint computes the outputs again and gets the
same bits, because every video is computed alone, independent of its batch and of the cache's contents.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import run_first_blocks
from trainer.methods.base import Method
from trainer.task_data import Clip, Frames, load_frames, open_frames

log = structlog.get_logger(__name__)


@contextmanager
def open_video_loader(method: Method, folder: Path | None) -> Iterator[Callable[[Sequence[Clip]], Tensor]]:
    """Context manager: a function that loads the videos of a step.

    The function returns frames, or the tokens after the frozen part of the image tower; it raises FramesMissing, see
    :func:`trainer.task_data.open_frames`.

    Args:
        method: Method with a number of frozen image blocks and a size limit of the cache.
        folder: Folder for the cache file, on a disk with room; by default the system's temporary folder.
    """
    blocks, budget = method.frozen_image_block_count, method.config.feature_cache_bytes
    has_frozen_part = blocks > 0 or method.backbone.has_frozen_network
    if budget == 0 or method.needs_frames or not has_frozen_part:
        yield load_frames
        return
    folder = folder or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    budget = min(
        budget, shutil.disk_usage(folder).free // 2
    )  # checkpoints and catalog need disk space as well
    with tempfile.TemporaryFile(dir=folder) as file:
        yield _TokenCache(method.backbone, blocks, file.fileno(), budget).load


class _TokenCache:
    """Tokens of videos after the frozen blocks, one video after the other in a file."""

    def __init__(self, backbone: Backbone, blocks: int, file: int, budget: int) -> None:
        self._backbone, self._blocks = backbone, blocks
        self._file, self._budget = file, budget
        self._places: dict[Path, tuple[int, Tensor]] = {}  # offset, and a tensor with shape and type
        self._end = 0

    def load(self, clips: Sequence[Clip]) -> Tensor:
        """Tokens ``[n, M, P+1, width]`` on the backbone's device."""
        # Also opened for cached videos: missing frames may belong to a deleted video, which must end the training.
        opened = zip(clips, open_frames(clips), strict=True)
        return torch.stack([self._tokens(clip.frames_path, frames) for clip, frames in opened])

    def _tokens(self, path: Path, frames: Frames) -> Tensor:
        if path in self._places:
            place, like = self._places[path]
            tokens = torch.empty_like(like, device="cpu")
            if os.preadv(self._file, [_bytes(tokens)], place) == tokens.nbytes:
                return tokens.to(self._backbone.device)
        alone = torch.from_numpy(frames[None].copy())
        tokens = run_first_blocks(self._backbone, alone, self._blocks)[0].contiguous()
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
