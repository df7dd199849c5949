"""A library that version 1.0.0 wrote keeps its answers and all that people added, on both databases.

The expected values are what version 1.0.0 answered. Migrations and readers of formats alone open the library, so a test
that fails here fails for the people who have such a library.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cinestrata_client import NotFoundError
from cinestrata_schemas.syncs import SyncSpec
from cli.service_client import ServiceClient, connect
from service.catalog.database import engine
from service.catalog.migrations import upgrade
from service.core.settings import Settings, settings
from service.syncs.registered_syncs import run_sync
from tests.api.learned_library import learn
from tests.cli.invocation import run
from tests.old_catalog import copy_to_postgresql

AMOEBA, BACILLUS = "vid_a5eb6798e08e06f1", "vid_da37de2886f01f13"  # appended without IDs
SEAL = "snowfield_0-760ff444-296885fc522649e4-df1f09e9"
SNOWMOBILE = "snowfield_1-760ff444-d7eebde3cdfbdc05-21681628"
SKATE = "snowfield_2-760ff444-989b5af77106086b-20d3efc8"  # replaced a deleted version
OLD_SLED = "snowfield_3-760ff444-9448232b991d5553-c2ba5963"  # its file changed; the next run deletes it
SLED = "snowfield_3-760ff444-9448232b991d5553-11f0765a"
HARE = "snowfield_4-760ff444-afefc4122b7d0ed0-aa371118"  # without a caption in the folder
BROKEN = "broken-760ff444-4d4b0142f8d964af-f8a69ede"
TAXI = "night_0-d81a850f-8428a2150a38c355-9863111c"
LORRY = "night_1-d81a850f-1312e21a59ef5d57-b4354c0f"  # replaced a deleted version
SCOOTER = "night_2-d81a850f-29e1b0a42d3faaeb-66022aaa"
BEETLE = "night_3-d81a850f-a9ed98c5ff642739-fc7befeb"
DELETED = (
    "cell-2",
    "snowfield_2-760ff444-989b5af77106086b-7dadb29a",
    "night_1-d81a850f-1312e21a59ef5d57-61a55ff7",
)

VIDEOS: dict[
    str, tuple[str, str, dict[str, Any]]
] = {  # URI without the folder of an upload, caption, metadata
    "cell-0": ("0.mp4", "a grey paramecium swims to the left", {"place": "sea", "magnification": "100"}),
    "cell-1": (
        "1.mp4",
        "a magenta cell sinks like a stone",
        {"place": "pond", "magnification": "200", "checked": True},
    ),
    "cell-3": ("3.mp4", "two blue cells touch and part", {"place": "pond", "magnification": "400"}),
    "cell-4": ("4.mp4", "a brown ciliate shrinks", {"place": "sea", "magnification": "500"}),
    "cell-5": ("5.mp4", "an amber cell divides", {"place": "lab", "magnification": "600"}),
    BACILLUS: ("6.mp4", "a violet bacillus rests on the glass", {}),
    AMOEBA: ("7.mp4", "a pale amoeba stretches", {}),
    BROKEN: ("snowfield/broken.mp4", "", {}),
    SEAL: ("snowfield/north/snowfield-0.mp4", "a seal slides over the ice", {}),
    SNOWMOBILE: (
        "snowfield/snowfield-1.mp4",
        "a red snowmobile crosses the slope",
        {"camera": "east", "depth": 12},
    ),
    SKATE: ("snowfield/snowfield-2.mp4", "an ice skate lies in fresh snow", {}),
    OLD_SLED: ("snowfield/snowfield-3.mp4", "a sled stands below the peaks", {}),
    SLED: ("snowfield/snowfield-3.mp4", "a sled stands below the peaks", {}),
    HARE: ("snowfield/snowfield-4.mp4", "a hare in its winter coat", {"seen": "twice"}),
    TAXI: ("north/night-0.mp4", "a yellow taxi stops at the lights", {}),
    LORRY: ("night-1.mp4", "a lorry climbs the hill in the rain", {}),
    SCOOTER: ("night-2.mp4", "a scooter turns right on the bridge", {}),
    BEETLE: ("night-3.mp4", "a beetle car parks under the lamp", {}),
}
FIRST_RESULTS = {
    "a grey paramecium swims to the left": ["cell-0"],
    "a violet bacillus rests on the glass": [BACILLUS],  # appended
    "a magenta cell sinks like a stone": ["cell-1"],  # edited caption
    "a hare in its winter coat": [HARE],
    "membranes burst": ["cell-3"],  # transcript
    "the mitosis everyone asks for": ["cell-4"],  # confirmed
    "shy animal": [HARE],  # confirmed
    "cell": ["cell-1", "cell-5", "cell-3"],  # cell-5 was first until it was marked as wrong
    "a lorry climbs the hill in the rain": [LORRY],
    "a sled stands below the peaks": [SLED, OLD_SLED],
}
NEIGHBORS = {"cell-0": "cell-3", BACILLUS: AMOEBA, SEAL: SNOWMOBILE, SCOOTER: TAXI}  # by vectors alone
FEEDBACK = {
    ("shy animal", HARE, "right"),
    ("the mitosis everyone asks for", "cell-4", "right"),
    ("cell", "cell-5", "wrong"),
}

Configure = Callable[..., Settings]


def _open(library: Path, configure: Configure, database: str) -> None:
    """Start this version on the data folder, which migrates its catalog."""
    if database == "sqlite":
        configure(library)
        return
    configured = configure(library, database, upgraded=False)
    file = library / "data" / "catalog.sqlite3"
    with engine(configured).begin() as writer:
        copy_to_postgresql(file, writer)
    file.unlink()
    upgrade(configured)


def _restore(library: Path, configure: Configure, database: str) -> None:
    """Restore the snapshot of version 1.0.0 and the uploads, as docs/operations.md says."""
    (snapshot,) = (library / "data" / "backups").glob("*.tar")
    restored = configure(library, database, data_dir=library / "restored", upgraded=False)
    outcome = run("restore", snapshot)
    assert outcome.exit_code == 0, outcome.output
    shutil.copytree(library / "data" / "media", restored.media_root, dirs_exist_ok=True)


@pytest.fixture(params=[_open, _restore], ids=["opened", "restored"])
def start(request: pytest.FixtureRequest) -> Callable[[Path, Configure, str], None]:
    """Function that opens the library, or restores its snapshot."""
    start: Callable[[Path, Configure, str], None] = request.param
    return start


@pytest.fixture(params=["sqlite", "postgresql"])
def library(
    request: pytest.FixtureRequest,
    library_1_0_0: Path,
    settings_factory: Configure,
    start: Callable[[Path, Configure, str], None],
) -> ServiceClient:
    """Client of the library, which has run on SQLite or PostgreSQL."""
    start(library_1_0_0, settings_factory, request.param)
    return connect(None, None)


def _found(library: ServiceClient, query: str, **options: Any) -> list[str]:
    return [result.video_id for result in library.search(query, k=20, **options).results]


def _require_first_results(library: ServiceClient) -> None:
    first_results = {query: _found(library, query)[: len(first)] for query, first in FIRST_RESULTS.items()}
    assert first_results == FIRST_RESULTS


def test_library_answers_as_before(library: ServiceClient) -> None:
    _require_first_results(library)
    assert all(set(_found(library, query)) <= set(VIDEOS) - {BROKEN} for query in FIRST_RESULTS)
    (said,) = library.search("membranes burst").results[0].words
    assert (said.kind, said.start, said.end) == ("transcript", 0.5, 0.9)
    assert set(_found(library, "an animal", where={"place": "pond"})) == {"cell-1", "cell-3"}
    assert {video: library.find_similar(video).results[0].video_id for video in NEIGHBORS} == NEIGHBORS


def test_what_people_added_is_kept(library: ServiceClient) -> None:
    videos = {video.id: video for video in library.list_videos(limit=100).videos}
    assert set(videos) == set(VIDEOS)
    for name, (uri, caption, metadata) in VIDEOS.items():
        video = videos[name]
        path = video.uri.removeprefix("upload://").partition("/")[2] if "upload:" in video.uri else video.uri
        assert (path, video.captions, video.metadata) == (uri, [caption] if caption else [], metadata)
        assert video.status == ("rejected" if name == BROKEN else "accepted")
    cues = [(cue.start, cue.end, cue.text) for cue in library.get_video("cell-3").transcript]
    assert cues == [(0.1, 0.4, "Now we add the saline solution."), (0.5, 0.9, "The membranes burst.")]
    for deleted in DELETED:
        with pytest.raises(NotFoundError):
            library.get_video(deleted)
    given = library.list_feedback().feedback
    assert {(entry.text, entry.video_id, entry.verdict) for entry in given} == FEEDBACK
    domains = {task.name: task for task in library.list_tasks() if task.into is None}
    counts = {
        name: (task.state, task.counts.accepted, task.counts.rejected) for name, task in domains.items()
    }
    assert counts == {"night": ("ready", 4, 0), "snowfield": ("ready", 6, 1), "microscope": ("ready", 7, 0)}
    (sync,) = library.list_syncs()
    assert (sync.name, sync.source, sync.every_seconds) == ("snowfield", "snowfield", 900)
    assert (sync.vanished, sync.error, sync.task_id) == ("keep", None, domains["snowfield"].id)


@pytest.mark.usefixtures("library")
def test_sync_finds_no_difference_to_the_folders(library_1_0_0: Path) -> None:
    """Only the old version of a file, which 1.0.0 had not deleted yet, is in no file; a rejected one is tried again."""
    for folder, unchanged, new, gone in (
        (library_1_0_0 / "originals" / "night", 4, [], []),
        (settings().media_root / "snowfield", 5, ["broken.mp4"], [OLD_SLED]),
    ):
        outcome = run("sync", folder, "--dry-run", "--json")
        plan = json.loads(outcome.stdout)
        assert (plan["new"], plan["changed"], plan["recaptioned"], plan["vanished"]) == (new, [], {}, gone)
        assert plan["unchanged"] == unchanged


@pytest.mark.parametrize("start", [_open], ids=["opened"])
def test_followed_folder_is_followed_on(library: ServiceClient) -> None:
    """The last run of version 1.0.0 appended a changed file; only its old version is in no file any more."""
    spec = SyncSpec(name="snowfield", source="snowfield", every_seconds=900, vanished="delete")
    run_sync(library.register_sync(spec).id)
    (sync,) = library.list_syncs()
    assert sync.error is None
    assert sync.counts is not None
    counts = sync.counts
    assert (counts.new, counts.changed, counts.vanished) == (1, 0, 1), "a rejected file is tried again"
    assert {video.id for video in library.list_videos(limit=100).videos} >= set(VIDEOS) - {BROKEN}
    assert _found(library, "a sled stands below the peaks")[0] == SLED


@pytest.mark.slow
@pytest.mark.parametrize("start", [_open], ids=["opened"])
def test_library_learns_on(library: ServiceClient) -> None:
    """The newest release has the sums that the next domain continues."""
    videos = [
        {"id": f"moon-{number}", "uri": f"snowfield/snowfield-{number}.mp4", "captions": [caption]}
        for number, caption in enumerate(["a comet passes", "a rover stops", "a crater glows"], start=1)
    ]
    task = library.get_task(learn("moon", videos, method="analytic", settings={}))
    assert (task.state, task.error) == ("ready", None)
    later = connect(None, None)
    assert _found(later, "a rover stops")[0] == "moon-2"
    _require_first_results(later)


def test_archive_is_a_library_of_1_0_0(library_1_0_0: Path) -> None:
    """A library that later code wrote would prove nothing."""
    with closing(sqlite3.connect(library_1_0_0 / "data" / "catalog.sqlite3")) as catalog:
        assert catalog.execute("SELECT version_num FROM alembic_version").fetchall() == [("catalog_1",)]
