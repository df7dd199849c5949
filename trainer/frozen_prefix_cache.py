"""Where the first blocks of an image tower learn nothing, what they make of a video is computed once per task.

It is kept in a file without a name, which is gone with the process, however that ends: nothing is left behind, and
nothing stale or of another precision can be met. A training that goes on from a checkpoint computes it again, and to
the same bits, because every video is computed alone, whatever else is in its batch and whatever is kept already.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import run_first_blocks
from trainer.methods.base import Method
from trainer.task_data import Clip, Frames, load_frames, open_frames

__all__ = ["open_video_loader"]

log = logging.getLogger(__name__)


@contextmanager
def open_video_loader(method: Method, folder: Path | None) -> Iterator[Callable[[Sequence[Clip]], Tensor]]:
    """How the videos of a step are loaded: as frames, or as what the method's frozen blocks make of them.

    What is loaded raises FramesMissing: see :func:`trainer.task_data.open_frames`.

    Args:
        folder: on the disk that has room; by default the system's for temporary files.
    """
    blocks, budget = method.frozen_image_block_count, method.config.feature_cache_bytes
    if blocks == 0 or budget == 0:
        yield load_frames
        return
    folder = folder or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    budget = min(budget, shutil.disk_usage(folder).free // 2)  # checkpoints and catalog need room as well
    with tempfile.TemporaryFile(dir=folder) as file:
        yield _Kept(method.backbone, blocks, file.fileno(), budget).load


class _Kept:
    """Tokens of videos after the first blocks, one video after the other in a file."""

    def __init__(self, backbone: Backbone, blocks: int, file: int, budget: int) -> None:
        self._backbone, self._blocks = backbone, blocks
        self._file, self._budget = file, budget
        self._places: dict[Path, tuple[int, Tensor]] = {}  # where they begin, and their shape and type
        self._end = 0

    def load(self, clips: Sequence[Clip]) -> Tensor:
        """Tokens ``[n, M, P+1, width]``, on the backbone's device."""
        # Opened even where they are not read: frames that are gone may be those of a deleted video.
        opened = zip(clips, open_frames(clips), strict=True)
        return torch.stack([self._tokens(clip.frames_path, frames) for clip, frames in opened])

    def _tokens(self, path: Path, frames: Frames) -> Tensor:
        if path in self._places:
            place, like = self._places[path]
            found = torch.empty_like(like, device="cpu")
            if os.preadv(self._file, [_bytes(found)], place) == found.nbytes:
                return found.to(self._backbone.device)
        alone = torch.from_numpy(frames[None].copy())
        tokens = run_first_blocks(self._backbone, alone, self._blocks)[0].contiguous()
        if path not in self._places and self._end + tokens.nbytes <= self._budget:
            self._keep(path, tokens)
        return tokens

    def _keep(self, path: Path, tokens: Tensor) -> None:
        try:
            written = os.pwrite(self._file, _bytes(tokens.cpu()), self._end)
        except OSError as error:
            log.warning("no more of the frozen blocks is kept: %s", error)
            self._budget = 0
            return
        if written == tokens.nbytes:
            self._places[path] = self._end, tokens.to("meta")
            self._end += written


def _bytes(tokens: Tensor) -> memoryview:
    return tokens.view(torch.uint8).numpy().data  # bfloat16 is unknown to numpy
