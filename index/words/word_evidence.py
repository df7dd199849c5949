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

A video whose texts together *match all terms* of the query, whatever their frequencies, precedes all others; the closer
its text is to the query, the earlier. Another form of a word, a name, or a text with few votes counts less.

Relevance feedback: a positive text counts as one of the video's, with a share of the evidence that grows with the votes
for it but stays below a caption's. Negative feedback is bounded evidence against one video for one text.

A transcript of two hours has most common words somewhere, so a query's words count together only within one *passage*,
about half a minute of speech, and a video has the evidence of its best passage. For one with the weight B of the
query's IDF weight Q, it is s c (0.5 B + 25 f min(1, Q / 6)), where c rises evenly from 0, for a quarter of Q, to 1, for
all of it, f is 1 for the words as typed and less for other forms of them, and s depends on the source: 0.6 for what was
given or edited, and 0.5 for what was heard or read, where words may be wrong. A query whose words are said all the time
tells little: its weight, computed from their frequencies among passages, is small. The evidence of a transcript is
never negative, since nobody says everything that a video shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.words.word_index import TextKind, WordMatches
from index.words.word_segment import run_starts

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

# Chosen on clips of sixteen domains; benchmarks/RESULTS.md has figures of these and of thirteen others.
_CERTAINTY = 0.9  # highest λ, how surely a text about a video has a unit of a query that means the video
_PRIOR_SHARE = 0.1  # of one more caption, that has a unit
_LONGER = 0.2  # what the weights lose in a text twice as long as the query, relative to the rest
_UNCAPTIONED = 1.5  # a, in nats
_ALL_TERMS, _CLOSEST = 25.0, 10.0  # log-odds for all terms, and for one text that is exactly the query
_ALL_TERMS_SHARE = 0.95  # share of the IDF weight that counts as all terms
_PHRASE = 5.0  # log-odds for the words of the query in a row
_SAME_STEM = 0.3  # share of the log-odds for all terms that another form of a word has
_NOT_A_CAPTION = 0.8  # share of the evidence for a word in a name or a value, and highest for a positive text
_NEGATIVE = 12.0  # highest log-odds against a video with negative feedback for the query
_SPOKEN = {
    TextKind.TRANSCRIPT: 0.6,
    TextKind.SPEECH: 0.5,
    TextKind.SCREEN: 0.5,
}  # relative to a caption's evidence
_HIGHEST_SPOKEN = 40.0  # log-odds before this share, as for a caption
_SPOKEN_PER_WEIGHT, _ALL_SPOKEN = 0.5, 25.0
_SPOKEN_FROM = 0.25  # share of a query's IDF weight
_RARE = 6.0  # IDF weight of a word in one of 400 passages
_OTHER_FORM = 0.6
_SAYS_ALL_TERMS = 6.0  # log-odds from which a passage with all words of the query is a match
# Passages without the words, added so that the few passages of a small library do not make all words common.
_PRIOR_PASSAGES = 100
_MAX_PASSAGES = 20_000  # that are compared with a query


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

    @cached_property
    def distinct_lengths(self) -> tuple[Floats, Ints]:
        """The distinct lengths, ascending, and ∞, ``[L]``; and the index of each domain's length, ``[T]``."""
        distinct, indices = np.unique(self.lengths, return_inverse=True)
        return np.append(distinct, np.inf), indices


