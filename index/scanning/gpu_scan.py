"""Where vectors are searched: on the processor, or on a GPU that holds a copy of them."""

from __future__ import annotations

from threading import Lock

import faiss
import numpy as np
import numpy.typing as npt

from index.errors import DeviceMissing
from index.scanning.exact_scan import Alive, ExactScan, Found, are_alive
from index.scanning.search_options import Device

__all__ = ["GpuScan", "on_gpu"]


_SPARE = (
    32  # candidates beyond twice those that are wanted; the GPU rounds the query to half precision as well
)
_MOST = 2048  # results of one search on a GPU
_ADDED = 65_536  # vectors in single precision at once


def on_gpu(device: Device) -> bool:
    """Whether to search on a GPU.

    Raises:
        DeviceMissing: one is asked for, and this faiss or this machine has none.
    """
    if device == "cpu":
        return False
    built = hasattr(faiss, "StandardGpuResources")
    there = built and faiss.get_num_gpus() > 0
    if device == "cuda" and not there:
        lacking = "faiss finds no GPU" if built else "this faiss was built without GPU support"
        raise DeviceMissing(
            f"CINESTRATA_INDEX_DEVICE=cuda, but {lacking}: install cinestrata[gpu] on a machine with an NVIDIA GPU, "
            "or set CINESTRATA_INDEX_DEVICE=cpu"
        )
    return there


class GpuScan:
    """Finds the best rows on a GPU, and scores them from the mapped file: scores and ties are the exact ones."""

    def __init__(self, exact: ExactScan) -> None:
        self._exact = exact
        self._alone = Lock()  # faiss lets one thread at a time use a GPU's resources
        self._resources = faiss.StandardGpuResources()
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        self._index = faiss.GpuIndexFlatIP(self._resources, exact.dim, config)
        for start in range(0, exact.count, _ADDED):
            self._index.add(exact.vectors(np.arange(start, min(start + _ADDED, exact.count))))

    def search_many(
        self, queries: npt.NDArray[np.float32], k: int, alive: Alive | None = None
    ) -> list[Found]:
        """As :meth:`ExactScan.search_many`. What a GPU cannot tell alone is searched on the processor: deep lists,
        those that deletions and filters thin out, and those where equal scores may go on beyond what it gave."""
        wanted = 2 * k + _SPARE
        if wanted > min(_MOST, self._exact.count):
            return self._exact.search_many(queries, k, alive)
        with self._alone:
            _, rows = self._index.search(queries, wanted)
        return [self._settled(query, found, k, alive) for query, found in zip(queries, rows, strict=True)]

    def _settled(
        self, query: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], k: int, alive: Alive | None
    ) -> Found:
        last = self._exact.search_rows(query, rows[-1:], 1).scores[0]
        if alive is not None:
            rows = rows[are_alive(alive, rows)]
        found = self._exact.search_rows(query, rows, k)
        # Rounding a unit vector to half precision moves a score by no more than 2⁻¹¹ of the query's length.
        margin = np.linalg.norm(query) * 2.0**-10
        if len(found.rows) < k or found.scores[-1] - last <= margin:
            return self._exact.search(query, k, alive)
        return found
