"""Token statistics of captions and queries, from which routing profiles are computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def token_presence(texts: Sequence[npt.NDArray[np.int64]], vocabulary: int) -> Floats:
    """Mark the tokens that each text contains, as a matrix ``[n, V]`` of zeros and ones.

    Args:
        texts: Token IDs of each text, ``[L]``, including the start-of-text and end-of-text tokens.
        vocabulary: Vocabulary size V.
    """
    presence = np.zeros((len(texts), vocabulary), np.float32)
    for row, text in zip(presence, texts, strict=True):
        row[text[1:-1]] = 1
    return presence


def token_profile(counts: npt.NDArray[np.floating], factor: float = 1.0) -> Floats:
    """Compute a task's routing profile, ``[V]``: log(1 + V·p), where p is each token's share of the task's captions.

    A token that the task never used contributes nothing, however large the task; a token used as often as chance would
    have it contributes log 2. The profile of a task without captions is all zero.

    Args:
        counts: Number of captions that contain each token, ``[V]``.
        factor: Factor of the logarithms, see :attr:`~models.encoders.query_encoder.QueryEncoder.profile_factor`.

    Returns:
        Values that survive the half precision in which releases store them.
    """
    return profile_values(counts, counts.sum(), len(counts), factor)


def profile_values(
    counts: npt.NDArray[np.floating],
    total: float | np.floating,
    vocabulary: int,
    factor: float,
) -> Floats:
    """Compute the profile values of some tokens, ``[n]``; see :func:`token_profile`.

    Args:
        counts: Number of captions that contain each of the tokens, ``[n]``.
        total: Sum of the counts of all tokens.
        vocabulary: Vocabulary size V.
        factor: Factor of the logarithms.
    """
    lifts = vocabulary * counts.astype(np.float32) / np.float32(max(float(total), 1.0))
    logarithms = _rounded(np.log1p(lifts))
    return _rounded(logarithms * np.float32(factor))


def _rounded(values: Floats) -> Floats:
    """Round to half precision."""
    return values.astype(np.float16).astype(np.float32)
