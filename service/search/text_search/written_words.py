"""Evidence from a search's words for the videos whose texts contain them, and for their domains."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import TextKind as TextKindName
from cinestrata_schemas.search import MatchedText
from index.vector_ids import find_ids, video_ids_of
from index.words.text_analysis import COMPOUND, QUOTE, QueryUnit, parse_query, split_words, words_by_position
from index.words.word_index import TextKind, VideoText, WordIndex, WordMatches
from models.routing.transcript_evidence import passage_evidence, required_units, with_transcripts
from models.routing.word_evidence import (
    MatchedDocuments,
    WordEvidence,
    inverse_document_frequency,
    word_evidence,
)
from service.catalog.transcripts import TimedText
from service.search.catalog_mirror import VideoRow
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.words.domain_captions import DomainCaptions
from service.search.words.judged_texts import JudgedTexts
from service.search.words.transcript_words import TranscriptWords, spoken_text
from service.search.words.video_texts import texts_of

Ids = npt.NDArray[np.int64]

_FEW = 256  # videos of a domain that one scan finds in full
_MAX_SCORED = 2048  # likewise, where their evidence differs
_MAX_LEVELS = 4  # distinct evidence values with a group each
_KINDS: dict[int, TextKindName] = dict(enumerate(get_args(TextKindName)))
_MAX_TEXTS = 3  # per result
_MIN_TEXT_SHARE = 0.2  # share of the query's mass that a shown text must have
_IN_A_QUARTER_OF_THE_TEXTS = math.log(4)  # mass of such a word; half of the texts are names
_SHOWN_CHARS = 240  # of a long text, around its first matched word
_MAX_CORRECTED = 8  # units from the start of a query to correct
_STEP_NATS = 0.5  # beyond these limits, groups have evidence that is this similar


@dataclass(frozen=True)
class QueryWords:
    """A query's words, corrected where they are misspelled.

    Attributes:
        units: Words and quoted phrases.
        typed: The query as typed.
        text: The text to encode: with corrected words and without punctuation.
        corrected: The query with corrected words; None if nothing was corrected.
    """

    units: Sequence[QueryUnit]
    typed: str
    text: str
    corrected: str | None


class DomainWords(NamedTuple):
    """A domain's videos by word evidence.

    Attributes:
        videos: Vector IDs of the videos with a matched text and more evidence than ``absent``, ascending.
        nats: Evidence for each, ``float32 [V]``.
        absent: Evidence for captioned videos without a matched text, in nats.
        uncaptioned: Vector IDs of the videos without captions, ascending.
        unknown: Evidence for videos without captions and without a matched text, in nats.
        refused: Number of videos that people refused for the query. As many more are found, in case these fall in rank.
    """

    videos: Ids
    nats: npt.NDArray[np.float32]
    absent: float
    uncaptioned: Ids
    unknown: float
    refused: int

    def groups(self, depth: int) -> list[tuple[Ids, int]]:
        """Group the videos to search besides the whole domain, with the number of nearest videos to find in each group.

        The groups hold the videos with more evidence than captioned videos without a matched text. A few videos form
        one group, and all are found. Many are grouped by equal evidence, because a word is the same evidence for most
        videos that have it, and only the nearest in each group are found. If there are more values, groups have similar
        evidence. The best groups that fill a list suffice.

        Args:
            depth: Length of the list.
        """
        videos = self.videos
        uncaptioned = self.uncaptioned if self.absent < self.unknown else self.uncaptioned[:0]
        count = len(videos) + len(uncaptioned)
        steps = self.nats
        levels = np.unique(steps) if count > _FEW else steps[:0]
        if count <= (_MAX_SCORED if len(levels) > _MAX_LEVELS else _FEW):
            together = np.union1d(videos, uncaptioned) if len(uncaptioned) else videos
            return [(together, len(together))] if len(together) else []
        if len(levels) > _MAX_LEVELS:
            steps = np.floor(steps / _STEP_NATS)
            levels = np.unique(steps)
        groups = [(uncaptioned, depth + self.refused)] if len(uncaptioned) else []
        found = 0
        for level in levels[::-1]:
            group = videos[steps == level]
            groups.append((group, min(depth, len(group))))
            found += len(group)
            if found >= max(depth, _MAX_SCORED):
                break
        return groups


class _Mark(NamedTuple):
    """Where a query unit starts and ends in a text."""

    start: int
    end: int
    unit: int


class SearchWords:
    """Word evidence for one search.

    Args:
        matches: Texts that contain its units; not kept, because they may be many.
        index: Words of the library.
        transcripts: Words of its transcripts.
        judged: Texts that people confirmed or refused.
        captions: Caption facts for the snapshot's tasks.
    """

    def __init__(
        self,
        query: QueryWords,
        matches: WordMatches,
        index: WordIndex,
        transcripts: TranscriptWords,
        judged: JudgedTexts,
        captions: DomainCaptions,
        snapshot: SearchSnapshot,
        tasks: Sequence[str],
    ) -> None:
        self.query = query
        self._masses: list[float] = inverse_document_frequency(
            matches.frequencies, matches.documents
        ).tolist()
        self._index, self._judged, self._captions, self._snapshot = index, judged, captions, snapshot
        self._transcripts = transcripts.index
        self._positions = snapshot.positions
        searched = np.zeros(len(snapshot.shards) + 1, np.bool_)  # the last entry is for unknown videos
        searched[self._places(tasks)] = True
        self._passages: dict[int, int] = {}  # video → its passage with the words
        self._refused = np.empty(0, np.int32)  # task positions of refused videos
        self._evidence = self._add_transcripts(self._find_evidence(matches, searched), searched)
        self._evidence = found = self._with_refusals(searched)
        self._highest = np.where(captions.uncaptioned_counts > 0, found.unknown, found.absent)
        np.maximum.at(self._highest, found.domains, found.nats)
        (better,) = np.nonzero(found.nats > found.absent[found.domains])
        better = better[np.argsort(found.domains[better], kind="stable")]  # ascending within each domain
        self._better_videos, self._better_nats = found.videos[better], found.nats[better]
        self._starts = np.searchsorted(found.domains[better], np.arange(len(snapshot.shards) + 1)).tolist()

    def absent(self, task: str) -> float:
        """Get the evidence for a task's captioned videos without a matched text, in nats."""
        return float(self._evidence.absent[self._positions[task]])

    def highest(self, tasks: Sequence[str]) -> npt.NDArray[np.float32]:
        """Get the highest evidence that a video in each task can have, in nats, ``[len(tasks)]``."""
        return self._highest[self._places(tasks)]

    def domain(self, task: str) -> DomainWords:
        """Collect a domain's videos by their evidence."""
        position = self._positions[task]
        own = slice(self._starts[position], self._starts[position + 1])
        return DomainWords(
            self._better_videos[own],
            self._better_nats[own],
            float(self._evidence.absent[position]),
            self._captions.uncaptioned(position),
            float(self._evidence.unknown[position]),
            int(np.count_nonzero(self._refused == position)) if len(self._refused) else 0,
        )

    def nats(self, videos: Ids) -> npt.NDArray[np.float32]:
        """Look up the evidence for videos of the snapshot by vector ID, ``[len(videos)]``."""
        nats = self._unmatched(self._evidence, videos)
        is_matched, places = find_ids(self._evidence.videos, videos)
        nats[is_matched] = self._evidence.nats[places]
        return np.asarray(nats, np.float32)

    def nats_of_unknown(self, videos: Ids) -> npt.NDArray[np.float32]:
        """Look up what lack of captions adds to the evidence for videos; 0 with captions, ``[len(videos)]``."""
        positions = self._snapshot.locate(videos)
        are_captioned = self._captions.are_captioned(videos, positions)
        return np.where(are_captioned, np.float32(0), self._evidence.unknown[positions])

    def complete_videos(self) -> tuple[Ids, npt.NDArray[np.integer]]:
        """Find the videos whose texts contain the whole query: vector IDs, and the positions of their tasks."""
        complete = self._evidence.is_complete
        return self._evidence.videos[complete], self._evidence.domains[complete]

    def are_complete(self, videos: Ids) -> npt.NDArray[np.bool_]:
        """Check for each video, by vector ID, whether its texts contain the whole query, ``[len(videos)]``."""
        are_complete, places = find_ids(self._evidence.videos, videos)
        are_complete[are_complete] = self._evidence.is_complete[places]  # of those with a matched text
        return are_complete

    def matched_videos(self, ids: Sequence[int]) -> set[int]:
        """Keep the videos that have a text with a word of the query."""
        wanted = np.array(ids, np.int64)
        return set(wanted[find_ids(self._evidence.videos, wanted)[0]].tolist())

    def passages(self, videos: Iterable[int]) -> list[int]:
        """List the transcript passages that have the words by ID, one per video with such a passage."""
        return [self._passages[video] for video in videos if video in self._passages]

    def matched_texts(
        self, video: int, row: VideoRow, passage: Sequence[TimedText] = ()
    ) -> list[MatchedText]:
        """Show a video's matching texts, best first; at most :data:`_MAX_TEXTS`.

        Args:
            passage: Cues of its transcript passage with the words.
        """
        found: list[tuple[float, int, int, VideoText, list[tuple[int, int]]]] = []
        part = self._shortest_part(passage) if passage else ()
        spoken = [VideoText(TextKind.TRANSCRIPT, spoken_text(part))] if part else []
        texts = [*texts_of(row.uri, row.captions, row.metadata), *self._judged.confirmed(video), *spoken]
        least = _MIN_TEXT_SHARE * sum(self._masses)
        for place, text in enumerate(texts):
            marks = self._mark(text.text)
            if not marks:
                continue
            mass = sum(self._masses[unit] for unit in {mark.unit for mark in marks})
            if mass >= least:
                found.append((-mass, text.kind, place, text, _join_spans(marks)))
        shown: dict[str, MatchedText] = {}
        for *_, text, spans in sorted(found, key=lambda match: match[:3]):
            shown.setdefault(text.text.casefold(), _show(text, spans, part))
        return list(shown.values())[:_MAX_TEXTS]

    def _shortest_part(self, cues: Sequence[TimedText]) -> Sequence[TimedText]:
        """Find the shortest run of cues that has all query words found in the cues; empty without any."""
        marks = sorted(self._mark(spoken_text(cues)))
        ends = np.cumsum([len(text) + 1 for *_, text in cues])
        firsts = np.searchsorted(ends, [mark.start for mark in marks], side="right").tolist()
        lasts = np.searchsorted(ends, [mark.end - 1 for mark in marks], side="right").tolist()
        wanted = len({mark.unit for mark in marks})
        inside: Counter[int] = Counter()
        best: Sequence[TimedText] = cues[:0]
        left = 0
        for right, mark in enumerate(marks):
            inside[mark.unit] += 1
            while inside[marks[left].unit] > 1:
                inside[marks[left].unit] -= 1
                left += 1
            part = cues[firsts[left] : lasts[right] + 1]
            if len(inside) == wanted and (not best or len(part) < len(best)):
                best = part
        return best

    def _mark(self, text: str) -> list[_Mark]:
        """Locate query units in a text; the words of a phrase, or of a word written as several, must be adjacent."""
        spellings = self._spellings_of_term
        if not self._has_phrase:
            return [
                _Mark(word.start, word.end, number)
                for word in split_words(text, spellings)
                for number, _ in spellings[word.term]
            ]
        placed = words_by_position(text)
        marks: list[_Mark] = []
        for position, words in placed.items():
            for word in words:
                for number, others in spellings.get(word.term, ()):
                    following = [
                        next((other for other in placed.get(place, ()) if other.term in terms), None)
                        for place, terms in enumerate(others, position + 1)
                    ]
                    last = following[-1] if following else word
                    if last is not None and None not in following:
                        marks.append(_Mark(word.start, last.end, number))
        return marks

    @cached_property
    def _has_phrase(self) -> bool:
        return any(others for own in self._spellings_of_term.values() for _, others in own)

    @cached_property
    def _spellings_of_term(self) -> dict[str, set[tuple[int, tuple[frozenset[str], ...]]]]:
        """Which units' spellings begin with each term, and the terms of their other words.

        Units that most texts have, such as articles, are left out.
        """
        found: dict[str, set[tuple[int, tuple[frozenset[str], ...]]]] = {}
        least = min(_IN_A_QUARTER_OF_THE_TEXTS, max(self._masses, default=0.0))
        for number, unit in enumerate(self.query.units):
            if self._masses[number] >= least:
                for first, *others in self._index.expand(unit) | self._transcripts.expand(unit):
                    for term in first:
                        found.setdefault(term, set()).add((number, tuple(others)))
        return found

    def _places(self, tasks: Sequence[str]) -> npt.NDArray[np.intp]:
        """Look up tasks' positions in the snapshot, ``[len(tasks)]``."""
        return np.fromiter(map(self._positions.__getitem__, tasks), np.intp, len(tasks))

    def _find_evidence(self, matches: WordMatches, searched: npt.NDArray[np.bool_]) -> WordEvidence:
        is_partial = np.count_nonzero(matches.strengths, axis=0) < matches.frequencies
        is_caption = matches.kinds == TextKind.CAPTION
        captions = np.count_nonzero(matches.strengths[is_caption], axis=0)
        # Of a unit so common that some of its texts are not matches, captions have their share.
        share = self._captions.statistics.captions / max(1, matches.documents)
        captions[is_partial] = np.maximum(captions, matches.frequencies * share)[is_partial]
        domains = self._snapshot.locate(matches.videos)
        kept = searched[domains]
        matches, domains = matches.select(kept), domains[kept]
        found = word_evidence(
            MatchedDocuments(
                matches.videos,
                domains,
                is_caption[kept],
                self._captions.are_captioned(matches.videos, domains),
                matches.lengths,
                matches.strengths,
                matches.votes,
                np.asarray(is_partial),
                matches.frequencies,
                captions,
                matches.documents,
            ),
            self._captions.statistics,
        )
        if is_partial.any() and found.may_be_complete:  # another text of the video may contain a common unit
            complete = self._index.containing(self.query.units)
            positions = self._snapshot.locate(complete)
            complete, positions = complete[searched[positions]], positions[searched[positions]]
            found = found.with_complete(complete, positions, self._unmatched(found, complete))
        if found.is_complete.any() and len(self.query.units) > 1:
            found = found.with_phrase(self._with_phrase())
        return found

    def _add_transcripts(self, found: WordEvidence, searched: npt.NDArray[np.bool_]) -> WordEvidence:
        """Add the evidence from transcripts, and remember each video's best passage."""
        if not self._transcripts.documents or not self.query.units:
            return found
        matches = self._transcripts.lookup(self.query.units, required_units)
        nats, says_it = passage_evidence(matches.strengths, matches.frequencies, matches.documents)
        videos = video_ids_of(matches.videos)
        domains = self._snapshot.locate(videos)
        (kept,) = np.nonzero((nats > 0) & searched[domains])
        # Each video's best passage; on a tie, the first.
        kept = kept[np.lexsort((matches.videos[kept], -nats[kept], videos[kept]))]
        kept = kept[np.diff(videos[kept], prepend=-1) != 0]
        if not len(kept):
            return found
        self._passages = dict(zip(videos[kept].tolist(), matches.videos[kept].tolist(), strict=True))
        return with_transcripts(found, videos[kept], domains[kept], nats[kept], says_it[kept])

    def _with_refusals(self, searched: npt.NDArray[np.bool_]) -> WordEvidence:
        """Add the evidence from videos that people refused for these words."""
        videos, votes = self._judged.refused([self.query.typed, self.query.text])
        if not len(videos):
            return self._evidence
        domains = self._snapshot.locate(videos)
        kept = searched[domains]
        videos, domains = videos[kept], domains[kept]
        self._refused = domains
        return self._evidence.with_refused(videos, domains, votes[kept], self.nats(videos).astype(np.float64))

    def _unmatched(self, found: WordEvidence, videos: Ids) -> npt.NDArray[np.float32]:
        """Look up the evidence for videos of the snapshot if no text of theirs matched, ``[len(videos)]``."""
        positions = self._snapshot.locate(videos)
        are_captioned = self._captions.are_captioned(videos, positions)
        return np.where(are_captioned, found.absent[positions], found.unknown[positions])

    def _with_phrase(self) -> Ids:
        """Find the videos with a text that has the words of the query in a row."""
        units = self.query.units
        terms = tuple(term for unit in units for term in unit.terms)
        return self._index.lookup([QueryUnit(terms, True, units[0].start, units[-1].end)]).videos


