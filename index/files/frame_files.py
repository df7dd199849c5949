"""Frame vectors of a segment: one optional file with the vectors of single frames, for re-ranking.

The file has the frames of whole videos only. Ids of whole videos precede those of moments, so row n of the file belongs
to row n of the segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Frames, Ids
from index.errors import ShardCorrupt, ShardMissing
from index.files.manifest_format import SegmentEntry
from index.files.segment_files import FRAMES, display_name
from index.vector_ids import FIRST_MOMENT_ID

__all__ = ["count_videos", "has_frames", "open_frames", "write_frames"]


def has_frames(entry: SegmentEntry) -> bool:
    """Whether every whole video of a segment has frame vectors."""
    return FRAMES in entry.files or not entry.count or entry.first_id >= FIRST_MOMENT_ID


def count_videos(ids: Ids) -> int:
    """Number of whole videos among ascending ids."""
    return int(np.searchsorted(ids, FIRST_MOMENT_ID))


def write_frames(folder: Path, videos: int, batches: Iterable[Frames]) -> None:
    """Write the frame vectors of a segment.

    Args:
        folder: Staging folder of the segment.
        videos: Number of whole videos in the segment.
        batches: Frame vectors ``[n, M, dim]`` in the order of the ids; rounded to half precision.
    """
    # Not through a memory map: a write to one ends the process when the disk is full.
    with (folder / FRAMES).open("wb") as file:
        for batch in batches:
            if not file.tell():
                shape = videos, *batch.shape[1:]
                header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(batch, "<f2").tobytes())


def open_frames(folder: Path, entry: SegmentEntry, videos: int) -> npt.NDArray[np.float16]:
    """The mapped frame vectors ``float16 [videos, M, dim]`` of a segment.

    Args:
        folder: Folder of the segment.
        entry: Its entry in the manifest.
        videos: Number of whole videos in the segment.

    Raises:
        ShardMissing: The segment has no frame vectors.
        ShardCorrupt: The file is missing, unreadable, or contradicts the manifest.
    """
    if FRAMES not in entry.files:
        raise ShardMissing(f"{display_name(entry)} has no frame vectors")
    try:
        frames: npt.NDArray[np.float16] = np.load(folder / FRAMES, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ShardCorrupt(
            f"{display_name(entry)}: its frame vectors cannot be read ({error}); restore its folder from a backup"
        ) from error
    if frames.dtype != np.float16 or frames.ndim != 3 or frames.shape[::2] != (videos, entry.dim):
        raise ShardCorrupt(f"{display_name(entry)}: {FRAMES} contradicts the manifest")
    return frames
