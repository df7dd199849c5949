"""Base class of query encoders that adapt the text tower, which runs in torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backbones.query_backbone import Vectors
from models.backbones.token_ids import TokenIds, pad_texts
from models.backbones.tower_computation import mixed_precision
from models.backbones.tower_threads import core_count, map_in_threads
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.encoders.tower_query_backbone import (
    TowerQueryBackbone,
    batch_size,
    batches_by_length,
    read_vectors,
)

# Multiplications in the text tower per thread, some milliseconds of work; a smaller share is not worth a thread.
MIN_MULTIPLICATIONS_PER_THREAD = 15 * 10**7


class AdaptedQueryEncoder(QueryEncoder):
    """Encodes texts with adapters in the text tower, or with a text tower of its own.

    Args:
        inputs: Backbone and releases. The backbone's towers are loaded in torch.
    """

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        tower = TowerQueryBackbone(inputs.backbone.towers())
        self._backbone = tower.packed
        self._uses_mixed_precision = tower.uses_mixed_precision

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        positions = self._positions(tasks, mode)
        ids = self.tokenize(texts)
        encoded = np.empty((len(texts), len(tasks), self._texts.dim), np.float32)
        for rows in batches_by_length(ids, self._backbone.device):
            padded = torch.from_numpy(pad_texts([ids[row] for row in rows]))
            with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
                vectors = self.encode_for_tasks(padded, positions, mode)
            encoded[rows] = vectors.transpose(0, 1).float().cpu().numpy()
        return encoded

    def encode_pairs(self, texts: Sequence[TokenIds], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        # All pairs are rows of one batch. Rows share the frozen weights; low-rank updates are gathered per row.
        positions = torch.tensor(self._positions(tasks, mode))
        lengths = np.array([len(text) for text in texts])
        if not texts:
            return np.empty((0, self._texts.dim), np.float32)

        def encode_rows(rows: npt.NDArray[np.int64]) -> Tensor:
            ids = torch.from_numpy(pad_texts([texts[row] for row in rows]))
            # Both contexts apply only to the thread that enters them.
            with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
                device = self._backbone.device
                return self.encode_each(ids.to(device, non_blocking=True), positions[rows], mode)

        threads = self._thread_count(int(lengths.sum()))
        # Each part has texts of similar length, and each thread about equal work.
        rounds = -(-len(texts) // (threads * batch_size(self._backbone.device, len(texts))))
        order = np.argsort(lengths, kind="stable")
        parts = [part for part in np.array_split(order, threads * rounds) if len(part)]
        return read_vectors(map_in_threads(encode_rows, parts, threads), parts)

    @abstractmethod
    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        """Encode token IDs ``[n, L]`` for the tasks at C positions.

        Returns:
            ``[C, n, dim]``, or ``[1, n, dim]`` if all tasks have the same vectors.
        """

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        """Encode token IDs ``[n, L]``, each for the task at its own position ``[n]``, to vectors ``[n, dim]``.

        This default is for encoders that ignore the task.
        """
        return self.encode_for_tasks(ids, (), mode)[0]

    def _thread_count(self, tokens: int) -> int:
        """Decide how many threads encode this many tokens.

        One if torch parallelizes the products itself; otherwise up to one per core, each with enough work.
        """
        backbone = self._backbone
        if backbone.device.type != "cpu" or not backbone.has_causal_text or torch.get_num_threads() > 1:
            return 1
        shares = self._multiplications(tokens) // MIN_MULTIPLICATIONS_PER_THREAD
        return max(1, min(core_count(), shares))

    def _multiplications(self, tokens: int) -> int:
        """Count the multiplications in a text tower for this many tokens."""
        return 12 * self._backbone.text_width**2 * len(self._backbone.text_blocks) * tokens
