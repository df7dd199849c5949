"""Search on a GPU that holds a copy of the vectors."""

from __future__ import annotations

from threading import Lock

import faiss
import numpy as np

from index.arrays import Rows, Vectors, batches
from index.errors import DeviceMissing
from index.scanning.exact_scan import ExactScan, RowBitmap, RowHits, contains_rows
from index.scanning.search_options import Device

_SPARE_RESULTS = 32  # beyond twice the wanted results; the GPU also rounds the query to half precision
_MAX_RESULTS = 2048  # in one search on a GPU
_COPIED_ROWS = 65_536  # vectors copied at a time


def is_gpu_used(device: Device) -> bool:
    """Decide whether searches run on a GPU.

    Raises:
        DeviceMissing: A GPU is required, but this machine has none or FAISS was built without GPU support.
    """
    if device == "cpu":
        return False
    built = hasattr(faiss, "StandardGpuResources")
    available = built and faiss.get_num_gpus() > 0
    if device == "cuda" and not available:
        reason = "faiss finds no GPU" if built else "this faiss was built without GPU support"
        raise DeviceMissing(
            f"CINESTRATA_INDEX_DEVICE=cuda, but {reason}: install cinestrata[gpu] on a machine with an NVIDIA GPU, "
            "or set CINESTRATA_INDEX_DEVICE=cpu"
        )
    return available


class GpuScan:
    """Selects the best rows on a GPU and scores them from the mapped file, so scores and ties are the exact ones."""

    def __init__(self, exact: ExactScan) -> None:
        self._exact = exact
        self._lock = Lock()  # FAISS lets one thread at a time use a GPU's resources
        self._resources = faiss.StandardGpuResources()
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        self._index = faiss.GpuIndexFlatIP(self._resources, exact.dim, config)
        for rows in batches(np.arange(exact.count), _COPIED_ROWS):
            self._index.add(exact.vectors(rows))

    def search_many(self, queries: Vectors, k: int, live: RowBitmap | None = None) -> list[RowHits]:
        """Search as :meth:`ExactScan.search_many` does.

        The CPU searches where the GPU cannot decide: for deep results, where deletions and filters leave too few
        of its rows, and where ties may continue beyond its last row.
        """
        limit = 2 * k + _SPARE_RESULTS
        if limit > min(_MAX_RESULTS, self._exact.count):
            return self._exact.search_many(queries, k, live)
        with self._lock:
            _, found = self._index.search(queries, limit)
        return [self._rescore(query, rows, k, live) for query, rows in zip(queries, found, strict=True)]

    def _rescore(self, query: Vectors, rows: Rows, k: int, live: RowBitmap | None) -> RowHits:
        last_score = self._exact.search_rows(query, rows[-1:], 1).scores[0]
        if live is not None:
            rows = rows[contains_rows(live, rows)]
        hits = self._exact.search_rows(query, rows, k)
        # Rounding a unit vector to half precision changes a score by at most 2⁻¹¹ times the query's length.
        margin = np.linalg.norm(query) * 2.0**-10
        if len(hits.rows) < k or hits.scores[-1] - last_score <= margin:
            return self._exact.search(query, k, live)
        return hits
