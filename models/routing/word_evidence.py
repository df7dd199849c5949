"""Evidence of words for each video: how much likelier a query is if it means a video with these texts.

A video's evidence is a bounded log-likelihood ratio in nats, like the routing evidence of its domain
(:mod:`models.routing.router`), and is weighted with the same prior. A text consists of *units*: words and quoted
phrases. A unit's weight in a domain is its inverse document frequency among the domain's captions,

    idf = ln(1 + (n - f + 1/2) / (f + 1/2))

for f of n captions (Robertson and Spärck Jones, "Relevance weighting of search terms", JASIS 1976). Words that every
caption of a domain contains do not distinguish its videos; :func:`written_routing` compares domains.

For a query of mass Q (sum of its weights) and a text of mass M that shares the mass B with it and has other words of
mass O, the evidence is

    0.5 B - 8 s² min(Q - B, O),   s = min(1, M / Q)

The first term speaks for the video, the second against it: where the text says other words, it could have said those of
the query. A short name cannot say a long description, so how much a missing word says falls with the square of the
share s that the text could have said. M is estimated as the number of words times their mean mass in the domain, and O
likewise but as at least M - B: where all captions share a template, the few words that differ have most of the mass.
Only captions speak against a video, and a video without them has evidence 0. This is how videos without captions come
before captioned ones that say something else. Transcripts have their own evidence
(:mod:`models.routing.transcript_evidence`).

A video whose texts together contain all units is *complete*, whatever their frequencies, and gets up to another 25
nats, so that it precedes all others: all of them for the words as typed in a caption, fewer for another form of a word,
or in a name.

A text that people confirmed counts as one of the video's, with a share of the nats that grows with the votes for it but
stays below a caption's. A refusal is bounded evidence against one video for one text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

# Chosen on real clips; benchmarks/RESULTS.md says which, and which figures come from other clips.
_MATCHED, _MISSING = 0.5, 8.0  # nats per nat of inverse document frequency
_LOWEST, _HIGHEST = -8.0, 40.0  # bounds, in nats: one text cannot drown the picture
_COMPLETE = 25.0  # nats for a complete video
_COMPLETE_FROM = 0.8  # share of a query's mass from which a video gains them
_IS_COMPLETE = 0.95  # share of the mass that a complete video contains
_SAME_STEM = 0.3  # share of the nats for another form of a word
_NOT_A_CAPTION = 0.8  # share of the nats for a word in a name or a value
_CONFIRMED = 0.8  # highest share of the nats for a text that people confirmed
_REFUSED = 12.0  # highest nats against a video that people refused for the query
_AS_TYPED = 0.75  # share of the nats from which a video contains the words as typed
_SPARE_NATS = 7.0  # how far a domain's routing evidence may be behind the best where a text is written down
_WRITTEN_WEIGHT = 2.0  # of the written routing evidence
_SMOOTHING = 2.0  # videos of average frequency, added to each domain
_TABLE_SHARE = 8  # texts are grouped if there are at most this many possible classes for each


@dataclass(frozen=True)
class CaptionStatistics:
    """Caption statistics of T domains.

    Attributes:
        captions: Number of captions, ``[T]``.
        lengths: Mean number of words in a caption, ``[T]``.
        word_masses: Mean inverse document frequency of a word in the captions, ``[T]``, in nats.
    """

    captions: Floats
    lengths: Floats
    word_masses: Floats


@dataclass(frozen=True)
class MatchedDocuments:
    """Texts of videos that contain units of a query.

    Attributes:
        videos: Vector ID of each text's video, ``[D]``.
        domains: Position of the video's domain, ``[D]``.
        is_caption: Whether each text is a caption, ``[D]``.
        is_captioned: Whether its video has a caption, ``[D]``.
        lengths: Number of words, ``[D]``.
        strengths: How well each text contains each of U units, ``[D, U]``: 1 as written, 0.9 in another form of the
            word, 0 not at all.
        votes: People who confirmed the text, less those who refused it, never negative; 0 for other texts, ``[D]``.
        is_partial: Whether some texts with a unit are left out because it is too common, ``[U]``.
        frequencies: Number of texts in the library with each unit, ``[U]``.
        documents: Number of texts in the library.
    """

    videos: Ids
    domains: Ints
    is_caption: npt.NDArray[np.bool_]
    is_captioned: npt.NDArray[np.bool_]
    lengths: Ints
    strengths: npt.NDArray[np.floating]
    votes: Ints
    is_partial: npt.NDArray[np.bool_]
    frequencies: Ints
    documents: int


@dataclass(frozen=True)
class WordEvidence:
    """How strongly the words of a query speak for the videos of T domains.

    Attributes:
        videos: Vector IDs of the videos with a matched text, ascending, ``[V]``.
        domains: Position of each one's domain, ``[V]``.
        nats: Evidence for each, ``float32 [V]``.
        is_complete: Whether each video's texts contain the whole query, ``[V]``.
        is_typed: Whether they contain it as typed, without other forms of a word, ``[V]``.
        absent: Evidence for a captioned video without a matched text, by domain, ``float32 [T]``.
        may_be_complete: Whether a video contains all units except those too common for all their texts to be known.
    """

    videos: Ids
    domains: Ints
    nats: npt.NDArray[np.float32]
    is_complete: npt.NDArray[np.bool_]
    is_typed: npt.NDArray[np.bool_]
    absent: npt.NDArray[np.float32]
    may_be_complete: bool = True

    def including(
        self, videos: Ids, domains: Ints, nats: npt.NDArray[np.floating] | float = 0.0
    ) -> WordEvidence:
        """Add the videos, ascending, that have no evidence yet; they are not complete.

        Args:
            videos: Vector IDs.
            domains: Position of each one's domain.
            nats: Evidence for those that are added.
        """
        added = np.isin(videos, self.videos, assume_unique=True, invert=True)
        if not added.any():
            return self
        order = np.argsort(np.concatenate([self.videos, videos[added]]), kind="stable")

        def join(known: npt.NDArray[Any], new: npt.ArrayLike) -> npt.NDArray[Any]:
            own = np.broadcast_to(np.asarray(new, known.dtype), videos.shape)[added]
            return np.concatenate([known, own])[order]

        return WordEvidence(
            join(self.videos, videos),
            join(self.domains, domains),
            join(self.nats, nats),
            join(self.is_complete, False),
            join(self.is_typed, False),
            self.absent,
            self.may_be_complete,
        )

    def with_refused(self, videos: Ids, domains: Ints, votes: Ints, unmatched: Floats) -> WordEvidence:
        """Lower the evidence for videos, ascending, that people refused for the query.

        Args:
            videos: Vector IDs.
            domains: Position of each one's domain.
            votes: People who refused each, less those who confirmed it.
            unmatched: Evidence for each if no text of it matches.
        """
        found = self.including(videos, domains, unmatched)
        nats = found.nats.copy()
        nats[np.searchsorted(found.videos, videos)] -= (_REFUSED * _saturated(votes)).astype(np.float32)
        return replace(found, nats=nats)

    def with_complete(self, videos: Ids, domains: Ints) -> WordEvidence:
        """Mark these videos, ascending, as complete: they are all that contain the whole query.

        Args:
            videos: Vector IDs.
            domains: Position of each one's domain.
        """
        found = self.including(videos, domains)
        is_new = np.isin(found.videos, videos, assume_unique=True) & ~found.is_complete
        nats = np.where(is_new, np.minimum(np.maximum(found.nats, 0) + _COMPLETE, _HIGHEST), found.nats)
        return replace(
            found,
            nats=nats.astype(np.float32),
            is_complete=found.is_complete | is_new,
            is_typed=found.is_typed | is_new,
        )


def word_evidence(matches: MatchedDocuments, statistics: CaptionStatistics) -> WordEvidence:
    """Compute how strongly the words of a query speak for each video; see the module.

    Args:
        matches: Texts that contain units of the query, which has at least one; without texts there is no evidence.
        statistics: Caption statistics of the domains.
    """
    domains = len(statistics.captions)
    if not len(matches.videos):
        none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
        return WordEvidence(none, none, none.astype(np.float32), no, no, np.zeros(domains, np.float32))
    texts, class_of, sizes = _group_texts(matches, domains)
    owners = texts.domains
    rows, units = texts.strengths.nonzero()  # of few units, most texts contain one
    strengths = texts.strengths[rows, units].astype(np.float64)
    weights = _domain_weights(rows, units, texts, sizes, statistics)
    query_mass = np.maximum(weights.sum(axis=1), 1e-6)  # [T]
    shared: Floats = np.bincount(rows, strengths * weights[owners[rows], units], len(owners)).astype(
        np.float64
    )
    matched = np.bincount(rows, minlength=len(owners))
    # Of the other words of a text, only the number is known; they have at least the rest of its estimated mass.
    others = np.maximum(0, texts.lengths - matched) * statistics.word_masses[owners]
    text_mass = texts.lengths * statistics.word_masses[owners]
    others = np.where(others > 0, np.maximum(others, text_mass - shared), 0.0)
    evidence = _text_evidence(query_mass[owners], text_mass, shared, others)
    mean_mass = statistics.lengths * statistics.word_masses
    absent = _text_evidence(query_mass, mean_mass, np.zeros(domains), mean_mass)
    absent = np.where(statistics.captions > 0, absent, 0.0)
    confirmed = np.where(texts.votes > 0, _CONFIRMED * _saturated(texts.votes), 1.0)
    evidence = np.where(evidence > 0, confirmed * evidence, evidence)
    # A name or a value does not speak against a video without captions.
    evidence = np.where(texts.is_captioned, evidence, np.maximum(evidence, 0.0))
    sources = np.where(texts.is_caption | (texts.votes > 0), confirmed, _NOT_A_CAPTION)
    contained = np.zeros(texts.strengths.shape)
    contained[rows, units] = np.where(strengths >= 1, 1.0, _SAME_STEM) * sources[rows]
    videos, first_class, best, contained, row_of = _best_per_video(
        matches.videos, class_of, evidence, contained
    )
    idf = inverse_document_frequency(matches.frequencies, matches.documents)
    shares = (contained > 0) @ idf / max(float(idf.sum()), 1e-6)
    is_complete = shares >= _IS_COMPLETE
    may_be_complete = bool((contained[:, ~matches.is_partial] > 0).all(axis=1).any())
    nats = np.clip(best, _LOWEST, _HIGHEST)
    is_typed = np.zeros(len(nats), np.bool_)
    (near,) = np.nonzero(shares > _COMPLETE_FROM)
    if len(near):
        likeness = np.where(contained[near] > 0, contained[near], 1.0).min(axis=1)
        completeness = (shares[near] - _COMPLETE_FROM) / (1 - _COMPLETE_FROM)
        nats[near] += _COMPLETE * np.minimum(completeness, 1.0) * likeness
        is_typed[near] = is_complete[near] & (likeness >= _AS_TYPED)
    return WordEvidence(
        videos,
        owners[first_class],
        np.minimum(nats, _HIGHEST).astype(np.float32)[row_of],
        is_complete[row_of],
        is_typed[row_of],
        np.clip(absent, _LOWEST, 0.0).astype(np.float32),
        may_be_complete,
    )


def _saturated(votes: Ints) -> Floats:
    """Compute what share of the highest nats votes have: a half for one, three quarters for two, and so on."""
    return np.asarray(1 - 0.5 ** np.asarray(votes, np.float64))


def written_routing(counts: npt.NDArray[np.integer], videos: npt.NDArray[np.integer]) -> Floats:
    """Compute routing evidence from how often each domain's texts contain a text as typed, ``[T]``, in nats.

    Args:
        counts: Number of videos in each domain whose texts contain the text, ``[T]``; at least one is positive.
        videos: Number of videos of each domain, ``[T]``.
    """
    rate = (counts.sum() + 0.5) / (videos.sum() + 1)
    return np.asarray(_WRITTEN_WEIGHT * np.log((counts + _SMOOTHING * rate) / (videos + _SMOOTHING) / rate))


def add_written_evidence(
    evidence: npt.NDArray[np.floating], written: npt.NDArray[np.floating]
) -> npt.NDArray[np.float32]:
    """Add the evidence of its words to a text's routing evidence ``[T]``, which is limited first.

    Routing evidence of short texts differs by tens of nats between domains whose captions differ only in length, and
    would outweigh the words. Callers skip this for texts that are not written down.
    """
    limited = np.maximum(evidence, evidence.max() - _SPARE_NATS)
    return np.asarray(limited + written, np.float32)


def inverse_document_frequency(
    frequencies: npt.NDArray[np.integer] | Floats, documents: float | Floats
) -> Floats:
    """Weigh units by the number of documents with each, in nats; see the module."""
    return np.asarray(np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)))


def _group_texts(matches: MatchedDocuments, domains: int) -> tuple[MatchedDocuments, Ints, Ints]:
    """Group the texts that differ only in their videos, whose evidence is therefore equal.

    Returns:
        One text of each of C classes, the class of each text ``[D]``, and the number of texts in each class ``[C]``. If
        few texts can be equal, each is a class.
    """
    count = len(matches.videos)
    lengths, votes = _rank_values(matches.lengths), _rank_values(matches.votes)
    most_lengths, most_votes = int(lengths.max()) + 1, int(votes.max()) + 1
    size = domains * most_lengths * most_votes * 4 * 3 ** matches.strengths.shape[1]
    if size > _TABLE_SHARE * count:
        return matches, np.arange(count), np.ones(count, np.int64)
    keys = (matches.domains * most_lengths + lengths) * most_votes + votes
    keys = 4 * keys + 2 * matches.is_caption + matches.is_captioned
    for unit in matches.strengths.T:
        keys = 3 * keys + (unit > 0) + (unit >= 1)
    table = np.full(size, -1, np.int32)
    table[keys] = np.arange(count, dtype=np.int32)  # the last text of each class
    (used,) = np.nonzero(table >= 0)
    chosen = table[used]
    table[used] = np.arange(len(used), dtype=np.int32)
    class_of = table[keys]
    texts = replace(
        matches,
        videos=matches.videos[chosen],
        domains=matches.domains[chosen],
        is_caption=matches.is_caption[chosen],
        is_captioned=matches.is_captioned[chosen],
        lengths=matches.lengths[chosen],
        strengths=matches.strengths[chosen],
        votes=matches.votes[chosen],
    )
    return texts, class_of, np.bincount(class_of, minlength=len(used))


def _rank_values(values: Ints) -> Ints:
    """Replace small numbers by their ranks among those that occur."""
    return (np.cumsum(np.bincount(values) > 0, dtype=np.int32) - 1)[values]


class _BestTexts(NamedTuple):
    """The best of the texts of V videos, in R rows: one for each video, or, if each has one text, for each class.

    Attributes:
        videos: Vector IDs, ascending, ``[V]``.
        first_class: Class of a text of each, ``[V]``.
        evidence: Highest evidence of a text, ``[R]``.
        contained: Best form of each unit in a text, ``[R, U]``.
        row_of: Row of each video, ``[V]``, or the slice of all rows.
    """

    videos: Ids
    first_class: Ints
    evidence: Floats
    contained: Floats
    row_of: Ints | slice


def _best_per_video(videos: Ids, class_of: Ints, evidence: Floats, contained: Floats) -> _BestTexts:
    """Choose among the texts of each video.

    Args:
        videos: Video of each text, ``[D]``.
        class_of: Class of each text, ``[D]``.
        evidence: Evidence of a text of each class, ``[C]``.
        contained: Form of each unit in it, ``[C, U]``; 0 where it is absent.
    """
    if not (videos[1:] >= videos[:-1]).all():
        order = np.argsort(videos, kind="stable")
        videos, class_of = videos[order], class_of[order]
    is_first = np.ones(len(videos), np.bool_)
    np.not_equal(videos[1:], videos[:-1], out=is_first[1:])
    if is_first.all():
        return _BestTexts(videos, class_of, evidence, contained, class_of)
    distinct, first_class = videos[is_first], class_of[is_first]
    best, forms = evidence[first_class], contained[first_class]
    others = class_of[~is_first]
    video_of = np.searchsorted(distinct, videos[~is_first])
    np.maximum.at(best, video_of, evidence[others])
    rows, units = contained[others].nonzero()
    flat = forms.reshape(-1)
    np.maximum.at(flat, video_of[rows] * forms.shape[1] + units, contained[others[rows], units])
    return _BestTexts(distinct, first_class, best, forms, slice(None))


def _domain_weights(
    rows: Ints, units: Ints, texts: MatchedDocuments, sizes: Ints, statistics: CaptionStatistics
) -> Floats:
    """Weigh each unit among the captions of each domain, ``[T, U]``.

    Args:
        rows: Text in each pair of a text and a unit that it contains.
        units: Unit in each pair.
        texts: One text of each class.
        sizes: Number of texts in each class.
    """
    shape = len(statistics.captions), texts.strengths.shape[1]
    is_counted = texts.is_caption[rows]
    places = texts.domains[rows[is_counted]] * shape[1] + units[is_counted]
    counts = np.bincount(places, sizes[rows[is_counted]], shape[0] * shape[1]).reshape(shape)
    counts = counts.astype(np.float64)  # of no places, bincount returns integers
    # For a unit so common that some of its texts are not matches, the frequency in the library has to do.
    for unit in np.flatnonzero(texts.is_partial).tolist():
        share = texts.frequencies[unit] / max(1, texts.documents)
        counts[:, unit] = np.maximum(counts[:, unit], share * statistics.captions)
    captions = statistics.captions[:, None]
    return inverse_document_frequency(np.minimum(counts, captions), captions)


def _text_evidence(query_mass: Floats, text_mass: Floats, shared: Floats, others: Floats) -> Floats:
    sayable = np.minimum(1.0, text_mass / query_mass) ** 2
    missing = np.maximum(0.0, np.minimum(query_mass - shared, others))
    return np.asarray(_MATCHED * shared - _MISSING * sayable * missing)