@dataclass(frozen=True)
class WordEvidence:
    """How strongly the words of a query speak for the videos of T domains.

    Attributes:
        videos: Vector IDs of the videos with a matched text, ascending, ``[V]``.
        domains: Index of each one's domain, ``[V]``.
        log_odds: Evidence for each, ``float32 [V]``.
        has_all_terms: Whether each video's texts match all terms of the query, ``[V]``.
        absent: Evidence for a captioned video without a matched text, by domain, ``float32 [T]``.
        unknown: Evidence for a video without captions and without a matched text, by domain, ``float32 [T]``.
        may_have_all_terms: Whether a video contains all units except those too common for all their texts to be known.
    """

    videos: Ids
    domains: Ints
    log_odds: npt.NDArray[np.float32]
    has_all_terms: npt.NDArray[np.bool_]
    absent: npt.NDArray[np.float32]
    unknown: npt.NDArray[np.float32]
    may_have_all_terms: bool = True

    def including(self, videos: Ids, domains: Ints, log_odds: npt.NDArray[np.floating]) -> WordEvidence:
        """Add the videos, ascending, that have no evidence yet, with this one; they do not match all terms."""
        added = np.isin(videos, self.videos, assume_unique=True, invert=True)
        if not added.any():
            return self
        order = np.argsort(np.concatenate([self.videos, videos[added]]), kind="stable")

        def join(before: npt.NDArray[Any], new: npt.ArrayLike) -> npt.NDArray[Any]:
            values = np.broadcast_to(np.asarray(new, before.dtype), videos.shape)[added]
            return np.concatenate([before, values])[order]

        return replace(
            self,
            videos=join(self.videos, videos),
            domains=join(self.domains, domains),
            log_odds=join(self.log_odds, log_odds),
            has_all_terms=join(self.has_all_terms, False),
        )

    def with_negative_feedback(
        self, videos: Ids, domains: Ints, votes: Ints, unmatched: Floats
    ) -> WordEvidence:
        """Lower the evidence for videos, ascending, with negative feedback for the query.

        Args:
            votes: Negative votes less positive ones for each.
            unmatched: Evidence for each if no text of it matches.
        """
        included = self.including(videos, domains, unmatched)
        log_odds = included.log_odds.copy()
        against = _NEGATIVE * (1 - 0.5 ** votes.astype(np.float64))
        log_odds[np.searchsorted(included.videos, videos)] -= against.astype(np.float32)
        return replace(included, log_odds=log_odds)

    def with_all_terms(self, videos: Ids, domains: Ints, unmatched: npt.NDArray[np.floating]) -> WordEvidence:
        """Mark these videos, ascending, which are all that match all terms; ``unmatched`` as for negative feedback."""
        included = self.including(videos, domains, unmatched)
        is_new = np.isin(included.videos, videos, assume_unique=True) & ~included.has_all_terms
        return replace(
            included,
            log_odds=(included.log_odds + _ALL_TERMS * is_new).astype(np.float32),
            has_all_terms=included.has_all_terms | is_new,
        )

    def with_transcripts(
        self,
        videos: Ids,
        domains: Ints,
        log_odds: npt.NDArray[np.float32],
        says_all_terms: npt.NDArray[np.bool_],
    ) -> WordEvidence:
        """Raise the evidence for videos, ascending, to that of their transcripts where it is higher.

        ``says_all_terms`` tells whether a passage of each says all terms of the query.
        """
        included = self.including(videos, domains, log_odds)
        rows = np.searchsorted(included.videos, videos)
        best, has_all_terms = included.log_odds.copy(), included.has_all_terms.copy()
        best[rows] = np.maximum(best[rows], log_odds)
        has_all_terms[rows] |= says_all_terms
        return replace(included, log_odds=best, has_all_terms=has_all_terms)

    def with_phrase(self, videos: Ids) -> WordEvidence:
        """Raise the evidence for videos whose texts have the words of the query in a row; of those with evidence."""
        has_phrase = np.isin(self.videos, videos)
        return replace(self, log_odds=(self.log_odds + _PHRASE * has_phrase).astype(np.float32))


