"""Fixtures of the service: catalogs on both databases, libraries, small real videos, and tasks in a given state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from service.catalog.database import now, session_scope
from service.catalog.tables import Task, Video
from service.core.settings import Settings
from service.tasks import commands, lifecycle

if TYPE_CHECKING:  # slow imports that only tests of searches need
    from models.backbones.backbone import Backbone
    from service.search.engine import SearchEngine
    from tests.service.search.caption_library import Library


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> Settings:
    """Settings with an empty catalog, once on each database. No broker."""
    return settings_factory(tmp_path, request.param, lease_seconds=30)


@pytest.fixture
def sqlite_catalog(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Settings:
    """Settings with an empty catalog on SQLite, for tests that do not depend on the database. No broker."""
    return settings_factory(tmp_path, lease_seconds=30)


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    """The smallest backbone."""
    from models.backbones.backbone_loading import load_backbone

    return load_backbone("tiny")


@pytest.fixture
def configured(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Settings of an empty library that is searched with ``backbone``. No broker."""
    from models.encoders import encoder_registry

    monkeypatch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: backbone)
    return settings_factory(tmp_path)


@pytest.fixture
def learning(configured: Settings, backbone: Backbone) -> Library:
    """Birds and cars, with adapters that differ from release to release."""
    from tests.service.search.caption_library import BIRDS, CARS, Library

    library = Library(configured, backbone, "ffa_tame", experts=2, rank=2)
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    return library


@pytest.fixture
def service(configured: Settings) -> Iterator[SearchEngine]:
    """Search engine of the library; ``snapshots.refresh()`` opens the latest snapshot."""
    from service.search.engine import SearchEngine

    service = SearchEngine(configured)
    yield service
    service.close()


@pytest.fixture(scope="session")
def write_video() -> Callable[..., Path]:
    """``write_video(path, seed=0, frames=12)``: a real H.264 mp4 whose content depends on the seed."""

    def make(path: Path, seed: int = 0, frames: int = 12) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=12)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            picture = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            for shift in range(frames):
                frame = av.VideoFrame.from_ndarray(np.roll(picture, shift, axis=1), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return make


@pytest.fixture
def post(make_file: Callable[..., Path]) -> Callable[..., TaskDetails]:
    """``post(name, videos=2, **fields)``: a stored task whose files exist, but are no videos."""

    def make(name: str = "birds", videos: int = 2, **fields: Any) -> TaskDetails:
        uris = [make_file(f"{name}/{number}.mp4") for number in range(videos)]
        listed = [{"uri": f"{name}/{uri.name}", "captions": [f"bird {uri.stem} flies"]} for uri in uris]
        return commands.create_task(TaskSpec.model_validate({"name": name, "videos": listed, **fields})).task

    return make


@pytest.fixture
def make_file() -> Callable[..., Path]:
    """``make_file(path)``: a small file below the media root."""
    from service.core.settings import settings

    def make(path: str) -> Path:
        target = settings().media_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.encode())
        return target

    return make


@pytest.fixture
def post_probed(post: Callable[..., TaskDetails]) -> Callable[..., TaskDetails]:
    """Like ``post``, with all videos accepted: the task waits to be learned."""

    def make(name: str = "birds", videos: int = 2, **fields: Any) -> TaskDetails:
        view = post(name, videos, **fields)
        claim = lifecycle.claim_probing(view.id, "prober")
        assert claim is not None
        with session_scope(write=True) as session:
            for video in session.query(Video).filter(Video.task_id == view.id):
                video.status, video.effective_split = "accepted", "train"
                video.content_hash = f"{video.vector_id:064x}"
        claim.finish_probing(counts={"videos": videos, "accepted": videos, "train": videos}, held_out=None)
        return commands.get_task(view.id)

    return make


@pytest.fixture
def expire() -> Callable[[str], None]:
    """``expire(task_id)``: let the lease of a task expire, as after the death of its worker."""

    def make(task_id: str) -> None:
        from datetime import timedelta

        with session_scope(write=True) as session:
            session.get_one(Task, task_id).lease_expires_at = now(session) - timedelta(seconds=1)

    return make
