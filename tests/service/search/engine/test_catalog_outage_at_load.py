"""A snapshot that was loaded without the catalog gets the rows of appends, once the catalog answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

import numpy as np
import pytest

from models.routing.confidence_model import ConfidenceModel
from service.catalog.calibration_rows import store_calibration
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.errors import Unavailable
from service.search.engine import SearchEngine
from service.search.snapshots import appended_captions
from tests.service.search.caption_library import SEA, Library

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
REFITTED = replace(FITTED, bias=-1.0)


def _unreachable() -> NoReturn:
    raise Unavailable("The catalog database is unreachable or busy; try again.")


def _append(library: Library, domain: str, caption: str) -> None:
    """Append a video, and store a confidence model that the append fitted."""
    with session_scope(write=True) as session:
        append = Task(
            id="tsk_append",
            position=100,
            name=f"{domain} (append)",
            method="zero_shot",
            state="ready",
            target_id=f"tsk_{domain}",
            created_at=datetime.now(UTC),
        )
        video = Video(
            id="new",
            task_id=f"tsk_{domain}",
            uri="new.mp4",
            captions=[caption],
            status="accepted",
            effective_split="appended",
        )
        session.add_all([append, video])
        session.flush()
        release = library.store.manifest().release or ""
        store_calibration(
            session, append.id, release, library.store.manifest().generation + 1, REFITTED.to_json()
        )
        vector_id = video.vector_id
    pinned = library.store.manifest().shards[f"tsk_{domain}"]
    library.store.append(
        library.store.write_shard(
            task=pinned.task,
            release=pinned.release,
            fingerprint=pinned.fingerprint,
            ids=np.array([vector_id]),
            vectors=library.features([caption]),
        )
    )


def test_appends_are_read_when_the_catalog_answers_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.confidence = FITTED
    library.add_task("sea", SEA)
    _append(library, "birds", "a penguin slides on ice")
    reachable = SearchEngine(library.settings)
    assert reachable.refresh()
    expected = reachable.snapshots.current()
    assert expected.confidence_model == REFITTED

    service = SearchEngine(library.settings)
    with monkeypatch.context() as patch:
        patch.setattr(appended_captions, "read_caption_edits", _unreachable)
        assert service.refresh()
    assert service.snapshots.current().confidence_model == FITTED
    assert service.refresh_captions()
    found = service.snapshots.current()
    assert found.confidence_model == REFITTED
    assert found.appended_profiles.keys() == expected.appended_profiles.keys() == {"tsk_birds"}
    assert not service.refresh_captions()
