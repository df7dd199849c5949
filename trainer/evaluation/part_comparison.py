"""Compare the score of a release with each of its parts, on captions as people retype them.

The score of a video is the sum of its visual score and the evidence of its words, so the weight of the visual score
leads from the words alone (0) to the cosines alone (∞). In some libraries, one of them may rank better without the
other. Captions of videos that a solution has not learned are therefore retyped and searched in their domain. Where a
part puts significantly more of them first than the sum does, the nearest weight that loses to neither part is served.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Vectors
from index.words.text_analysis import parse_query
from index.words.word_evidence import CaptionStatistics, word_evidence
from index.words.word_index import TextKind, VideoText, WordIndex

# Cosine and evidence of words: of the right video, then of its rivals.
Candidates = tuple[tuple[float, float], ...]

_REPLACED, _KEPT, _IN_A_ROW = 0.3, 0.6, 3  # shares of a caption's words, and a number of words
_RIVALS = 5  # the best by each part
_FACTORS = (1.0, 0.5, 2.0, 0.25, 4.0, 1 / 16, 16.0, 1 / 64, 64.0)  # of the fitted weight, nearest first
_SIGNIFICANT = 0.05  # probability of so many losses by chance


def retype(captions: Sequence[str]) -> list[tuple[str, frozenset[str]]]:
    """Retype each caption: replace some of its words, keep some, or keep three in a row, in turns. Returns the queries,
    and the words of the caption in each.
    """
    rng = np.random.default_rng(0)
    split = [caption.split() for caption in captions]
    others = sorted({word for words in split for word in words})
    retyped = []
    for row, words in enumerate(split):
        kind, stays = row % 3, np.ones(len(words), np.bool_)
        if len(words) > _IN_A_ROW and kind == 2:
            start = int(rng.integers(len(words) - _IN_A_ROW + 1))
            stays[:start] = stays[start + _IN_A_ROW :] = False
        elif len(words) > _IN_A_ROW:
            share = _REPLACED if kind == 0 else 1 - _KEPT
            stays[rng.choice(len(words), max(1, round(share * len(words))), replace=False)] = False
        typed = [
            word if stays[i] else str(rng.choice(others))
            for i, word in enumerate(words)
            if stays[i] or kind == 0
        ]
        retyped.append((" ".join(typed), frozenset(np.array(words, object)[stays])))
    return retyped


def find_candidates(
    retyped: Sequence[tuple[str, frozenset[str]]],
    rows: Sequence[int],
    cosines: Vectors,
    captions: Sequence[Sequence[str]],
) -> Iterator[Candidates]:
    """Find the strongest rivals of each retyped caption's video: videos whose captions lack words that it keeps.

    Each of the q captions from :func:`retype` has the row of its video, and cosines ``[q, n]`` to the domain's videos.
    """
    index = WordIndex.empty().replace(
        (row, [VideoText(TextKind.CAPTION, text) for text in texts]) for row, texts in enumerate(captions)
    )
    words = [[set(text.split()) for text in texts] for texts in captions]
    lengths = [len(text.split()) for texts in captions for text in texts]
    is_captioned = np.array([bool(texts) for texts in captions])
    statistics = CaptionStatistics(
        captions=len(lengths),
        lengths=np.array([sum(lengths) / max(1, len(lengths))]),
        captioned=is_captioned.sum(keepdims=True, dtype=np.float64),
        uncaptioned=(~is_captioned).sum(keepdims=True, dtype=np.float64),
    )
    for (query, needed), row, of_query in zip(retyped, rows, cosines, strict=True):
        evidence = _evidence(index, query, statistics, is_captioned)
        is_right = np.array([any(needed <= text for text in texts) for texts in words])
        count = min(_RIVALS, int((~is_right).sum()))
        best = [
            np.where(is_right, np.inf, -part).argsort(kind="stable")[:count] for part in (of_query, evidence)
        ]
        rivals = np.unique(np.concatenate(best))
        yield tuple((float(of_query[each]), float(evidence[each])) for each in (row, *rivals))


def _evidence(
    index: WordIndex, query: str, statistics: CaptionStatistics, is_captioned: npt.NDArray[np.bool_]
) -> Floats:
    """Compute the evidence of words for each video of a domain, ``[n]``."""
    matches = index.lookup(parse_query(query))
    evidence = word_evidence(
        matches,
        statistics,
        domains=np.zeros(len(matches.videos), np.int64),
        is_captioned=np.ones(len(matches.videos), np.bool_),
        is_partial=np.zeros(len(matches.frequencies), np.bool_),
        caption_frequencies=matches.frequencies,
    )
    log_odds = np.where(is_captioned, evidence.absent[0], evidence.unknown[0]).astype(np.float64)
    log_odds[evidence.videos] = evidence.log_odds
    return log_odds


def weight_without_loss(weight: float, searches: Sequence[Candidates]) -> float:
    """Choose the weight of the cosines, nearest to the fitted one, with which the score loses to neither part."""

    def first(cosine: float, word: float) -> npt.NDArray[np.bool_]:
        """Check which searches put the right video before its rivals, with these weights, ``[q]``."""
        scores = [np.array(candidates) @ (cosine, word) for candidates in searches]
        return np.array([bool((each[0] > each[1:]).all()) for each in scores], np.bool_)

    parts = first(0.0, 1.0), first(1.0, 0.0)
    for factor in _FACTORS:
        served = first(factor * weight, 1.0)
        if not any(_loses(served, part) for part in parts):
            return factor * weight
    # Every factor loses: the nearest to the better part.
    return weight * (_FACTORS[-2] if parts[0].sum() > parts[1].sum() else _FACTORS[-1])


def _loses(served: npt.NDArray[np.bool_], part: npt.NDArray[np.bool_]) -> bool:
    """Compare two rankings by a one-sided sign test over the searches in which only one of them is right."""
    losses, wins = int((part & ~served).sum()), int((served & ~part).sum())
    return sum(comb(losses + wins, n) for n in range(wins + 1)) <= _SIGNIFICANT * 2 ** (losses + wins)
