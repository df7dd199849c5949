"""Token statistics of texts and captions, from which routing profiles are made."""

from __future__ import annotations

import torch
from torch import Tensor


def token_presence(ids: Tensor, end: Tensor, vocabulary: int) -> Tensor:
    """Indicator matrix of the tokens that each text contains, ``[n, V]`` of zeros and ones.

    Args:
        ids: Token ids ``[n, L]``, including the start-of-text token.
        end: Position of the end-of-text token of each text, ``[n]``; later positions are padding.
        vocabulary: Vocabulary size V.
    """
    position = torch.arange(ids.shape[1], device=ids.device)
    is_word = (position > 0) & (position < end.unsqueeze(1))  # between the start and end tokens
    presence = torch.zeros(len(ids), vocabulary, device=ids.device)
    presence.scatter_reduce_(1, ids, is_word.to(presence.dtype), "amax")
    return presence


def token_profile(counts: Tensor, factor: float = 1.0) -> Tensor:
    """Routing profile of a task, ``[V]``: log(1 + V·p), where p is the share of each token in the task's captions.

    A token that the task never used contributes nothing, regardless of the size of the task; a token that the task
    uses as often as chance would contributes log 2. The profile of a task without captions is all zero.

    Args:
        counts: Number of captions that contain each token, ``[V]``.
        factor: Factor of the logarithms, see :attr:`~models.encoders.query_encoder.QueryEncoder.profile_factor`.

    Returns:
        ``float32`` values that half precision, in which releases store them, represents exactly.
    """
    return profile_values(counts, counts.sum(), len(counts), factor)


def profile_values(counts: Tensor, total: Tensor, vocabulary: int, factor: float) -> Tensor:
    """Values of some tokens in a routing profile, ``[n]``; see :func:`token_profile`.

    Args:
        counts: Number of captions that contain each of the tokens, ``[n]``.
        total: Sum of the counts of all tokens.
        vocabulary: Vocabulary size V.
        factor: Factor of the logarithms.
    """
    lifts = vocabulary * counts.float() / total.float().clamp(min=1)
    return (torch.log1p(lifts).half().float() * factor).half().float()
