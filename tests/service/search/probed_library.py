"""The caption library with probe queries in its releases, correct or altered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_files import ProbeQueries, read_release, write_probes, write_release
from models.releases.release_state import ParentRelease
from tests.service.search.caption_library import Library
from trainer.task_pipeline import make_probes


class Probed(Library):
    """Publishes releases with probes, as the worker does.

    Attributes:
        change: Function applied to the probes of the next release before they are written.
    """

    change: Callable[[ProbeQueries], ProbeQueries] = staticmethod(lambda probes: probes)

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
        probes = make_probes(encoder, f"tsk_{name}", ids, vectors, older)
        with self.store.staging() as staged:
            write_release(staged, state, parent=self.before)
            write_probes(staged, self.change(probes))
            release = self.store.adopt_release(staged)
        self.before, self._known = ParentRelease(release.id, len(state.tasks)), list(state.tasks)
        shard = self.store.write_shard(
            task=f"tsk_{name}", release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        return self.store.publish(release=release, shards=[shard])
