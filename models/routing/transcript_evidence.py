"""Evidence from transcripts: how much likelier a query is if it means a video in which its words are said.

A transcript of two hours has most common words somewhere, so a query's words count together only within one *passage*,
about half a minute of speech, and a video has the evidence of its best passage. A passage with less than four fifths of
the query's mass Q says something else. For one with the mass B, and the share c of the last fifth, the evidence is

    0.6 c (0.5 B + 25 f min(1, Q / 6))

nats, where f is 1 for the words as typed and less for other forms of them. A caption with all the words has more
(:mod:`models.routing.word_evidence`). A query whose words are said all the time tells little: its
mass Q, computed from the frequencies of its words among passages, is small. The evidence is never negative, since
nobody says everything that a video shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from models.routing.word_evidence import WordEvidence, inverse_document_frequency

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]

_WEIGHT = 0.6  # relative to a caption's evidence
_HIGHEST = 40.0  # nats before the weight, as for a caption
_MATCHED, _COMPLETE = 0.5, 25.0
_COMPLETE_FROM = 0.8  # share of a query's mass
_RARE = 6.0  # nats; the mass of a word in one of 400 passages
_OTHER_FORM = 0.6
_SAYS_IT = 6.0  # nats from which a passage with all words of the query is a match
# Passages without the words, added so that the few passages of a small library do not make all words common.
_PRIOR_PASSAGES = 1000
_MAX_PASSAGES = 20_000  # that are compared with a query


def required_units(frequencies: Ints, passages: int) -> list[int]:
    """Choose the rarest units of a query so that every passage with evidence has one; none if they are too common.

    Args:
        frequencies: Number of passages in the library with each unit, ``[U]``.
        passages: Number of passages in the library.
    """
    masses = _masses(frequencies, passages)
    order = np.argsort(-masses, kind="stable")
    # A passage without any of these lacks more than it may.
    count = (
        int(np.searchsorted(np.cumsum(masses[order]), (1 - _COMPLETE_FROM) * masses.sum(), side="right")) + 1
    )
    required: list[int] = order[:count].tolist()
    return required if frequencies[required].sum() <= _MAX_PASSAGES else []


def passage_evidence(
    strengths: Floats, frequencies: Ints, passages: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Compute how strongly passages speak for their videos; see the module.

    Args:
        strengths: How well each of D passages contains each of U units, ``[D, U]``: 1 as written, below 1 in another
            form of the word, 0 not at all.
        frequencies: Number of passages in the library with each unit, ``[U]``.
        passages: Number of passages in the library.

    Returns:
        The evidence in nats, ``float32 [D]``, and whether each passage says the whole query, ``bool [D]``.
    """
    masses = _masses(frequencies, passages)
    mass = max(float(masses.sum()), 1e-6)
    has = strengths > 0
    shared = has @ masses
    completeness = np.clip((shared / mass - _COMPLETE_FROM) / (1 - _COMPLETE_FROM), 0, 1)
    form = np.where((strengths < 1) & has, _OTHER_FORM, 1.0).min(axis=1, initial=1.0)
    nats = _MATCHED * shared + _COMPLETE * form * min(1.0, mass / _RARE)
    nats = (_WEIGHT * completeness * np.minimum(nats, _HIGHEST)).astype(np.float32)
    return nats, has.all(axis=1) & (nats >= _SAYS_IT)


def _masses(frequencies: Ints, passages: int) -> npt.NDArray[np.float64]:
    return inverse_document_frequency(frequencies, passages + _PRIOR_PASSAGES)


def with_transcripts(
    evidence: WordEvidence,
    videos: Ids,
    domains: Ints,
    nats: npt.NDArray[np.float32],
    says_it: npt.NDArray[np.bool_],
) -> WordEvidence:
    """Raise the evidence to that of transcripts where it is higher.

    Args:
        videos: Vector IDs of the videos with evidence from transcripts, ascending, ``[V]``.
        domains: Position of each one's domain, ``[V]``.
        nats: Evidence of their transcripts, ``[V]``.
        says_it: Whether a passage says the whole query, ``[V]``.
    """
    found = evidence.including(videos, domains, nats)
    places = np.searchsorted(found.videos, videos)
    best, is_complete = found.nats.copy(), found.is_complete.copy()
    best[places] = np.maximum(best[places], nats)
    is_complete[places] |= says_it
    return replace(found, nats=best, is_complete=is_complete)