def find_words(
    text: str,
    index: WordIndex,
    transcripts: TranscriptWords,
    are_known: Callable[[Sequence[str]], Sequence[bool]],
) -> tuple[QueryWords, WordMatches]:
    """Look up the words of a query and the texts that contain them.

    A word that no text contains and the tokenizer does not know is corrected by one letter.

    Args:
        index: Words of the library, which are the possible corrections.
        transcripts: Words of its transcripts.
        are_known: Checks, for each word, whether the text tower's tokenizer knows it as a whole.
    """
    units = parse_query(text)
    matches = index.lookup(units)
    missing = [
        units[number].terms[0]
        for number in np.flatnonzero(matches.frequencies == 0)[:_MAX_CORRECTED].tolist()
        if len(units[number].terms) == 1 and not QUOTE.match(text[max(0, units[number].start - 1)])
    ]
    missing = [term for term in missing if not transcripts.index.contains(term)]
    known = dict(zip(missing, are_known(missing), strict=True)) if missing and index.documents else {}
    corrections = {term: index.correct(term, known.__getitem__) for term in known}
    better = {term: correction for term, correction in corrections.items() if correction is not None}
    corrected = text
    if better:
        for word in reversed(split_words(text)):
            if correction := better.get(word.term.removeprefix(COMPOUND)):
                corrected = corrected[: word.start] + correction + corrected[word.end :]
        units = parse_query(corrected)
        matches = index.lookup(units)
    encoded = _without_punctuation(QUOTE.sub(" ", corrected))
    return QueryWords(units, text, encoded or corrected, corrected if better else None), matches


