"""Token statistics of texts and captions, from which routing profiles are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def token_presence(texts: Sequence[npt.NDArray[np.int64]], vocabulary: int) -> Floats:
    """Return the indicator matrix of the tokens that each text contains, ``[n, V]`` of zeros and ones.

    Args:
        texts: Token IDs of each text, ``[L]``, including the start and end tokens.
        vocabulary: Vocabulary size V.
    """
    presence = np.zeros((len(texts), vocabulary), np.float32)
    for row, text in zip(presence, texts, strict=True):
        row[text[1:-1]] = 1
    return presence


def token_profile(counts: npt.NDArray[np.floating], factor: float = 1.0) -> Floats:
    """Return the routing profile of a task, ``[V]``: log(1 + V·p), where p is the share of each token in the task's
    captions.

    A token that the task never used contributes nothing, regardless of the size of the task; a token that the task
    uses as often as chance would contributes log 2. The profile of a task without captions is all zero.

    Args:
        counts: Number of captions that contain each token, ``[V]``.
        factor: Factor of the logarithms, see :attr:`~models.encoders.query_encoder.QueryEncoder.profile_factor`.

    Returns:
        Values that half precision, in which releases store them, represents exactly.
    """
    return profile_values(counts, counts.sum(), len(counts), factor)


def profile_values(
    counts: npt.NDArray[np.floating],
    total: float | np.floating,
    vocabulary: int,
    factor: float,
) -> Floats:
    """Return the values of some tokens in a routing profile, ``[n]``; see :func:`token_profile`.

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
    """Return the values rounded to half precision."""
    return values.astype(np.float16).astype(np.float32)
