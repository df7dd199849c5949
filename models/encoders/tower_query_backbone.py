"""Query encoders whose text tower runs in torch, or in an engine that the backbone compiled, and their text side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import TokenIds, pad_texts
from models.backbones.packed_text_tower import pack_text_tower
from models.backbones.query_backbone import QueryBackbone, TextVectorCaches, Vectors
from models.backbones.tower_computation import mixed_precision
from models.backbones.tower_threads import core_count, map_in_threads
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.encoders.tower_forward import encode_texts

_BATCH_TEXTS = {"cpu": 64, "cuda": 512}  # texts per forward pass: what fits a CPU's caches, or fills a GPU

# Caches for the towers, which all encoders in the process share; the second key says whether products are bfloat16.
_caches: WeakKeyDictionary[Backbone, dict[bool, TextVectorCaches]] = WeakKeyDictionary()


class TowerQueryBackbone(QueryBackbone):
    """The text side of a backbone. The weights of its text tower must not change afterwards.

    Attributes:
        uses_mixed_precision: Whether forward passes need :func:`~models.backbones.tower_computation.mixed_precision`.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.packed = pack_text_tower(backbone)
        # A packed tower applies the query precision itself.
        self.uses_mixed_precision = self.packed is backbone and backbone.query_precision == "bfloat16"
        caches = _caches.setdefault(self.packed, {})
        super().__init__(caches.setdefault(self.uses_mixed_precision, TextVectorCaches()))
        self._backbone = backbone
        self.name, self.fingerprint = backbone.name, backbone.fingerprint
        self.dim, self.vocabulary = backbone.dim, backbone.vocabulary
        self.reserved_dims, self.text_background = backbone.reserved_dims, backbone.text_background

    @property
    def engine(self) -> str:
        return self._backbone.engine

    def towers(self) -> Backbone:
        return self._backbone

    def tokenize(self, texts: Sequence[str]) -> list[TokenIds]:
        ids = self._backbone.tokenize(texts)
        return unpad(ids, self._backbone.end_of_text(ids))

    def _encodes_in_one_thread(self) -> bool:
        return self.packed.device.type == "cpu" and torch.get_num_threads() == 1

    def _encode_one(self, text: TokenIds) -> Vectors:
        vectors: Vectors = self._encode_batch([text])[0]
        return vectors

    def _encode_each(self, texts: Sequence[TokenIds]) -> Iterable[Vectors]:
        if self.packed.device.type == "cpu":
            return super()._encode_each(texts)
        return self._encode_batches(texts, [np.array([row]) for row in range(len(texts))])

    def _encode_batch(self, texts: Sequence[TokenIds]) -> Vectors:
        return self._encode_batches(texts, batches_by_length(texts, self.packed.device))

    def _encode_batches(self, texts: Sequence[TokenIds], batches: Sequence[TokenIds]) -> Vectors:
        """Encode texts to unit vectors ``[n, dim]``; each batch lists positions of texts."""
        parts = []
        with self.inference():
            for rows in batches:
                ids = torch.from_numpy(pad_texts([texts[row] for row in rows]))
                parts.append(encode_texts(self.packed, ids)[0])
        return read_vectors(parts, batches)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Set up forward passes in the calling thread."""
        with torch.inference_mode(), mixed_precision(enabled=self.uses_mixed_precision):
            yield


def read_vectors(parts: Sequence[Tensor], batches: Sequence[npt.NDArray[np.int64]]) -> Vectors:
    """Collect the vectors of encoded batches in row order. One copy, so the host waits for a device only once.

    Args:
        parts: Vectors of each batch, ``[rows, dim]``; at least one.
        batches: Rows of each batch.

    Returns:
        ``[n, dim]``.
    """
    copied = torch.cat([part.float() for part in parts]).cpu().numpy()
    vectors = np.empty_like(copied)
    vectors[np.concatenate(batches)] = copied
    return vectors


def batches_by_length(texts: Sequence[TokenIds], device: torch.device) -> list[TokenIds]:
    """Group the positions of texts into batches of similar length, which need little padding."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    size = batch_size(device, len(texts))
    return [order[start : start + size] for start in range(0, len(order), size)]


def batch_size(device: torch.device, texts: int) -> int:
    """Limit how many of the texts pass the tower at once."""
    return _BATCH_TEXTS.get(device.type, max(1, texts))


def unpad(ids: Tensor, end: Tensor) -> list[TokenIds]:
    """Split padded IDs ``[n, L]`` into texts, each up to the position ``[n]`` where it ends."""
    rows = ids.cpu().numpy().astype(np.int64, copy=False)
    return [row[: last + 1].copy() for row, last in zip(rows, end.tolist(), strict=True)]


class AdaptedQueryEncoder(QueryEncoder):
    """Encodes texts with adapters in the text tower, or with a text tower of its own."""

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

        backbone = self._backbone
        # Torch parallelizes the products itself if it may use several threads.
        is_parallel = (
            backbone.device.type != "cpu" or not backbone.has_causal_text or torch.get_num_threads() > 1
        )
        threads = 1 if is_parallel else core_count()
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
