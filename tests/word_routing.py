"""Base of fake query encoders that route by words alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class WordRouting:
    """Routing without evidence in addition to that of the words."""

    shares_text_encoding = False
    shared_modes: tuple[str, ...] = ()

    def tokenize(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Return the token IDs, which the absent evidence does not need."""
        return [np.empty(0, np.int64) for _ in texts]

    def routing_evidence(self, texts: Sequence[npt.NDArray[np.int64]], tasks: Sequence[str]) -> None:
        """Return no evidence."""
