"""Caption statistics for groups of videos, such as the domains of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from index.vector_ids import Ids
from index.words.unit_matching import LiveSegment

Floats = npt.NDArray[np.float64]


class GroupStatistics(NamedTuple):
    """Captions in G groups of videos.

    Attributes:
        captions: Number of captions, ``[G]``.
        words: Number of words in them, ``[G]``.
        masses: Total inverse document frequency of their distinct terms, in nats, ``[G]``; see :func:`count_captions`.
    """

    captions: Floats
    words: Floats
    masses: Floats


def count_captions(
    segments: tuple[LiveSegment, ...],
    locate: Callable[[Ids], npt.NDArray[np.int32]],
    groups: int,
    kind: int,
) -> GroupStatistics:
    """Count the captions of groups of videos, and weigh their terms.

    A term weighs ln(1 + (n - f + 1/2) / (f + 1/2)), where n captions of its group are in the same segment and f of them
    have the term. Most groups have all their captions in one segment.

    Args:
        segments: Segments of an index.
        locate: Returns each video's group, −1 for none.
        groups: Number of groups G.
        kind: Which kind of document is a caption.
    """
    total = GroupStatistics(*(np.zeros(groups) for _ in GroupStatistics._fields))
    for live in segments:
        segment = live.segment
        owners = np.where(
            live.alive & (segment.rows["kind"] == kind), locate(segment.videos.ids)[segment.owners], -1
        )
        is_counted = owners >= 0
        captions = np.bincount(owners[is_counted], minlength=groups).astype(np.float64)
        total.captions[:] += captions
        total.words[:] += np.bincount(owners[is_counted], segment.rows["length"][is_counted], groups)
        offsets = segment.offsets.astype(np.int64)
        terms = np.repeat(np.arange(len(segment.counts)), offsets[1:] - offsets[:-1])
        documents = segment.documents
        # A document that repeats a term is listed several times in a row.
        is_first = np.ones(len(documents), np.bool_)
        is_first[1:] = (documents[1:] != documents[:-1]) | (terms[1:] != terms[:-1])
        kept = is_first & is_counted[documents]
        keys, counts = np.unique(terms[kept] * groups + owners[documents[kept]], return_counts=True)
        group = keys % groups
        weights = np.log1p((captions[group] - counts + 0.5) / (counts + 0.5))
        total.masses[:] += np.bincount(group, counts * weights, groups)
    return total
