"""Texts that people confirmed or refused as descriptions of videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from index.arrays import Ids
from index.words.word_forms import words_key
from index.words.word_index import TextKind, VideoText
from service.catalog.database import id_chunks
from service.catalog.tables import Feedback
from service.search.words.rows_by_video import RowsByVideo

MAX_VOTES = 15  # more do not change the weight
MAX_JUDGED_TEXTS = 256  # per video
_FEEDBACK = Feedback.__table__.c
_ROWS = RowsByVideo(
    select(_FEEDBACK.video_vector_id, _FEEDBACK.verdict, _FEEDBACK.text).order_by(_FEEDBACK.id),
    _FEEDBACK.video_vector_id,
)

_NONE = np.empty(0, np.int64)


class JudgedTexts:
    """A library's confirmed and refused texts; immutable.

    Args:
        texts: Judged texts by vector ID, for videos that have any; refused ones have negative votes.
        refusals: Votes against each video, by the key of the words, then by vector ID.
    """

    def __init__(
        self,
        texts: Mapping[int, Sequence[VideoText]] | None = None,
        refusals: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self._texts = texts or {}
        self._refusals = refusals or {}

    def replace(self, texts: Mapping[int, Sequence[VideoText]]) -> JudgedTexts:
        """Replace the texts of videos. Other kinds of texts among them are ignored."""
        judged = {video: [text for text in own if text.votes] for video, own in texts.items()}
        changed = {video: own for video, own in judged.items() if own or video in self._texts}
        if not changed:
            return self
        before = {key for video in changed for key in map(_key, self._texts.get(video, ()))}
        now = {
            (_key(text), video): -text.votes
            for video, own in changed.items()
            for text in own
            if text.votes < 0
        }
        # Copy each set of refusals once, however many of these videos it contains.
        copies = {
            key: {
                other: votes for other, votes in self._refusals.get(key, {}).items() if other not in changed
            }
            for key in before | {key for key, _ in now}
        }
        for (key, video), votes in now.items():
            copies[key][video] = votes
        refusals = {key: videos for key, videos in {**self._refusals, **copies}.items() if videos}
        kept = {**self._texts, **changed}
        return JudgedTexts({video: own for video, own in kept.items() if own}, refusals)

    def confirmed(self, video: int) -> list[VideoText]:
        """List a video's confirmed texts."""
        return [text for text in self._texts.get(video, ()) if text.votes > 0]

    def refused(self, queries: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Find the videos refused for any of some texts: ascending vector IDs, and the votes against each."""
        if not self._refusals:
            return _NONE, _NONE
        votes: dict[int, int] = {}
        for key in {words_key(query) for query in queries}:
            for video, against in self._refusals.get(key or "", {}).items():
                votes[video] = max(against, votes.get(video, 0))
        videos = np.array(sorted(votes), np.int64)
        return videos, np.array([votes[video] for video in videos.tolist()], np.int64)


def read_judged_texts(session: Session, videos: Sequence[int]) -> dict[int, list[VideoText]]:
    """Read videos' judged texts, most votes first; refused ones have negative votes.

    A text's votes are the callers who confirmed it minus those who refused it. A text without a majority does not count
    as judged.

    Args:
        videos: Vector IDs, ascending.
    """
    votes: dict[tuple[int, str], int] = {}
    texts: dict[tuple[int, str, str], str] = {}
    for video, verdict, text in _ROWS.read(session, videos):
        key = words_key(text) or ""  # rows of an earlier version have another one
        votes[video, key] = votes.get((video, key), 0) + (1 if verdict == "right" else -1)
        texts.setdefault((video, key, verdict), text)
    judged: dict[int, list[VideoText]] = {}
    for (video, key), sum_of_votes in sorted(votes.items(), key=lambda entry: -abs(entry[1])):
        own = judged.setdefault(video, [])
        if sum_of_votes and len(own) < MAX_JUDGED_TEXTS:
            text = texts[video, key, "right" if sum_of_votes > 0 else "wrong"]
            counted = max(-MAX_VOTES, min(sum_of_votes, MAX_VOTES))
            own.append(VideoText(TextKind.CONFIRMED, text, votes=counted))
    return judged


def read_confirmed_texts(session: Session, videos: Sequence[int]) -> dict[int, list[str]]:
    """Read the confirmed texts of videos, given by vector ID; videos without any are left out."""
    found: dict[int, list[str]] = {}
    for chunk in id_chunks(sorted(videos)):
        for video, texts in read_judged_texts(session, chunk).items():
            if confirmed := [text.text for text in texts if text.votes > 0]:
                found[video] = confirmed
    return found


def _key(text: VideoText) -> str:
    return words_key(text.text) or ""
