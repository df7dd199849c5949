"""Evidence of words for each video: how much likelier a query is if it means a video with these texts.

Evidence is a log-likelihood ratio in nats, like the routing evidence of a domain (:mod:`models.routing.router`). A
query consists of *units*: words and quoted phrases. If p is the share of the library's other captions with a unit, the
evidence of the unit is

    ln(1 + λ (1 - p)² / p)  for a text that has it,    ln(1 - λ (1 - p))  for one that lacks it.

p is that of the library, not of the domain: routing is bounded, so it could not make up for words that are rare in one
domain and common in another. λ is 0.9, but less for a query with more units than the domain's captions have words,
since a short caption cannot say a long description.

A text's evidence for the query is the sum over its units: a constant of the domain, for a text that has none of them,
and a positive weight for each unit that the text has. The weights count less in a text that is longer than the query,
in a name or a metadata value, and in another form of the word. Units that no text has change no ranking. A video has
the evidence of its best text.

A video *without captions* might have any caption of its domain. Its evidence is therefore that of the domain as a
whole, a + ln((u + Σ exp(e)) / (u + n)) with the sum over its n captioned videos. The query means nothing to its u
videos without captions, so the more there are, the less they come before captioned ones. Learned videos are nearer to
their own captions than videos without captions are to theirs; a corrects for this. A domain without captions has the
mean over the library.

A video whose texts together contain all units is *complete*, whatever their frequencies, and precedes all others; the
closer its text is to the query, the earlier. Another form of a word, a name, or a text with few votes counts less.

A text that people confirmed counts as one of the video's, with a share of the nats that grows with the votes for it but
stays below a caption's. A refusal is bounded evidence against one video for one text. Transcripts have their own
evidence (:mod:`models.routing.transcript_evidence`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

# Chosen on clips of sixteen domains; benchmarks/RESULTS.md has figures of these and of thirteen others.
_CERTAINTY = 0.9  # highest λ, how surely a text about a video has a unit of a query that means the video
_PRIOR_SHARE = 0.1  # of one more caption, that has a unit
_LONGER = 0.2  # what the weights lose in a text twice as long as the query, relative to the rest
_UNCAPTIONED = 1.5  # a, in nats
_COMPLETE, _CLOSEST = 25.0, 10.0  # nats for a complete video, and for one text that is exactly the query
_IS_COMPLETE = 0.95  # share of the mass that a complete video contains
_PHRASE = 5.0  # nats for the words of the query in a row
_SAME_STEM = 0.3  # share of the nats of a complete video for another form of a word
_NOT_A_CAPTION = 0.8  # share of the nats for a word in a name or a value, and highest for a confirmed text
_REFUSED = 12.0  # highest nats against a video that people refused for the query
_TABLE_SHARE = 8  # texts are grouped if there are at most this many possible classes for each


@dataclass(frozen=True)
class CaptionStatistics:
    """Caption statistics of T domains.

    Attributes:
        captions: Number of captions in all domains.
        lengths: Mean number of words in a caption, ``[T]``.
        captioned: Number of videos with captions, ``[T]``.
        uncaptioned: Number of videos without captions, ``[T]``.
    """

    captions: int
    lengths: Floats
    captioned: Floats
    uncaptioned: Floats


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
        caption_frequencies: Number of captions among them, ``[U]``.
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
    caption_frequencies: Ints
    documents: int


@dataclass(frozen=True)
class WordEvidence:
    """How strongly the words of a query speak for the videos of T domains.

    Attributes:
        videos: Vector IDs of the videos with a matched text, ascending, ``[V]``.
        domains: Position of each one's domain, ``[V]``.
        nats: Evidence for each, ``float32 [V]``.
        is_complete: Whether each video's texts contain the whole query, ``[V]``.
        absent: Evidence for a captioned video without a matched text, by domain, ``float32 [T]``.
        unknown: Evidence for a video without captions and without a matched text, by domain, ``float32 [T]``.
        may_be_complete: Whether a video contains all units except those too common for all their texts to be known.
    """

    videos: Ids
    domains: Ints
    nats: npt.NDArray[np.float32]
    is_complete: npt.NDArray[np.bool_]
    absent: npt.NDArray[np.float32]
    unknown: npt.NDArray[np.float32]
    may_be_complete: bool = True

    def including(self, videos: Ids, domains: Ints, nats: npt.NDArray[np.floating]) -> WordEvidence:
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
            self.absent,
            self.unknown,
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

    def with_complete(self, videos: Ids, domains: Ints, unmatched: npt.NDArray[np.floating]) -> WordEvidence:
        """Mark these videos, ascending, as complete: they are all that contain the whole query.

        Args:
            videos: Vector IDs.
            domains: Position of each one's domain.
            unmatched: Evidence for each if no text of it matches.
        """
        found = self.including(videos, domains, unmatched)
        is_new = np.isin(found.videos, videos, assume_unique=True) & ~found.is_complete
        return replace(
            found,
            nats=(found.nats + _COMPLETE * is_new).astype(np.float32),
            is_complete=found.is_complete | is_new,
        )

    def with_phrase(self, videos: Ids) -> WordEvidence:
        """Raise the evidence for videos whose texts have the words of the query in a row; of those found already."""
        has_phrase = np.isin(self.videos, videos)
        return replace(self, nats=(self.nats + _PHRASE * has_phrase).astype(np.float32))


def word_evidence(matches: MatchedDocuments, statistics: CaptionStatistics) -> WordEvidence:
    """Compute how strongly the words of a query speak for each video; see the module.

    Args:
        matches: Texts that contain units of the query, which has at least one; without texts there is no evidence.
        statistics: Caption statistics of the domains.
    """
    is_captioned_domain = statistics.captioned > 0
    uncaptioned = _UNCAPTIONED if is_captioned_domain.any() else 0.0
    if not len(matches.videos):
        none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
        zeros = np.zeros(len(statistics.captioned), np.float32)
        unknown = zeros + np.float32(uncaptioned)
        absent = np.where(is_captioned_domain, zeros, unknown)
        return WordEvidence(none, none, none.astype(np.float32), no, absent, unknown)
    texts, class_of = _group_texts(matches, len(is_captioned_domain))
    owners = texts.domains
    rows, units = texts.strengths.nonzero()  # of few units, most texts contain one
    strengths = texts.strengths[rows, units].astype(np.float64)
    is_known = np.bincount(units, minlength=texts.strengths.shape[1]) > 0
    weights, base = _unit_weights(matches.caption_frequencies, is_known, statistics)
    confirmed = np.where(texts.votes > 0, _NOT_A_CAPTION * _saturated(texts.votes), 1.0)
    sources = np.where(texts.is_caption | (texts.votes > 0), confirmed, _NOT_A_CAPTION)
    shared = np.bincount(rows, strengths * weights[owners[rows], units], len(owners))
    brevity = 1 / (1 + _LONGER * np.maximum(0.0, texts.lengths / max(1, int(is_known.sum())) - 1))
    evidence: Floats = sources * brevity * shared
    # One column more, for how close a complete text is.
    contained = np.zeros((len(owners), texts.strengths.shape[1] + 1))
    contained[rows, units] = np.where(strengths >= 1, 1.0, _SAME_STEM) * sources[rows]
    idf = inverse_document_frequency(matches.frequencies, matches.documents)
    enough = _IS_COMPLETE * max(float(idf.sum()), 1e-6)
    is_whole = (contained[:, :-1] > 0) @ idf >= enough
    contained[:, -1] = _CLOSEST * is_whole * sources * brevity
    best = _best_per_video(matches.videos, class_of, evidence, contained)
    closest, forms = best.contained[:, -1], best.contained[:, :-1]
    is_complete = (forms > 0) @ idf >= enough
    likeness = np.where(forms > 0, forms, 1.0).min(axis=1)
    owner = owners[best.first_class]
    is_captioned = texts.is_captioned[best.first_class]
    may_be_complete = bool((forms[:, ~matches.is_partial] > 0).all(axis=1).any())
    gained = best.evidence[best.row_of]
    unknown = _mean_evidence(gained[is_captioned], owner[is_captioned], base, statistics)
    nats = base[owner] + gained
    # A name or a value does not speak against a video without captions.
    of_any = uncaptioned + np.maximum(nats, unknown[owner])
    nats = np.where(is_captioned, nats, of_any)
    nats += (is_complete * (_COMPLETE * likeness + closest))[best.row_of]
    of_unknown = uncaptioned + unknown
    return WordEvidence(
        best.videos,
        owner,
        nats.astype(np.float32),
        is_complete[best.row_of],
        np.where(is_captioned_domain, base, of_unknown).astype(np.float32),
        of_unknown.astype(np.float32),
        may_be_complete,
    )


def _saturated(votes: Ints) -> Floats:
    """Compute what share of the highest nats votes have: a half for one, three quarters for two, and so on."""
    return np.asarray(1 - 0.5 ** np.asarray(votes, np.float64))


def _mean_evidence(gained: Floats, owners: Ints, base: Floats, statistics: CaptionStatistics) -> Floats:
    """Compute the evidence for any video of each domain, ``[T]``: the mean over its captioned videos; see the module.

    Args:
        gained: Evidence for the captioned videos with a matched text, without ``base``, ``[V]``.
        owners: Position of each one's domain, ``[V]``.
        base: Evidence for a captioned video without a matched text, by domain, ``[T]``.
    """
    counts = np.bincount(owners, minlength=len(base))
    captioned = np.maximum(statistics.captioned, counts)
    others = np.maximum(1.0, statistics.uncaptioned)
    nats = np.minimum(base[owners] + gained, 600.0)  # of a very long text
    likelihoods = np.bincount(owners, np.exp(nats), len(base)) + (captioned - counts) * np.exp(base)
    means = np.log((others + likelihoods) / (others + captioned))
    overall = np.log((others.sum() + likelihoods.sum()) / (others + captioned).sum())
    return np.asarray(np.where(captioned > 0, means, overall))


def inverse_document_frequency(
    frequencies: npt.NDArray[np.integer] | Floats, documents: float | Floats
) -> Floats:
    """Weigh units by the number of documents with each, in nats; see the module."""
    return np.asarray(np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)))


def _group_texts(matches: MatchedDocuments, domains: int) -> tuple[MatchedDocuments, Ints]:
    """Group the texts that differ only in their videos, whose evidence is therefore equal.

    Returns:
        One text of each of C classes, and the class of each text, ``[D]``. If few texts can be equal, each is a class.
    """
    count = len(matches.videos)
    lengths, votes = _rank_values(matches.lengths), _rank_values(matches.votes)
    most_lengths, most_votes = int(lengths.max()) + 1, int(votes.max()) + 1
    size = domains * most_lengths * most_votes * 4 * 3 ** matches.strengths.shape[1]
    if size > _TABLE_SHARE * count:
        return matches, np.arange(count)
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
    return texts, class_of


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


def _unit_weights(
    frequencies: Ints, is_known: npt.NDArray[np.bool_], statistics: CaptionStatistics
) -> tuple[Floats, Floats]:
    """Compute what each unit adds to a text's evidence, ``[T, U]``, and the evidence of a text without any, ``[T]``.

    Args:
        frequencies: Number of captions in the library with each unit, ``[U]``.
        is_known: Whether a text has each unit, ``[U]``.
    """
    captions = max(statistics.captions, int(frequencies.max()), 1)
    shares = _share(frequencies, captions)
    others = _share(np.maximum(frequencies - 1, 0), captions - 1)
    length = max(1, int(is_known.sum()))
    certainty = _CERTAINTY * np.minimum(1.0, statistics.lengths / length)[:, None]
    present = np.log1p(certainty * (1 - others) ** 2 / others)
    absent = np.log1p(-certainty * (1 - shares))
    base = np.where(statistics.captioned > 0, absent[:, is_known].sum(axis=1), 0.0)
    return present - absent, base


def _share(counts: Ints, captions: int) -> Floats:
    """Estimate the share of captions that have a unit from how many have it."""
    return np.asarray((counts + _PRIOR_SHARE) / (captions + 1))
