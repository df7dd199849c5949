"""Half precision is converted as numpy does it."""

from __future__ import annotations

import numpy as np

from index.scanning.exact_scan import widen_half_precision


def test_every_finite_number_is_converted_exactly() -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    stored = numbers[np.isfinite(numbers)].reshape(-1, 32)
    assert len(stored) > 1024  # more rows than are converted at a time
    out = np.empty(stored.shape, np.float32)
    widen_half_precision(stored, out)
    assert np.array_equal(out.view(np.uint32), stored.astype(np.float32).view(np.uint32))
