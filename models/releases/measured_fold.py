"""The fold of a release: videos that its newest task has learned, as a solution without them finds them.

A closed-form method learns every caption, so its release finds learned videos by their own captions more often than
others. It therefore learns the task a second time without some videos, the *fold*, whose captions are then measured
with the vectors and the routing evidence of this second solution (cross-fitting). The release keeps these, so that
later releases measure the task in the same way. Their basis is that of the release, so that the vectors of other
videos can be compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from models.errors import ReleaseError

FOLD_FILE = "fold.safetensors"
_ROUTING = "routing."

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredFold:
    """What a solution without the fold gives: query vectors, video vectors, and routing evidence for the task.

    Attributes:
        videos: Vector IDs of the fold's Q videos, ascending, ``[Q]``.
        captions: :func:`caption_digest` of each video's caption, ``int64 [Q]``.
        queries: Query vectors of the captions, ``float16 [Q, dim]``.
        ids: Vector IDs of the fold's videos and of other videos in the task, ascending, ``[N]``.
        vectors: Vectors of these videos, ``float16 [N, dim]``.
        tokens: Token IDs of the task's routing profile, ascending.
        routing: Tensors that replace those of the release in its routing evidence, by name.
    """

    videos: Ids
    captions: Ids
    queries: npt.NDArray[np.float16]
    ids: Ids
    vectors: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    routing: Mapping[str, npt.NDArray[Any]]

    def query_vectors(self, videos: Ids) -> npt.NDArray[np.float32]:
        """Look up the query vectors of videos in the fold, ``[n, dim]``."""
        return self.queries[np.searchsorted(self.videos, videos)].astype(np.float32)

    def video_vectors(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Look up the vectors of videos that are among ``ids``, ``[n, dim]``."""
        return self.vectors[np.searchsorted(self.ids, ids)].astype(np.float32)

    def has_caption(self, video: int, caption: str) -> bool:
        """Check whether the fold contains a video with this caption, which may have been edited since."""
        found = self.captions[self.videos == video]
        return bool(len(found)) and found[0] == caption_digest(caption)


def caption_digest(caption: str) -> int:
    """Compute a digest that recognizes a caption; the caption itself stays in the catalog, where it can be deleted."""
    return int.from_bytes(blake2b(caption.encode(), digest_size=8).digest(), signed=True)


def write_fold(folder: Path, fold: MeasuredFold) -> None:
    """Write a fold into a release's folder. The caller makes it durable."""
    arrays = {name: value for name, value in vars(fold).items() if name != "routing"}
    routing = {f"{_ROUTING}{name}": np.asarray(value) for name, value in fold.routing.items()}
    save_file(arrays | routing, folder / FOLD_FILE)


def read_fold(folder: Path) -> MeasuredFold | None:
    """Read a release's fold; None if it has none.

    Raises:
        ReleaseError: The file exists but is invalid.
    """
    if not (folder / FOLD_FILE).exists():
        return None
    try:
        arrays = load_file(folder / FOLD_FILE)
        routing = {
            name.removeprefix(_ROUTING): arrays.pop(name) for name in [*arrays] if name.startswith(_ROUTING)
        }
        return MeasuredFold(**arrays, routing=routing)
    except (SafetensorError, OSError, TypeError) as error:
        raise ReleaseError(f"release {folder.name[:12]}: {FOLD_FILE} cannot be read ({error})") from error
