"""Words in transcripts, indexed apart from a library's other texts.

Two hours of subtitles have as many words as a thousand captions. In a shared index, they would make caption words look
common, and lookups would stop at the first passages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from index.vector_ids import moment_ids
from index.words.word_index import TextKind, VideoText, WordIndex
from service.catalog.transcripts import TimedText, with_following


class TranscriptWords:
    """An index of transcript passages. Immutable.

    Attributes:
        index: Words of passages, which use the IDs of moments (:mod:`index.vector_ids`).
    """

    def __init__(self, index: WordIndex, counts: Mapping[int, int]) -> None:
        self.index = index
        self._counts = counts  # passages of each video with a transcript

    @classmethod
    def empty(cls) -> TranscriptWords:
        """Create an empty index."""
        return cls(WordIndex.empty(), {})

    def replace(self, passages: Mapping[int, Sequence[Sequence[TimedText]]]) -> TranscriptWords:
        """Replace the transcripts of videos.

        Args:
            passages: Cues of each video's passages, by vector ID; a video without passages is removed.
        """
        texts: dict[int, list[VideoText]] = {}
        counts = dict(self._counts)
        for video, own in passages.items():
            texts |= {passage: [] for passage in moment_ids(video, counts.pop(video, 0)).tolist()}
            if own:
                counts[video] = len(own)
                spoken = zip(moment_ids(video, len(own)).tolist(), own, [*own[1:], []], strict=True)
                texts |= {
                    passage: [VideoText(TextKind.TRANSCRIPT, spoken_text(with_following(cues, following)))]
                    for passage, cues, following in spoken
                }
        return TranscriptWords(self.index.replace(texts.items()), counts) if texts else self


def spoken_text(cues: Sequence[TimedText]) -> str:
    """Join cues' texts."""
    return " ".join(text for *_, text in cues)
