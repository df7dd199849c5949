"""Read the next batch of videos while the model trains on the current one.

A thread suffices, because reading mapped files, stacking and pinning release the interpreter lock. It does nothing
random, so the trained bits do not depend on its pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from trainer.frozen_prefix_cache import VideoLoader
from trainer.task_data import Pair


def prefetch_batches(
    loader: VideoLoader, batches: Sequence[list[Pair]]
) -> Iterator[tuple[list[Pair], Tensor]]:
    """Yield each batch with its videos, and read those of the next one meanwhile.

    Raises:
        FramesMissing: The frames of a video are gone; raised when its batch is due.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="videos") as thread:

        def read(number: int) -> object:
            return loader.read([pair.clip for pair in batches[number]])

        ahead = thread.submit(read, 0)
        for number, batch in enumerate(batches, start=1):
            found = ahead.result()
            if number < len(batches):
                ahead = thread.submit(read, number)
            yield batch, loader.complete(found)
