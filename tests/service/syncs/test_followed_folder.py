"""A library equals its followed folder after any sequence of changes, runs and kills, and keeps what people wrote."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from cinestrata_schemas.syncs import SyncCounts, SyncSpec
from cinestrata_schemas.videos import VideoPatch
from cli.commands import sync_command
from cli.service_client import ServiceClient, connect
from service.catalog.database import session_scope
from service.catalog.operation_tables import Sync
from service.core.list_parameters import VideoFilters
from service.core.settings import settings
from service.library import deletion, video_changes
from service.library.library_listing import list_videos
from service.storage.library_files import resolve_video_path
from service.syncs import synced_files
from service.syncs.registered_syncs import list_syncs, register_sync, run_sync
from service.tasks import broker, commands
from tests.cli.invocation import run
from tests.service.syncs.finished_tasks import finish

OPERATIONS = (
    "rename",
    "move folder",
    "swap",
    "change",
    "copy",
    "copy and delete",
    "delete",
    "add",
    "restore times",
)

SEEDS = [
    0,
    pytest.param(1, marks=pytest.mark.slow),
    *(pytest.param(seed, marks=pytest.mark.endurance) for seed in (2, 3)),
]


class Killed(BaseException):
    """The worker was killed."""


class FollowedFolder:
    """A folder with ten files, and the sync that follows it.

    Attributes:
        ids: ID of each content's video.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.folder = settings().media_root / name
        self.folder.mkdir()
        self.random = random.Random(seed)
        self.made = 0
        for _ in range(10):
            self.write(f"{self.random.choice(['', 'inner/', 'deep/er/'])}{self.made}.mp4")
        spec = {"name": name, "source": name, "every_seconds": 60, "vanished": "delete"}
        self.sync = register_sync(SyncSpec.model_validate(spec)).id
        self.ids: dict[str, str] = {}
        self.ambiguous: set[str] = set()  # paths that changed more than once since the last run

    def write(self, path: str, content: str = "") -> None:
        self.made += 1
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((content or f"content {self.made}").encode())

    def paths(self) -> list[str]:
        return sorted(file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*.mp4"))

    def contents(self) -> dict[str, str]:
        return {path: (self.folder / path).read_text() for path in self.paths()}

    def change(self, operation: str) -> None:
        """Change the folder as a person would."""
        before = self.contents()
        first, second = self.random.sample(sorted(before), 2)
        new = f"new {self.made}.mp4"
        self.made += 1
        if operation == "rename":
            (self.folder / first).rename(self.folder / new)
        elif operation == "move folder":
            parent = (self.folder / first).parent
            if parent != self.folder:
                parent.rename(self.folder / f"moved {self.made}")
        elif operation == "swap":
            (self.folder / first).rename(self.folder / "swap")
            (self.folder / second).rename(self.folder / first)
            (self.folder / "swap").rename(self.folder / second)
        elif operation == "change":
            self.write(first)
            if list(before.values()).count(before[first]) == 1 and before[first] in self.ids:
                self.ids[(self.folder / first).read_text()] = self.ids.pop(before[first])
        elif operation.startswith("copy"):
            self.write(new, before[first])
            if operation == "copy and delete":
                (self.folder / first).unlink()
        elif operation == "delete" and len(before) > 6:
            (self.folder / first).unlink()
        elif operation == "add":
            self.write(new)
        elif operation == "restore times":
            os.utime(self.folder / first, (1_500_000_000, 1_500_000_000))

    def run(self) -> SyncCounts | None:
        with session_scope(write=True) as session:
            session.execute(update(Sync).where(Sync.id == self.sync).values(next_run_at=datetime.now(UTC)))
        run_sync(self.sync)
        details = next(sync for sync in list_syncs() if sync.id == self.sync)
        assert details.error is None
        return details.counts

    def settle(self) -> None:
        """Run until nothing changes."""
        for _ in range(4):
            self.run()
            finish()

    def videos(self) -> dict[str, Any]:
        """Return the accepted videos by content."""
        name = self.folder.name
        accepted = [
            video
            for video in list_videos(VideoFilters(task=name, limit=1000)).videos
            if video.status == "accepted"
        ]
        assert len({video.content_hash for video in accepted}) == len(accepted)
        return {video.content_hash: video for video in accepted}

    def check(self) -> None:
        """The library has exactly the videos of the folder, under their names, with what people wrote."""
        contents = set(self.contents().values())
        digests = {hashlib.sha256(content.encode()).hexdigest(): content for content in contents}
        videos = self.videos()
        assert {digests.get(digest, "a file that is gone") for digest in videos} == contents
        for digest, video in videos.items():
            assert resolve_video_path(video.uri).read_text() == digests[digest]
            if expected := self.ids.get(digests[digest]):
                assert (video.id, video.captions) == (expected, [f"seen in {expected}"])
        self.ids = {content: videos[digest].id for digest, content in digests.items()}
        for video in videos.values():
            video_changes.edit_video(video.id, VideoPatch(captions=[f"seen in {video.id}"]))


class CommandFolder(FollowedFolder):
    """A folder that the command synchronizes each time, instead of a worker."""

    def run(self) -> SyncCounts | None:
        outcome = run("sync", self.folder, "--vanished", "delete", "--yes")
        assert outcome.exit_code in (0, 3), outcome.output
        return None


@pytest.fixture(params=[FollowedFolder, pytest.param(CommandFolder, marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[FollowedFolder]:
    """The folder with and without ``--every``."""

    def follow(client: ServiceClient, tasks: list[str]) -> list[Any]:
        finish()
        return [client.get_task(task) for task in tasks]

    monkeypatch.setattr(sync_command, "follow", follow)
    return request.param


@pytest.fixture(autouse=True)
def no_messages(
    tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_factory(tmp_path)
    monkeypatch.setattr(broker, "send_sync", lambda sync: True)
    monkeypatch.setattr(broker, "send_probe", lambda task: True)


@contextmanager
def kill_at(step: int, kind: type[FollowedFolder], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the worker or the command before or after its next changes of the catalog."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            count()
            result = function(*given, **options)
            count()
            return result

        return call

    targets: list[tuple[Any, str]] = [
        (commands, "create_task"),
        (commands, "append_videos"),
        (synced_files, "record_files"),
        (deletion, "delete_videos"),
        (video_changes, "edit_video"),
    ]

    def connect_killing(*given: Any) -> ServiceClient:
        client = connect(*given)
        for name in ("create_task", "append_videos", "record_synced_files", "remove_videos", "edit_video"):
            setattr(client, name, killing(getattr(client, name)))
        return client

    with monkeypatch.context() as patch:
        if kind is CommandFolder:
            patch.setattr(sync_command, "connect", connect_killing)
            targets.clear()
        for target, name in targets:
            patch.setattr(target, name, killing(getattr(target, name)))
        with suppress(Killed):
            yield


@pytest.mark.parametrize("seed", SEEDS)
def test_library_equals_the_folder(
    seed: int, kind: type[FollowedFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = kind("films", seed)
    chance = followed.random
    followed.settle()
    followed.check()
    for _ in range(12):
        followed.change(chance.choice(OPERATIONS))
        if chance.random() < 0.4:
            with kill_at(chance.randrange(1, 7), kind, monkeypatch):
                followed.run()
        if chance.random() < 0.3:
            finish()
        followed.settle()
        followed.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_that_follow_each_other_lose_no_video(
    seed: int, kind: type[FollowedFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several changes come between two runs, and runs between a send and its end."""
    followed = kind("films", 100 + seed)
    chance = followed.random
    for _ in range(10):
        for _ in range(chance.randrange(1, 4)):
            followed.change(chance.choice(OPERATIONS))
            followed.ids.clear()
        with kill_at(chance.randrange(1, 12), kind, monkeypatch):
            followed.run()
        if chance.random() < 0.5:
            finish()
    followed.settle()
    followed.check()
