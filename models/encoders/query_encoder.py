"""Query encoders: they turn a text into one query vector per task, using a release's weights.

This module imports no torch. :mod:`models.encoders.tower_query_backbone` is the base class of encoders that adapt the
text tower.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import ClassVar, NamedTuple

import numpy as np

from models.backbones.backbone_description import TokenIds
from models.backbones.query_backbone import QueryBackbone, Vectors
from models.errors import ReleaseError
from models.releases.release_state import Array, ReleaseState
from models.routing.routing_profiles import Pieces, distinct_pieces, piece_presence


class TokenizedText(NamedTuple):
    """A text as its encoder reads it."""

    tokens: TokenIds  # of the text tower, with the start and end tokens, [L]
    pieces: Pieces  # distinct word pieces, ascending


@dataclass(frozen=True)
class QueryEncoderInputs:
    """Releases from which a query encoder is built."""

    backbone: QueryBackbone  # text side of the backbone that the releases were learned on
    release: ReleaseState
    pinned: Mapping[str, ReleaseState]  # for each task, the release that made its shard
    # encoder for another release of the library on the same backbone. It is not modified
    previous: QueryEncoder | None = None
    # tasks whose shard has the same release as in previous. If the family keeps pinned weights, the new encoder takes
    # theirs from previous instead of reading the releases
    unchanged_tasks: Collection[str] = ()

    def pinned_release(self, task: str) -> ReleaseState:
        """Look up the release that made a task's shard; raise ReleaseError if it is missing.

        If the task was upgraded since, ``pinned`` has another lineage's release for it, and this one takes its place.
        """
        try:
            pinned = self.pinned[task]
        except KeyError:
            raise ReleaseError(f"the release that made the shard of task {task!r} is missing") from None
        if pinned is not self.release:
            learned = next((entry for entry in pinned.tasks if entry.task_id == task), None)
            if learned is not None and learned.fingerprint != self._fingerprints[task]:
                return self.release
        return pinned

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {task.task_id: task.fingerprint for task in self.release.tasks}


class QueryEncoder(ABC):
    """Encodes texts for the tasks of a release.

    In mode ``latest``, every task uses the newest weights and its own prototype, as in ctvr-ffa-tame. In mode
    ``pinned``, a task uses the weights of the release that made its shard, so that its query vectors, like its video
    vectors, never change.

    :func:`~models.encoders.encoder_registry.open_query_encoder` creates a release's encoder. Raises ReleaseError if
    the release was learned on another backbone, its tensors do not fit, or a pinned release is missing.
    """

    # Query modes that the encoder family offers; the last one forgets least, and is the one served.
    modes: ClassVar[tuple[str, ...]] = ("latest", "pinned")
    shared_modes: ClassVar[tuple[str, ...]] = ()  # in which a text has the same vector for all tasks
    shares_text_encoding: ClassVar[bool] = False  # a text passes the tower once: another task costs little

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        backbone, release = inputs.backbone, inputs.release
        if release.backbone_fingerprint != backbone.fingerprint:
            raise ReleaseError(
                f"the release was learned on another backbone than {backbone.name!r} "
                f"(fingerprint {release.backbone_fingerprint[:12]}, loaded {backbone.fingerprint[:12]}): "
                f"start with CINESTRATA_BACKBONE={release.backbone} and the weights it was learned with"
            )
        self.tasks = [task.task_id for task in release.tasks]  # in the order of learning
        self.backbone = self._texts = backbone
        self._position = {task: position for position, task in enumerate(self.tasks)}
        # Of the logarithms in the release's routing profiles, and in those that are computed later.
        self.profile_factor = 1.0

    def encode_with_backbone(self, texts: Sequence[str]) -> Vectors:
        """Encode texts with the backbone, without learned weights, to unit vectors ``[n, dim]``."""
        return self._texts.encode(self._texts.tokenize(texts))

    def piece_presence(self, texts: Sequence[str]) -> Vectors:
        """Mark the word pieces in each text, ``[n, V]``, for :func:`~models.routing.router.log_weights`."""
        return piece_presence(texts)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Convert each text to the tokens of the tower and to word pieces."""
        return [*map(TokenizedText, self._texts.tokenize(texts), distinct_pieces(texts))]

    @abstractmethod
    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """Encode each text for each task, to unit vectors ``[n, len(tasks), dim]`` in the spaces of their shards; raise
        ReleaseError for a task that the release has not learned, or a mode that it does not offer.
        """

    @abstractmethod
    def encode_pairs(self, texts: Sequence[TokenizedText], tasks: Sequence[str], mode: str) -> Vectors:
        """Encode text i for task i, to unit vectors ``[n, dim]`` equal to those from :meth:`encode`."""

    def cosines(
        self, texts: Sequence[str], tasks: Sequence[str], shards: Iterable[Vectors], needed: Array
    ) -> Iterator[Vectors]:
        """Yield, for each task, the cosines ``[n, N]`` of texts with the vectors ``[N, dim]`` of its shard, in the last
        mode, up to rounding; those that are not ``needed [n, len(tasks)]`` may be 0.
        """
        for task, vectors, is_needed in zip(tasks, shards, needed.T, strict=True):
            cosines = np.zeros((len(texts), len(vectors)), np.float32)
            if len(rows := np.flatnonzero(is_needed)):
                queries = self.encode([texts[row] for row in rows.tolist()], [task], self.modes[-1])[:, 0]
                cosines[rows] = queries @ vectors.T
            yield cosines

    def prepare_texts(self, texts: Sequence[TokenizedText]) -> None:  # noqa: B027 (optional hook)
        """Encode texts ahead of :meth:`routing_evidence` and :meth:`encode_pairs`, where tasks share an encoding."""

    def routing_evidence(self, texts: Sequence[TokenizedText], tasks: Sequence[str]) -> Vectors | None:
        """Compute the evidence of texts for tasks beyond words, in nats, ``[n, len(tasks)]``; None without any."""
        return None

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identify the weights that encode texts for a task; None if a later release can change them.

        Encoders with equal identities encode a text for the task to equal vectors, up to rounding.
        """
        return None

    def _count_shared(self, inputs: QueryEncoderInputs) -> int:
        """Count the first tasks that the previous encoder has, too, with the same pinned weights."""
        pairs = zip(self.tasks, inputs.previous.tasks if inputs.previous else (), strict=False)
        unchanged = inputs.unchanged_tasks
        return len(list(takewhile(lambda pair: pair[0] == pair[1] and pair[0] in unchanged, pairs)))

    def _positions(self, tasks: Sequence[str], mode: str) -> list[int]:
        """Look up the positions of tasks, after checking the tasks and the mode."""
        if mode not in self.modes:
            raise ReleaseError(f"this release cannot query in mode {mode!r}, only in {', '.join(self.modes)}")
        unknown = dict.fromkeys(task for task in tasks if task not in self._position)
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        return [self._position[task] for task in tasks]


def adapter_identity(settings: Sequence[object], tensors: Mapping[str, Array]) -> str:
    """Compute a digest of text adapters and their JSON-serializable settings: those with equal digests encode alike."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for name, values in sorted(tensors.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()
