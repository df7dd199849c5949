"""The words of a query, and the evidence that they give for the videos whose texts contain them."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import get_args

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import TextKind as TextKindName
from cinestrata_schemas.search import MatchedText, Suggestion, SuggestionsResponse
from index.arrays import Ids, find_ids, video_ids_of
from index.words.text_analysis import COMPOUND, QUOTE, QueryUnit, parse_query, split_words, words_by_position
from index.words.word_evidence import (
    inverse_document_frequency,
    passage_evidence,
    required_units,
    word_evidence,
)
from index.words.word_index import TextKind, VideoText, WordIndex, WordMatches
from models.routing.router import Indices
from models.routing.routing_profiles import split_pieces
from service.catalog.video_texts import SourcedCues, TimedText
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput
from service.search.catalog_read_cache import VideoRow
from service.search.catalog_texts import texts_of, timed_text
from service.search.library_words import DomainCaptions, LibraryTexts
from service.search.search_request import find_count_errors
from service.search.snapshots.search_snapshot import SearchSnapshot

_FEW = 256  # videos of a domain that one scan finds in full
_MAX_SCORED = 2048  # the same, where their evidence differs
_MAX_LEVELS = 4  # distinct evidence values with a group each
_STEP = 0.5  # beyond these limits, groups have evidence that is this similar
_KINDS: dict[int, TextKindName] = dict(enumerate(get_args(TextKindName)))
_MAX_TEXTS = 3  # per result
_MIN_TEXT_SHARE = 0.2  # share of the query's IDF weight that a shown text must have
_IN_A_QUARTER_OF_THE_TEXTS = math.log(4)  # IDF weight of such a word; half of the texts are names
_SHOWN_CHARS = 240  # of a long text, around its first matched word
_MAX_CORRECTED = 8  # units from the start of a query to correct
MAX_SUGGESTIONS = 20

_Mark = tuple[int, int, int]  # start and end in a text, and index of the query's unit there


class QueryWords:
    """The words of a query, corrected where they are misspelled, and their evidence for the videos of a snapshot.

    Attributes:
        units: Words and quoted phrases.
        text: The text to encode: with corrected words and without punctuation.
        corrected: The query with corrected words; None if nothing was corrected.
        captions: Captions of the snapshot's tasks.
        evidence: Evidence for the videos of the searched tasks; its domains are the indices of the snapshot's tasks.
        passages: The passage of timed texts with the words, by video, where it says the most of the query.
        highest: Highest evidence that a video in each of the snapshot's tasks can have, ``float32 [T]``.
    """

    def __init__(
        self,
        typed: str,
        texts: LibraryTexts,
        captions: DomainCaptions,
        snapshot: SearchSnapshot,
        numbers: Indices,
    ) -> None:
        self._texts, self.captions, self._snapshot = texts, captions, snapshot
        self._tasks = snapshot.task_indices
        self.units = parse_query(typed)
        matches = texts.words.lookup(self.units)
        self.corrected = self._correct(typed, matches)
        if self.corrected is not None:
            self.units = parse_query(self.corrected)
            matches = texts.words.lookup(self.units)
        text = QUOTE.sub(" ", self.corrected or typed)
        # Without punctuation, except inside a word, so that "snow" and "snow!" are one query.
        characters = [
            " " if unicodedata.category(char)[0] == "P" and not (before + after).isalnum() else char
            for before, char, after in zip(" " + text, text, text[1:] + " ", strict=False)
        ]
        self.text = " ".join("".join(characters).split()) or self.corrected or typed
        self._weights: list[float] = inverse_document_frequency(
            matches.frequencies, matches.documents
        ).tolist()
        is_searched = np.zeros(len(snapshot.shards) + 1, np.bool_)  # the last entry is for unknown videos
        is_searched[numbers] = True
        self.passages: dict[int, int] = {}
        self._negative_domains = np.empty(0, np.int32)  # domains of the videos with negative feedback
        self._find_evidence(matches, is_searched)
        if texts.transcripts.documents and self.units:
            self._add_transcripts(is_searched)
        if texts.feedback.texts:
            self._add_negative_feedback([typed, self.text], is_searched)
        evidence = self.evidence
        self.highest = np.where(captions.uncaptioned_counts > 0, evidence.unknown, evidence.absent)
        np.maximum.at(self.highest, evidence.domains, evidence.log_odds)
        (better,) = np.nonzero(evidence.log_odds > evidence.absent[evidence.domains])
        better = better[np.argsort(evidence.domains[better], kind="stable")]  # ascending within each domain
        self._better_videos, self._better_log_odds = evidence.videos[better], evidence.log_odds[better]
        self._better_domains = evidence.domains[better]

    # -- evidence -----------------------------------------------------------------------------------------------

    def absent(self, task: str) -> float:
        """Get the evidence for a task's captioned videos without a matched text."""
        return float(self.evidence.absent[self._tasks[task]])

    def look_up(self, videos: Ids) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Look up the evidence for videos of the snapshot, and whether each matches all terms, ``[len(videos)]``."""
        evidence, domains = self.evidence, self._snapshot.video_tasks.locate(videos)
        are_captioned = self.captions.are_captioned(videos, domains)
        log_odds = np.where(are_captioned, evidence.absent[domains], evidence.unknown[domains])
        match_all, rows = find_ids(evidence.videos, videos)
        log_odds[match_all] = evidence.log_odds[rows]
        match_all[match_all] = evidence.has_all_terms[rows]  # of those with a matched text
        return log_odds, match_all

    def negative_count(self, task: str) -> int:
        """Count a task's videos with negative feedback. As many more are found, in case these fall in rank."""
        return (
            int(np.count_nonzero(self._negative_domains == self._tasks[task]))
            if len(self._negative_domains)
            else 0
        )

    def prefers_uncaptioned(self, task: str, *, many: bool) -> bool:
        """Check whether a task has many, or a few, videos with more evidence because they have no captions."""
        index = self._tasks[task]
        is_better = self.evidence.unknown[index] > self.evidence.absent[index]
        return bool(is_better) and self.captions.has_many_uncaptioned(index) is many

    def groups(self, task: str, depth: int) -> list[tuple[Ids, int]]:
        """Group a task's videos to scan besides the whole task, with the number of nearest videos to find in each.

        The groups hold the videos with more evidence than captioned videos without a matched text, except for many
        videos without captions. If those with a matched text are few, all are found. Many are grouped by equal
        evidence, because a word is the same evidence for most videos that have it, and only the nearest in each group
        are found. If there are many values, groups have similar evidence. The best groups that fill a list of the given
        depth suffice.
        """
        index = self._tasks[task]
        matched = slice(*np.searchsorted(self._better_domains, [index, index + 1]).tolist())
        videos, steps = self._better_videos[matched], self._better_log_odds[matched]
        groups = list[tuple[Ids, int]]()
        if self.prefers_uncaptioned(task, many=False):
            others = self.captions.uncaptioned(index)
            if len(videos) + len(others) <= _FEW:
                videos = np.union1d(videos, others)
            else:
                groups.append((others, depth + self.negative_count(task)))
        if len(videos) <= _FEW:
            return [*groups, (videos, len(videos))] if len(videos) else groups
        levels = np.unique(steps)
        if len(levels) > _MAX_LEVELS:
            if len(videos) <= _MAX_SCORED:
                return [*groups, (videos, len(videos))]
            steps = np.floor(steps / _STEP)
            levels = np.unique(steps)
        grouped = 0
        for level in levels[::-1]:
            group = videos[steps == level]
            groups.append((group, min(depth, len(group))))
            grouped += len(group)
            if grouped >= max(depth, _MAX_SCORED):
                break
        return groups

    def _find_evidence(self, matches: WordMatches, is_searched: npt.NDArray[np.bool_]) -> None:
        """Compute the evidence from all texts except transcripts."""
        is_partial = np.count_nonzero(matches.strengths, axis=0) < matches.frequencies
        captions = np.count_nonzero(matches.strengths[matches.kinds == TextKind.CAPTION], axis=0)
        # Of a unit so common that some of its texts are not matches, captions have their share.
        share = self.captions.statistics.captions / max(1, matches.documents)
        captions[is_partial] = np.maximum(captions, matches.frequencies * share)[is_partial]
        domains = self._snapshot.video_tasks.locate(matches.videos)
        matches, domains = matches.select(is_searched[domains]), domains[is_searched[domains]]
        self.evidence = word_evidence(
            matches,
            self.captions.statistics,
            domains=domains,
            is_captioned=self.captions.are_captioned(matches.videos, domains),
            is_partial=np.asarray(is_partial),
            caption_frequencies=captions,
        )
        if is_partial.any() and self.evidence.may_have_all_terms:
            # Another text of the video may contain a common unit.
            videos, domains = self._searched(self._texts.words.containing(self.units), is_searched)
            self.evidence = self.evidence.with_all_terms(videos, domains, self.look_up(videos)[0])
        if self.evidence.has_all_terms.any() and len(self.units) > 1:
            terms = tuple(term for unit in self.units for term in unit.terms)
            phrase = QueryUnit(terms, True, self.units[0].start, self.units[-1].end)
            self.evidence = self.evidence.with_phrase(self._texts.words.lookup([phrase]).videos)

    def _add_transcripts(self, is_searched: npt.NDArray[np.bool_]) -> None:
        """Add the evidence from transcripts, and remember each video's best passage, if no other text says more."""
        matches = self._texts.transcripts.lookup(self.units, required_units)
        log_odds, says_all = passage_evidence(
            matches.strengths, matches.kinds, matches.frequencies, matches.documents
        )
        videos = video_ids_of(matches.videos)
        domains = self._snapshot.video_tasks.locate(videos)
        (rows,) = np.nonzero((log_odds > 0) & is_searched[domains])
        # Each video's best passage; on a tie, the first.
        rows = rows[np.lexsort((matches.videos[rows], -log_odds[rows], videos[rows]))]
        rows = rows[np.diff(videos[rows], prepend=-1) != 0]
        if len(rows):
            shown = rows[says_all[rows] | (log_odds[rows] > self.look_up(videos[rows])[0])]
            self.passages = dict(zip(videos[shown].tolist(), matches.videos[shown].tolist(), strict=True))
            self.evidence = self.evidence.with_transcripts(
                videos[rows], domains[rows], log_odds[rows], says_all[rows]
            )

    def _add_negative_feedback(self, queries: Sequence[str], is_searched: npt.NDArray[np.bool_]) -> None:
        """Lower the evidence for videos with negative feedback for these words."""
        all_videos, all_votes = self._texts.feedback.negative_videos(queries)
        if not len(all_videos):
            return
        videos, self._negative_domains = self._searched(all_videos, is_searched)
        votes = all_votes[np.isin(all_videos, videos)]
        log_odds = self.look_up(videos)[0].astype(np.float64)
        self.evidence = self.evidence.with_negative_feedback(videos, self._negative_domains, votes, log_odds)

    def _searched(self, videos: Ids, is_searched: npt.NDArray[np.bool_]) -> tuple[Ids, npt.NDArray[np.int32]]:
        """Select the videos of searched tasks, with the indices of their tasks."""
        domains = self._snapshot.video_tasks.locate(videos)
        return videos[is_searched[domains]], domains[is_searched[domains]]

    # -- spelling -----------------------------------------------------------------------------------------------

    def _correct(self, typed: str, matches: WordMatches) -> str | None:
        """Correct words by one letter that no text contains and that are not one word piece; None if all are right."""
        words, transcripts = self._texts.words, self._texts.transcripts
        missing = [
            self.units[index].terms[0]
            for index in np.flatnonzero(matches.frequencies == 0)[:_MAX_CORRECTED].tolist()
            if len(self.units[index].terms) == 1
            and not QUOTE.match(typed[max(0, self.units[index].start - 1)])
        ]
        if not missing or not words.documents:
            return None
        corrections = {
            term: words.correct(term)
            for term, pieces in zip(missing, split_pieces(missing), strict=True)
            if len(pieces) != 1 and not transcripts.contains(term)
        }
        corrected = typed
        for term, start, end in reversed(split_words(typed)):
            if correction := corrections.get(term.removeprefix(COMPOUND)):
                corrected = corrected[:start] + correction + corrected[end:]
        return corrected if any(corrections.values()) else None

    # -- matched texts ------------------------------------------------------------------------------------------

    def matched_texts(
        self, video: int, row: VideoRow, passage: SourcedCues | None = None
    ) -> list[MatchedText]:
        """Show a video's matching texts, also those of the passage with the words, best first."""
        matching: list[tuple[float, int, int, VideoText, list[tuple[int, int]]]] = []
        part = self._shortest_part(passage) if passage else None
        timed = [timed_text(part)] if part else []
        positive = [text for _, text in self._texts.feedback.texts.get(video, ()) if text.votes > 0]
        texts = [*texts_of(row.uri, row.captions, row.metadata), *positive, *timed]
        least = _MIN_TEXT_SHARE * sum(self._weights)
        for number, text in enumerate(texts):
            marks = self._mark(text.text)
            if not marks:
                continue
            weight = sum(self._weights[unit] for unit in {unit for *_, unit in marks})
            if weight >= least:
                matching.append((-weight, text.kind, number, text, _join_spans(marks)))
        shown: dict[str, MatchedText] = {}
        for *_, text, spans in sorted(matching, key=lambda match: match[:3]):
            shown.setdefault(
                text.text.casefold(), _show(text, spans, part.cues if part and text in timed else ())
            )
        return list(shown.values())[:_MAX_TEXTS]

    def are_in_texts(self, video: int, words: str) -> bool:
        """Check whether the texts of a video together contain all of some words, also heard and read ones."""
        indexed, timed = self._texts.words, self._texts.transcripts
        units = parse_query(words)
        return bool(units) and all(
            video in indexed.containing([unit]) or video in video_ids_of(timed.containing([unit]))
            for unit in units
        )

    def _shortest_part(self, passage: SourcedCues) -> SourcedCues | None:
        """Find the shortest run of cues that has all query words found in a passage; None without any."""
        marks, cues = sorted(self._mark(timed_text(passage).text)), passage.cues
        ends = np.cumsum([len(text) + 1 for *_, text in cues])
        firsts = np.searchsorted(ends, [start for start, _, _ in marks], side="right").tolist()
        lasts = np.searchsorted(ends, [end - 1 for _, end, _ in marks], side="right").tolist()
        units = [unit for *_, unit in marks]
        inside: Counter[int] = Counter()
        best: Sequence[TimedText] = cues[:0]
        left = 0
        for right, unit in enumerate(units):
            inside[unit] += 1
            while inside[units[left]] > 1:
                inside[units[left]] -= 1
                left += 1
            part = cues[firsts[left] : lasts[right] + 1]
            if len(inside) == len(set(units)) and (not best or len(part) < len(best)):
                best = part
        return passage._replace(cues=best) if best else None

    def _mark(self, text: str) -> list[_Mark]:
        """Locate query units in a text; the words of a phrase, or of a word written as several, must be adjacent."""
        spellings = self._spellings_of_term
        if not any(others for of_term in spellings.values() for _, others in of_term):
            return [
                (start, end, unit)
                for term, start, end in split_words(text, spellings)
                for unit, _ in spellings[term]
            ]
        placed = words_by_position(text)
        marks: list[_Mark] = []
        for position, words in placed.items():
            for term, start, end in words:
                for unit, others in spellings.get(term, ()):
                    ends = [
                        next((last for other, _, last in placed.get(index, ()) if other in terms), 0)
                        for index, terms in enumerate(others, position + 1)
                    ]
                    if all(ends):  # every other word follows
                        marks.append((start, ends[-1] if ends else end, unit))
        return marks

    @cached_property
    def _spellings_of_term(self) -> dict[str, set[tuple[int, tuple[frozenset[str], ...]]]]:
        """Which units' spellings begin with each term, and the terms of their other words.

        Units that most texts have, such as articles, are left out.
        """
        spellings: dict[str, set[tuple[int, tuple[frozenset[str], ...]]]] = {}
        least = min(_IN_A_QUARTER_OF_THE_TEXTS, max(self._weights, default=0.0))
        transcripts = self._texts.transcripts
        for number, unit in enumerate(self.units):
            if self._weights[number] >= least:
                for first, *others in self._texts.words.expand(unit) | transcripts.expand(unit):
                    for term in first:
                        spellings.setdefault(term, set()).add((number, tuple(others)))
        return spellings


