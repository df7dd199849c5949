"""TF-IDF vectors of captions.

A word's weight in a text is (1 + ln tf) · idf, with idf = ln((1 + n) / (1 + df)) + 1; texts have unit length. tf is how
often the word occurs in the text; df, in how many of the n fitted documents it occurs (Manning, Raghavan and Schütze,
*Introduction to Information Retrieval*, 2008, sections 6.2 and 6.4, with smoothed idf).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WORD = re.compile(r"[a-z0-9]+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def caption_words(text: str) -> list[str]:
    """Split a text into words: lower-case runs of letters a-z and digits, and single CJK characters."""
    return _WORD.findall(text.lower())


class CaptionTfidf:
    """TF-IDF vectors over the W words of some documents, which define the document frequencies."""

    def __init__(self, documents: Sequence[str]) -> None:
        frequencies = Counter(word for text in documents for word in set(caption_words(text)))
        self.words = sorted(frequencies)
        counts = np.array([frequencies[word] for word in self.words], np.float64)
        self.idf: Floats = np.log((1 + len(documents)) / (1 + counts)) + 1
        self._columns = {word: column for column, word in enumerate(self.words)}

    def transform(self, texts: Sequence[str]) -> Floats:
        """Compute unit TF-IDF vectors ``[n, W]``. Unknown words are ignored; texts without a known word are zero."""
        weights = np.zeros((len(texts), len(self.words)))
        for row, text in zip(weights, texts, strict=True):
            for word, count in Counter(caption_words(text)).items():
                if word in self._columns:
                    row[self._columns[word]] = 1 + np.log(count)
        weights *= self.idf
        lengths = np.linalg.norm(weights, axis=1, keepdims=True)
        return np.asarray(weights / np.where(lengths, lengths, 1.0))
