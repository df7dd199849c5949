"""Token statistics of texts and captions, from which routing profiles are made."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["token_presence", "token_profile"]


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


def token_profile(counts: Tensor) -> Tensor:
    """Routing profile of a task, ``[V]``: log(1 + V·p), where p is the share of each token in the task's captions.

    A token that the task never used contributes nothing, regardless of the size of the task; a token that the task
    uses as often as chance would contributes log 2. The profile of a task without captions is all zero.

    Args:
        counts: Number of captions that contain each token, ``[V]``.
    """
    total = counts.sum()
    return torch.log1p(len(counts) * counts / total) if total > 0 else torch.zeros_like(counts)