def word_evidence(
    matches: WordMatches,
    statistics: CaptionStatistics,
    *,
    domains: Ints,
    is_captioned: npt.NDArray[np.bool_],
    is_partial: npt.NDArray[np.bool_],
    caption_frequencies: Ints,
) -> WordEvidence:
    """Compute how strongly the words of a query speak for each video; see the module.

    Args:
        matches: Texts that contain units of the query, which has at least one; without texts, there is no evidence.
        statistics: Caption statistics of the domains.
        domains: Index of the domain of each text's video, ``[D]``.
        is_captioned: Whether its video has a caption, ``[D]``.
        is_partial: Whether some texts with a unit are left out because it is too common, ``[U]``.
        caption_frequencies: Number of captions in the library with each unit, ``[U]``.
    """
    # The evidence of each text.
    is_caption = matches.kinds == TextKind.CAPTION
    votes, unit_count = matches.votes, matches.strengths.shape[1]
    rows, units = matches.strengths.nonzero()  # of few units, most texts contain one
    strengths = matches.strengths[rows, units].astype(np.float64)
    is_used = np.bincount(units, minlength=unit_count) > 0
    weights, base, levels = _unit_weights(caption_frequencies, is_used, statistics)
    # A half of the highest evidence for one vote, three quarters for two, and so on.
    positive = np.where(votes > 0, _NOT_A_CAPTION * (1 - 0.5 ** votes.astype(np.float64)), 1.0)
    sources = np.where(is_caption | (votes > 0), positive, _NOT_A_CAPTION)
    shared = np.bincount(rows, strengths * weights[levels[domains[rows]], units], len(domains))
    brevity = 1 / (1 + _LONGER * np.maximum(0.0, matches.lengths / max(1, int(is_used.sum())) - 1))
    evidence: Floats = sources * brevity * shared

    # How well each text contains the units. One column more, for how close a text that matches all terms is.
    contained = np.zeros((len(domains), unit_count + 1))
    contained[rows, units] = np.where(strengths >= 1, 1.0, _SAME_STEM) * sources[rows]
    idf = inverse_document_frequency(matches.frequencies, matches.documents)
    enough = _ALL_TERMS_SHARE * max(float(idf.sum()), 1e-6)
    is_whole = (contained[:, :-1] > 0) @ idf >= enough
    contained[:, -1] = _CLOSEST * is_whole * sources * brevity

    # The best of each video's texts.
    videos, first, gained, contained = _best_per_video(matches.videos, evidence, contained)
    closest, forms = contained[:, -1], contained[:, :-1]
    has_all_terms = (forms > 0) @ idf >= enough
    likeness = np.where(forms > 0, forms, 1.0).min(axis=1, initial=1.0)
    owner, is_captioned = domains[first], is_captioned[first]
    may_have_all_terms = not len(videos) or bool((forms[:, ~is_partial] > 0).all(axis=1).any())
    log_odds = base[owner] + gained

    # The evidence for any video of each domain is the mean over its captioned videos.
    owners = owner[is_captioned]
    counts = np.bincount(owners, minlength=len(base))
    captioned = np.maximum(statistics.captioned, counts)
    others = np.maximum(1.0, statistics.uncaptioned)
    odds = np.exp(np.minimum(log_odds[is_captioned], 600.0))  # of a very long text
    likelihoods = np.bincount(owners, odds, len(base)) + (captioned - counts) * np.exp(base)
    means = np.log((others + likelihoods) / (others + captioned))
    overall = np.log((others.sum() + likelihoods.sum()) / (others + captioned).sum())
    unknown = np.where(captioned > 0, means, overall)

    # A name or a value does not speak against a video without captions.
    is_captioned_domain = statistics.captioned > 0
    uncaptioned = _UNCAPTIONED if is_captioned_domain.any() else 0.0
    of_any = uncaptioned + np.maximum(log_odds, unknown[owner])
    log_odds = np.where(is_captioned, log_odds, of_any)
    log_odds += has_all_terms * (_ALL_TERMS * likeness + closest)
    of_unknown = uncaptioned + unknown
    return WordEvidence(
        videos=videos,
        domains=owner,
        log_odds=log_odds.astype(np.float32),
        has_all_terms=has_all_terms,
        absent=np.where(is_captioned_domain, base, of_unknown).astype(np.float32),
        unknown=of_unknown.astype(np.float32),
        may_have_all_terms=may_have_all_terms,
    )


def inverse_document_frequency(
    frequencies: npt.NDArray[np.integer] | Floats, documents: float | Floats
) -> Floats:
    """Weigh units by the number of documents with each, in nats; see the module."""
    return np.asarray(np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)))


def _best_per_video(videos: Ids, evidence: Floats, contained: Floats) -> tuple[Ids, Ints, Floats, Floats]:
    """Choose among the texts of each of V videos.

    Args:
        videos: Video of each text, ``[D]``.
        evidence: Evidence of each text, ``[D]``.
        contained: Form of each unit in it, ``[D, U]``; 0 where it is absent.

    Returns:
        The videos, ascending, ``[V]``, the first text of each, ``[V]``, the highest evidence of a text, ``[V]``, and
        the best form of each unit, ``[V, U]``.
    """
    order = np.argsort(videos, kind="stable")
    videos = videos[order]
    is_first = run_starts(videos)
    distinct, first, others = videos[is_first], order[is_first], order[~is_first]
    best, forms = evidence[first], contained[first]
    if len(others):
        video_of = np.searchsorted(distinct, videos[~is_first])
        np.maximum.at(best, video_of, evidence[others])
        rows, units = contained[others].nonzero()
        np.maximum.at(forms, (video_of[rows], units), contained[others[rows], units])
    return distinct, first, best, forms


