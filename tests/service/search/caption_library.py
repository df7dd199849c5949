"""Libraries learned from captions alone, with correct or altered self-test queries, for tests of search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from index.arrays import moment_ids
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders import encoder_registry
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_files import SelfTest, read_release, write_release, write_self_test
from models.releases.release_state import ParentRelease, ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import dispose, session_scope
from service.catalog.domain_videos import replace_moments
from service.catalog.migrations import upgrade
from service.catalog.tables import Task, Video
from service.core.settings import Settings, settings
from service.search.engine import SearchEngine
from trainer.methods import Method, start_method
from trainer.task_pipeline import make_self_test

BIRDS = ["a heron stands in shallow water", "a flock of starlings turns", "an owl lands on a branch"]
CARS = ["a red taxi turns left", "a truck stops at a light", "two buses pass each other"]
SEA = ["waves break over rocks", "a ferry leaves the harbour", "a whale jumps"]
_PAUSE = threading.Event()


@contextmanager
def settled(folder: Path, backbone: Backbone, **overrides: Any) -> Iterator[Settings]:
    """Settings of an empty library with a given backbone, for a library that the tests of a file share."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"data_dir": folder, **overrides}.items():
            patch.setenv(f"CINESTRATA_{name.upper()}", str(value))
        patch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: backbone)
        dispose()
        settings.cache_clear()
        upgrade(settings())
        yield settings()
        dispose()
    settings.cache_clear()


def copy_rows(service: SearchEngine) -> None:
    """Copy the catalog's rows to the engine's memory."""
    while not service.read_cache.update(service.snapshots.current()):  # takes at most a share of the time
        _PAUSE.wait(0.01)


class Library:
    """Learns tasks without video files: the vector of a video is the feature of its caption."""

    def __init__(self, configured: Settings, backbone: Backbone, method: str, **fields: Any) -> None:
        self.settings = configured
        self.store = ShardStore(configured.index_dir)
        self.method: Method = start_method(method, backbone, fields, None)
        self.confidence: ConfidenceModel | None = None  # of the following releases
        self.before: ParentRelease | None = None  # parent of the next release
        self._known: list[ReleaseTask] = []
        self._backbone = backbone

    def add_task(self, name: str, captions: Sequence[str], **published: Any) -> Manifest:
        """Learn, store and publish a task ``tsk_<name>`` with one video per caption; see :meth:`publish`."""
        task = f"tsk_{name}"
        self.method.begin_task(task, name)
        if hasattr(self.method, "tame"):  # in place of training
            torch.manual_seed(len(self.method.learned_tasks))
            torch.nn.init.normal_(self.method.tame.a, std=0.1)
            torch.nn.init.normal_(self.method.tame.b, std=0.1)
        if hasattr(self.method, "text"):
            torch.manual_seed(len(self.method.learned_tasks))
            torch.nn.init.normal_(self.method.text.b, std=0.1)
        self.method.end_task()
        self.method.record_task(task, name, list(captions))
        return self.publish(name, captions, **published)

    def publish(
        self,
        name: str,
        captions: Sequence[str],
        *,
        fingerprint: str | None = None,
        arrived: datetime | None = None,
        facts: Sequence[Mapping[str, Any]] = (),
        moments: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> Manifest:
        """Store and publish a task.

        Args:
            facts: Additional catalog columns of each video.
            moments: Video number → captions of its moments; moment n spans 10 n to 10 n + 20 seconds.
        """
        ids = self._catalogue(name, captions, arrived or datetime.now(UTC), facts)
        state = replace(self.method.release(), confidence=self.confidence)
        staged = self.store.stage()
        goes_on = state.tasks[: len(self._known)] == self._known != state.tasks
        write_release(staged, state, parent=self.before if goes_on else None)
        release = self.store.adopt_release(staged)
        self.before, self._known = ParentRelease(release.id, len(state.tasks)), list(state.tasks)
        shard = self.store.write_shard(
            task=f"tsk_{name}",
            release=release.id,
            fingerprint=fingerprint or state.fingerprint,
            ids=np.array(ids),
            vectors=self.features(captions),
        )
        segments = []
        if moments:
            with session_scope(write=True) as session:
                spans = {
                    ids[n]: [(10.0 * m, 10.0 * m + 20) for m in range(len(seen))]
                    for n, seen in moments.items()
                }
                replace_moments(session, f"tsk_{name}", spans)
            segment = self.store.write_shard(
                task=f"tsk_{name}",
                release=release.id,
                fingerprint=shard.fingerprint,
                ids=np.concatenate([moment_ids(ids[n], len(seen)) for n, seen in moments.items()]),
                vectors=self.features([caption for seen in moments.values() for caption in seen]),
            )
            segments.append(segment)
        return self.store.publish(release=release, shards=[shard], segments=segments)

    def features(self, texts: Sequence[str]) -> np.ndarray:
        return self.method.query_encoder().encode_with_backbone(texts)

    def stored(self, captions: Sequence[str]) -> np.ndarray:
        """Return the features with the precision of a shard."""
        return self.features(captions).astype(np.float16).astype(np.float32)

    def _catalogue(
        self, name: str, captions: Sequence[str], arrived: datetime, facts: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        with session_scope(write=True) as session:
            position = session.query(Task).count() + 1
            task = Task(
                id=f"tsk_{name}",
                position=position,
                name=name,
                method="zero_shot",
                state="ready",
                learned_order=position,
                created_at=arrived,
            )
            session.add(task)
            session.flush()
            videos = [
                Video(
                    **{
                        "id": f"{name}-{n}",
                        "task_id": task.id,
                        "uri": f"{name}/{n}.mp4",
                        "captions": [caption],
                        "status": "accepted",
                        **(facts[n] if facts else {}),
                    }
                )
                for n, caption in enumerate(captions)
            ]
            session.add_all(videos)
            session.flush()
            return [video.vector_id for video in videos]


Served = tuple[Library, SearchEngine]


def learn_birds_and_cars(library: Library) -> None:
    """Add birds and cars to a library."""
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)


class SelfTested(Library):
    """Publishes releases with self-test queries, as the worker does.

    Attributes:
        change: Function applied to the self-test queries of the next release before they are written.
    """

    change: Callable[[SelfTest], SelfTest] = staticmethod(lambda self_test: self_test)

    def publish(self, name: str, captions: Any, **fields: Any) -> Manifest:
        ids = np.array(self._catalogue(name, captions, datetime.now(UTC), ()))
        state = self.method.release()
        manifest = self.store.manifest()
        pinned = {
            task: read_release(self.store.release_folder(shard.release), profiles=False)
            for task, shard in manifest.shards.items()
        }
        encoder = open_query_encoder(self._backbone, state, {**pinned, f"tsk_{name}": state})
        snapshot = IndexSnapshot.open(self.store, verify=False)
        older = {
            task: snapshot.shard(task, fingerprint=manifest.shards[task].fingerprint)
            for task in manifest.shards
            if manifest.live_count(task)
        }
        vectors = self.stored(captions)
        self_test = make_self_test(encoder, f"tsk_{name}", ids, vectors, older)
        with self.store.staging() as staged:
            write_release(staged, state, parent=self.before)
            write_self_test(staged, self.change(self_test))
            release = self.store.adopt_release(staged)
        self.before, self._known = ParentRelease(release.id, len(state.tasks)), list(state.tasks)
        shard = self.store.write_shard(
            task=f"tsk_{name}", release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        return self.store.publish(release=release, shards=[shard])