def _without_punctuation(text: str) -> str:
    """Replace punctuation by spaces, except inside a word, so that "snow" and "snow!" are one query."""
    kept = [
        " " if unicodedata.category(char)[0] == "P" and not (before + after).isalnum() else char
        for before, char, after in zip(" " + text, text, text[1:] + " ", strict=False)
    ]
    return " ".join("".join(kept).split())


def _join_spans(marks: Sequence[_Mark]) -> list[tuple[int, int]]:
    """Merge marks into ascending, non-overlapping spans."""
    joined: list[tuple[int, int]] = []
    for start, end, _ in sorted(marks):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _show(text: VideoText, marks: Sequence[tuple[int, int]], spoken: Sequence[TimedText]) -> MatchedText:
    """Show a text with its matched words; of a long text, the part around the first one.

    Args:
        spoken: Cues of the text, if it comes from a transcript.
    """
    is_spoken = text.kind == TextKind.TRANSCRIPT
    start, end = 0, len(text.text)
    if end > _SHOWN_CHARS:
        start = max(0, min(marks[0][0] - _SHOWN_CHARS // 3, end - _SHOWN_CHARS))
        end = start + _SHOWN_CHARS
    return MatchedText(
        kind=_KINDS[text.kind],
        field=text.field,
        start=spoken[0][0] if is_spoken else None,
        end=max(cue_end for _, cue_end, _ in spoken) if is_spoken else None,
        text=text.text[start:end],
        marks=[(first - start, last - start) for first, last in marks if first >= start and last <= end],
    )