def _unit_weights(
    frequencies: Ints, is_used: npt.NDArray[np.bool_], statistics: CaptionStatistics
) -> tuple[Floats, Floats, Ints]:
    """Compute what each unit adds to a text's evidence, ``[L, U]``, with one row for all domains of equal certainty;
    the evidence of a text without any, ``[T]``; and the row of each domain, ``[T]``.

    Args:
        frequencies: Number of captions in the library with each unit, ``[U]``.
        is_used: Whether a text has each unit, ``[U]``.
    """
    captions = max(statistics.captions, int(frequencies.max(initial=1)))
    shares = (frequencies + _PRIOR_SHARE) / (captions + 1)
    others = (np.maximum(frequencies - 1, 0) + _PRIOR_SHARE) / captions
    length = max(1, int(is_used.sum()))
    # All captions that are as long as the query have one certainty. Of several domains, there are two rows at least,
    # because NumPy sums the units of a single one in another order.
    lengths, levels = statistics.distinct_lengths
    last = int(np.searchsorted(lengths, length))
    lengths, levels = lengths[: min(len(levels), max(2, last + 1))], np.minimum(levels, last)
    certainty = _CERTAINTY * np.minimum(1.0, lengths / length)[:, None]
    present = np.log1p(certainty * (1 - others) ** 2 / others)
    absent = np.log1p(-certainty * (1 - shares))
    base = np.where(statistics.captioned > 0, absent[:, is_used].sum(axis=1)[levels], 0.0)
    return present - absent, base, levels


def required_units(frequencies: Ints, passages: int) -> list[int]:
    """Choose the rarest units of a query so that every passage with evidence has one; units that are too common are
    left out.

    Args:
        frequencies: Number of passages in the library with each unit, ``[U]``.
        passages: Number of passages in the library.
    """
    weights = inverse_document_frequency(frequencies, passages + _PRIOR_PASSAGES)
    order = np.argsort(-weights, kind="stable")
    # A passage without any of these lacks more than it may.
    most = (1 - _SPOKEN_FROM) * weights.sum()
    count = int(np.searchsorted(np.cumsum(weights[order]), most, side="right")) + 1
    few = int(np.searchsorted(np.cumsum(frequencies[order]), _MAX_PASSAGES, side="right"))
    required: list[int] = order[: min(count, few)].tolist()
    return required


def passage_evidence(
    strengths: npt.NDArray[np.floating], kinds: Ints, frequencies: Ints, passages: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Compute how strongly passages of transcripts speak for their videos; see the module.

    Args:
        strengths: How well each of D passages contains each of U units, ``[D, U]``: 1 as written, below 1 in another
            form of the word, 0 not at all.
        kinds: ``TextKind`` of each passage, ``[D]``.
        frequencies: Number of passages in the library with each unit, ``[U]``.
        passages: Number of passages in the library.

    Returns:
        The evidence, ``float32 [D]``, and whether each passage says all terms of the query, ``bool [D]``.
    """
    weights = inverse_document_frequency(frequencies, passages + _PRIOR_PASSAGES)
    weight = max(float(weights.sum()), 1e-6)
    has = strengths > 0
    shared = has @ weights
    completeness = np.clip((shared / weight - _SPOKEN_FROM) / (1 - _SPOKEN_FROM), 0, 1)
    form = np.where((strengths < 1) & has, _OTHER_FORM, 1.0).min(axis=1, initial=1.0)
    evidence = _SPOKEN_PER_WEIGHT * shared + _ALL_SPOKEN * form * min(1.0, weight / _RARE)
    share = np.array([_SPOKEN.get(kind, 0.0) for kind in TextKind])[kinds]
    evidence = (share * completeness * np.minimum(evidence, _HIGHEST_SPOKEN)).astype(np.float32)
    return evidence, has.all(axis=1) & (evidence >= _SAYS_ALL_TERMS)