def _join_spans(marks: Sequence[_Mark]) -> list[tuple[int, int]]:
    """Merge marks into ascending, non-overlapping spans."""
    joined: list[tuple[int, int]] = []
    for start, end, _ in sorted(marks):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _show(text: VideoText, marks: Sequence[tuple[int, int]], cues: Sequence[TimedText]) -> MatchedText:
    """Show a text with its matched words; of a long text, the part around the first one; with cues if it is timed."""
    start, end = 0, len(text.text)
    if end > _SHOWN_CHARS:
        start = max(0, min(marks[0][0] - _SHOWN_CHARS // 3, end - _SHOWN_CHARS))
        end = start + _SHOWN_CHARS
    return MatchedText(
        kind=_KINDS[text.kind],
        field=text.field,
        start=cues[0][0] if cues else None,
        end=max((cue_end for _, cue_end, _ in cues), default=None),
        text=text.text[start:end],
        marks=[(first - start, last - start) for first, last in marks if first >= start and last <= end],
    )


def suggest_words(words: WordIndex, q: str, k: int) -> SuggestionsResponse:
    """Find at most k words that begin with a query's last word, most frequent first; raises InvalidInput.

    There is none to complete after a space or punctuation mark.
    """
    errors: list[FieldError] = []
    if len(q) > request_limits.MAX_QUERY_CHARS:
        hint = f"Use at most {request_limits.MAX_QUERY_CHARS}."
        errors.append(FieldError("q", f"The query has {len(q)} characters.", hint))
    errors += find_count_errors(k, "k", "suggestions", MAX_SUGGESTIONS)
    if errors:
        raise InvalidInput.of(errors)
    # In a hyphenated word, complete the last part, not the compound.
    last = max((word for word in split_words(q) if word[2] == len(q)), key=itemgetter(1), default=None)
    completions = words.suggest(last[0], k) if last is not None else []
    return SuggestionsResponse(
        suggestions=[Suggestion(text=text, count=count) for text, count in completions]
    )
