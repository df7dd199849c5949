"""Query encoders: they turn a text into one query vector per task, with the weights of a release."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.backbones.tower_computation import mixed_precision
from models.encoders.tower_forward import encode_texts
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from models.routing.token_statistics import token_presence

Vectors = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int64]

_BATCH_TEXTS = {"cpu": 64, "cuda": 512}  # texts per forward: as many as fit a CPU's caches, or as fill a GPU
# Multiplications in the text tower per thread, some milliseconds of work; smaller shares do not gain from a thread.
MIN_MULTIPLICATIONS_PER_THREAD = 15 * 10**7


@dataclass(frozen=True)
class QueryEncoderInputs:
    """Releases that a query encoder is made from.

    Attributes:
        backbone: Backbone that the releases were learned on.
        release: Newest release.
        pinned: For each task, the release that made its shard.
        previous: Encoder of another release of the library on the same backbone. It is not changed.
        unchanged_tasks: Tasks whose shard's release is the same as in ``previous``. The new encoder reuses their pinned
            weights from ``previous`` and does not read their releases, if its family keeps pinned weights.
    """

    backbone: Backbone
    release: ReleaseState
    pinned: Mapping[str, ReleaseState]
    previous: QueryEncoder | None = None
    unchanged_tasks: Collection[str] = ()

    def pinned_release(self, task: str) -> ReleaseState:
        """Release that made the shard of a task.

        Raises:
            ReleaseError: The release is missing.
        """
        if task not in self.pinned:
            raise ReleaseError(f"the release that made the shard of task {task!r} is missing")
        return self.pinned[task]


class QueryEncoder(ABC):
    """Encodes texts for the tasks of a release.

    In mode ``latest``, every task uses the newest weights and the task's own prototype, as in ctvr-ffa-tame. In mode
    ``pinned``, a task uses the weights of the release that made its shard, so that its queries, like its vectors, never
    change. Both take one batched forward. In mode ``mapped``, a learned map transforms the newest vector into the space
    of each shard.

    :func:`~models.encoders.encoder_registry.open_query_encoder` creates the encoder of a release.

    Args:
        inputs: Backbone and releases.

    Attributes:
        tasks: Identifiers of the learned tasks, in order.
        modes: Query modes that the encoder family offers; the last one has the least forgetting, and is served.
        shares_text_encoding: Whether a text passes the tower once for all tasks, so that a further task costs little.

    Raises:
        ReleaseError: The release was learned on another backbone, its tensors do not fit, or a pinned release is
            missing.
    """

    modes: ClassVar[tuple[str, ...]] = ("latest",)
    shares_text_encoding: ClassVar[bool] = False

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        backbone, release = inputs.backbone, inputs.release
        if release.backbone_fingerprint != backbone.fingerprint:
            raise ReleaseError(
                f"the release was learned on another backbone than {backbone.name!r} "
                f"(fingerprint {release.backbone_fingerprint[:12]}, loaded {backbone.fingerprint[:12]}): "
                f"start with CINESTRATA_BACKBONE={release.backbone} and the weights it was learned with"
            )
        self.tasks = [task.task_id for task in release.tasks]
        self._backbone = pack_text_tower(backbone)
        # A packed tower applies the query precision itself.
        self._uses_mixed_precision = self._backbone is backbone and backbone.query_precision == "bfloat16"
        self._position = {task: position for position, task in enumerate(self.tasks)}

    @property
    def profile_factor(self) -> float:
        """Factor of the logarithms in the routing profiles that the release's method learns; one by default.

        A profile that is computed again later is multiplied by it, so that it is comparable with the others.
        """
        return 1.0

    @torch.inference_mode()
    def encode_with_backbone(self, texts: Sequence[str]) -> Vectors:
        """Unit text vectors of the backbone without learned weights, ``[n, dim]``."""
        return _to_numpy(encode_texts(self._backbone, self._backbone.tokenize(texts))[0])

    def token_presence(self, texts: Sequence[str]) -> Vectors:
        """Indicators of the tokens in each text, ``[n, V]``, for :func:`~models.routing.router.log_weights`."""
        ids = self._backbone.tokenize(texts)
        return _to_numpy(token_presence(ids, self._backbone.end_of_text(ids), self._backbone.vocabulary))

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """Unit vectors of each text for each task, ``[n, len(tasks), dim]``, in the space of the task's shard.

        Raises:
            ReleaseError: The release has not learned a task, or does not offer the mode.
        """
        positions = self._positions(tasks, mode)
        ids = self._backbone.tokenize(texts)
        lengths = self._backbone.end_of_text(ids) + 1
        # Batches of texts of similar length, each cut to its longest text, need little padding.
        order = lengths.argsort(stable=True)
        batches = torch.split(order, _BATCH_TEXTS.get(self._backbone.device.type, len(order)))
        with mixed_precision(enabled=self._uses_mixed_precision):
            parts = [
                self.encode_for_tasks(ids[rows, : int(lengths[rows].max())], positions, mode)
                for rows in batches
            ]
        encoded = torch.cat(parts, dim=1)[:, order.argsort()]
        return _to_numpy(encoded.transpose(0, 1).expand(len(texts), len(tasks), -1))

    def tokenize(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, ``[L]``, including the start and end tokens, without padding."""
        ids = self._backbone.tokenize(texts)
        lengths = (self._backbone.end_of_text(ids) + 1).tolist()
        rows = ids.cpu().numpy()
        return [row[:length].astype(np.int64) for row, length in zip(rows, lengths, strict=True)]

    def encode_pairs(self, texts: Sequence[TokenIds], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """Unit vectors of text i for task i, ``[n, dim]``, equal to those of :meth:`encode` for the same pairs.

        All pairs are rows of one batch. Rows share the frozen weights; low-rank updates are gathered per row.

        Args:
            texts: Token ids of each text, from :meth:`tokenize`.
            mode: Query mode.

        Raises:
            ReleaseError: See :meth:`encode`.
        """
        positions = torch.tensor(self._positions(tasks, mode))
        lengths = np.array([len(text) for text in texts])
        encoded = np.empty((len(texts), self._backbone.dim), np.float32)

        def encode_rows(rows: npt.NDArray[np.int64]) -> None:
            ids = torch.zeros(
                len(rows), int(lengths[rows].max()), dtype=torch.int64
            )  # every backbone pads with 0
            for place, row in enumerate(rows):
                ids[place, : lengths[row]] = torch.from_numpy(texts[row])
            # Both contexts apply only to the thread that enters them.
            with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
                vectors = self.encode_each(ids.to(self._backbone.device), positions[rows], mode)
            encoded[rows] = _to_numpy(vectors)

        threads = self._thread_count(int(lengths.sum()))
        # Parts of texts of similar length, with about equal work for each thread.
        rounds = -(-len(texts) // (threads * _BATCH_TEXTS.get(self._backbone.device.type, len(texts) or 1)))
        order = np.argsort(lengths, kind="stable")
        parts = [part for part in np.array_split(order, max(threads * rounds, 1)) if len(part)]
        remaining = iter(parts)  # a list iterator is safe to share between threads

        def encode_remaining() -> None:
            for part in remaining:
                encode_rows(part)

        # The calling thread works too: it already has a core, while a woken thread may have to wait for one.
        others = [thread_pool().submit(encode_remaining) for _ in range(min(threads, len(parts)) - 1)]
        encode_remaining()
        for other in others:
            other.result()
        return encoded

    def prepare_texts(self, texts: Sequence[TokenIds]) -> None:  # noqa: B027 (optional hook)
        """Encode texts that :meth:`routing_evidence` and :meth:`encode_pairs` will use, where tasks share an encoding.

        Args:
            texts: Token ids of each text, from :meth:`tokenize`.
        """

    def routing_evidence(self, texts: Sequence[TokenIds], tasks: Sequence[str]) -> Vectors | None:
        """Routing evidence of texts for tasks, in addition to the evidence of their words.

        Args:
            texts: Token ids of each text, from :meth:`tokenize`.
            tasks: Identifiers of the tasks.

        Returns:
            Evidence in nats, ``[n, len(tasks)]``; None if the family has no such evidence.
        """
        return None

    @property
    def routing_identity(self) -> str:
        """Identity of the weights of :meth:`routing_evidence`; empty if the family has no such evidence."""
        return ""

    @property
    def pinned_bytes(self) -> int:
        """Memory of the pinned weights of all tasks; 0 if the family does not report it."""
        return 0

    def is_task_independent(self, mode: str) -> bool:
        """Whether a text has the same vector for all tasks."""
        return False

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identity of the weights that encode texts for a task; None if a later release can change them.

        Encoders with equal identities encode a text for the task to equal vectors, up to rounding.
        """
        return None

    @abstractmethod
    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        """Vectors of token ids ``[n, L]`` for the tasks at C positions.

        Returns:
            ``[C, n, dim]``, or ``[1, n, dim]`` if the vectors are equal for all tasks.
        """

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        """Vectors ``[n, dim]`` of token ids ``[n, L]``, each for the task at its own position ``[n]``.

        This implementation is for encoders that are independent of the task.
        """
        return self.encode_for_tasks(ids, (), mode)[0]

    def _thread_count(self, tokens: int) -> int:
        """Number of threads to encode a number of tokens with.

        One if torch parallelizes the products itself; otherwise as many as there are cores, as long as each has enough
        work.
        """
        backbone = self._backbone
        if backbone.device.type != "cpu" or not backbone.has_causal_text or torch.get_num_threads() > 1:
            return 1
        shares = self._multiplications(tokens) // MIN_MULTIPLICATIONS_PER_THREAD
        return max(1, min(len(os.sched_getaffinity(0)), shares))

    def _multiplications(self, tokens: int) -> int:
        """Number of multiplications that a text tower performs for a number of tokens."""
        return 12 * self._backbone.text_width**2 * len(self._backbone.text_blocks) * tokens

    def _positions(self, tasks: Sequence[str], mode: str) -> list[int]:
        """Positions of tasks, after validation of the tasks and the mode."""
        if mode not in self.modes:
            raise ReleaseError(f"this release cannot query in mode {mode!r}, only in {', '.join(self.modes)}")
        unknown = dict.fromkeys(task for task in tasks if task not in self._position)
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        return [self._position[task] for task in tasks]


def adapter_identity(settings: Sequence[object], tensors: Mapping[str, Tensor]) -> str:
    """Digest of text adapters: adapters with equal digests encode alike.

    Args:
        settings: JSON-serializable settings that the adapters compute with.
        tensors: Weights of the adapters, by name.
    """
    digest = hashlib.sha256(json.dumps(settings).encode())
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()


@cache
def thread_pool() -> ThreadPoolExecutor:
    """Threads that encode texts, one per core."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="encode")


def _to_numpy(vectors: Tensor) -> Vectors:
    return np.ascontiguousarray(vectors.float().cpu().numpy())
