"""What one generation of the index needs to answer queries, loaded and warmed as a whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt

from index import Snapshot
from models.backbone import Backbone
from models.query_encoder import QueryEncoder
from models.release import ReleaseState, read_release

__all__ = ["EncodedQuery", "Serving"]

Vectors = npt.NDArray[np.float32]

# Of the softmax over cosines to the tasks' centroids: frozen text features lie in a narrow cone.
_ROUTING_TEMPERATURE = 0.05
_REMEMBERED = 1024


@dataclass(frozen=True)
class EncodedQuery:
    """A text under every searchable task.

    Attributes:
        vectors: ``[T, dim]``, in the order of :attr:`Serving.tasks`.
        frozen: ``[dim]``, the text as the untrained backbone sees it.
    """

    vectors: Vectors
    frozen: Vectors


@dataclass
class Serving:
    """One generation: shards, the current release, and the encoder that reads texts for them.

    Never changed after :meth:`load`, except for the queries it remembers; a new generation is a new object.
    """

    snapshot: Snapshot
    release: ReleaseState
    encoder: QueryEncoder
    tasks: list[str]
    names: dict[str, str]
    _remembered: OrderedDict[tuple[str, str], EncodedQuery] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def load(cls, snapshot: Snapshot, backbone: Backbone) -> Serving:
        """Read the releases that the snapshot needs and try the encoder once.

        Raises:
            ModelError, ShardStoreError: the release cannot be read, or does not fit the backbone.
        """
        if snapshot.release_id is None:
            raise AssertionError("an empty index has nothing to serve")
        states: dict[str, ReleaseState] = {}

        def state_of(release: str) -> ReleaseState:
            if release not in states:
                states[release] = read_release(snapshot.release_folder(release))
            return states[release]

        release = state_of(snapshot.release_id)
        pinned = {entry.task: state_of(entry.release) for entry in snapshot.manifest.shards.values()}
        encoder = QueryEncoder.open(backbone, release, pinned)
        tasks = [task.task_id for task in release.tasks if task.task_id in snapshot.tasks]
        for mode in encoder.modes:
            encoder.encode(["a first query, so that no user waits for lazy initialisation"], tasks, mode)
        return cls(snapshot, release, encoder, tasks, {task.task_id: task.name for task in release.tasks})

    def encode(self, text: str, mode: str) -> EncodedQuery:
        """The query vectors of a text, remembered for the texts of late."""
        key = (text, mode)
        with self._lock:
            if key in self._remembered:
                self._remembered.move_to_end(key)
                return self._remembered[key]
        encoded = EncodedQuery(
            self.encoder.encode([text], self.tasks, mode)[0], self.encoder.frozen([text])[0]
        )
        with self._lock:
            self._remembered[key] = encoded
            while len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        return encoded

    def route(self, encoded: EncodedQuery, tasks: Sequence[str]) -> list[tuple[str, float]]:
        """How much the text looks like each task, best first; weights sum to one."""
        rows = [self.release.position(task) for task in tasks]
        cosines = self.release.centroids[rows].numpy() @ encoded.frozen
        weights = np.exp((cosines - cosines.max()) / _ROUTING_TEMPERATURE)
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        return [(tasks[i], float(weights[i])) for i in order]

    def fingerprint(self, task: str) -> str:
        """Of the encoder that the release expects the task's shard to be made by."""
        return self.release.tasks[self.release.position(task)].fingerprint
