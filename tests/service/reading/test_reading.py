"""Reading of videos by workers: the queue, its leases, and what people do meanwhile. The reader itself is a fake."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.tasks import ReadingSpec, TaskDetails
from cinestrata_schemas.videos import Cue, VideoPatch
from media import DecoderUnavailable, UndecidedVideo
from media.reading import SourceReading, VideoReading
from media.timed_texts import TimedText
from service.catalog import leases, readings
from service.catalog.database import now, session_scope
from service.catalog.readings import MODEL_SOURCES, READ_SOURCES
from service.catalog.tables import Passage, Reading, Task, Video
from service.core.errors import Conflict, DecoderOutage, NotFound
from service.core.settings import Settings, settings
from service.library.deletion import delete_videos
from service.library.library_listing import get_video
from service.library.library_status import library_status
from service.library.video_changes import edit_video
from service.reading import reading_worker
from service.reading.reading_commands import cancel_reading, get_reading, start_reading
from service.reading.reading_worker import ReadingClaim, ReadingThread, claim_readings, read_queued
from service.tasks import commands
from tests.catalog_rows import accepted_videos, mark_learned
from tests.media.test_file_texts import write_film

Post = Callable[..., TaskDetails]


class FakeReader:
    """Hears and reads the same in each video; calls ``during`` while it reads one."""

    def __init__(self) -> None:
        self.during: Callable[[], object] = lambda: None
        self.read_videos: list[tuple[str, str | None]] = []
        self.heard = "a heron flies"

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(
        self,
        path: Path,
        sources: Collection[TextSource],
        *,
        speech_model: str | None,
        name: str,
        progress: Callable[[], None],
    ) -> VideoReading:
        self.read_videos.append((name, speech_model))
        if not path.exists():
            raise UndecidedVideo("The file no longer exists")
        self.during()
        progress()
        reading: VideoReading = {}
        for source in sources:
            text = {"speech": self.heard, "screen": "HERONS"}[source]
            reading[source] = SourceReading([TimedText(1.0, 3.0, text)], model=f"{source} model")
        return reading


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> FakeReader:
    reader = FakeReader()
    monkeypatch.setattr(reading_worker, "VideoReader", lambda: reader)
    return reader


@pytest.fixture
def domain(catalog: Settings, post_probed: Post) -> str:
    """ID of a learned domain of three videos; its rows exist, but no files of the index."""
    return mark_learned(post_probed("birds", 3, read="speech,screen").id)


def _names(domain: str) -> list[str]:
    return [video.id for video in accepted_videos(domain)]


def _texts(video: str) -> list[tuple[str, str | None]]:
    return [(cue.text, cue.source) for cue in get_video(video).transcript]


def _counts(domain: str) -> tuple[int, int, int, int]:
    progress = get_reading(domain)
    return progress.total, progress.done, progress.remaining, progress.failed


def _expire_leases() -> None:
    with session_scope(write=True) as session:
        session.execute(update(Reading).values(lease_expires_at=now(session) - timedelta(seconds=1)))


def _claimed(owner: str = "first") -> ReadingClaim:
    claim = claim_readings(owner, READ_SOURCES)
    assert claim is not None
    return claim


HEARD = [("a heron flies", "speech"), ("HERONS", "screen")]


def _reading() -> VideoReading:
    return {
        source: SourceReading([TimedText(1.0, 3.0, text)], model=f"{source} model") for text, source in HEARD
    }


def test_domain_is_read_video_by_video(
    domain: str, reader: FakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = _names(domain)
    monkeypatch.setattr(readings, "_unfinished", (0.0, {}))  # counted by another test
    assert (commands.get_task(domain).reading, library_status().unread) == (None, 0)
    assert start_reading(domain, ReadingSpec()).remaining == 3
    assert start_reading(domain, ReadingSpec()).remaining == 3
    assert library_status().unread == 3
    (settings().media_root / get_video(second).uri).unlink()
    seen: list[tuple[int, int]] = []

    def look() -> None:
        progress = commands.get_task(domain).reading
        assert progress is not None
        assert progress.active
        seen.append((progress.done, len(get_video(first).transcript)))

    reader.during = look
    assert read_queued("worker") == 3
    assert seen == [(0, 0), (2, 2)]  # searchable at once, before the next is read
    assert commands.get_task(domain).reading is None
    assert _counts(domain) == (3, 3, 0, 1)
    assert [_texts(video) for video in (first, second, third)] == [HEARD, [], HEARD]
    states = {row.source: (row.state, row.model, row.note) for row in get_video(first).readings}
    assert states == {source: ("done", f"{source} model", None) for source in MODEL_SOURCES}
    (missing, _) = get_video(second).readings
    assert missing.state == "failed"
    assert "is not a file" in (missing.note or "")
    with session_scope() as session:
        edits = dict(session.execute(select(Video.id, Video.last_edit)).all())
    assert (edits[first] or 0) < (edits[third] or 0)
    assert edits[second] is None
    # A failed one is read again on request only.
    (settings().media_root / get_video(second).uri).touch()
    assert start_reading(domain, ReadingSpec()).remaining == 0
    assert start_reading(domain, ReadingSpec(retry=True)).remaining == 1
    read_queued("worker")
    assert _texts(second) == HEARD
    assert _counts(domain) == (3, 3, 0, 0)


def test_workers_share_a_domain(
    catalog: Settings, post_probed: Post, reader: FakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = mark_learned(post_probed("birds", 12, read="speech,screen").id)
    start_reading(domain, ReadingSpec())
    first, second = _claimed("first"), _claimed("second")
    jobs = [job.vector_id for claim in (first, second) for job in claim.jobs]
    assert sorted(jobs) == sorted({video.vector_id for video in accepted_videos(domain)})
    assert claim_readings("third", READ_SOURCES) is None
    progress = []
    with first, second:  # what a worker did not read is due again at once
        monkeypatch.setattr(readings, "KEPT_TIMES", 1e6)
        monkeypatch.setattr(readings, "_unfinished", (0.0, {}))  # and restored
        progress.append(commands.get_task(domain).reading)
        second.store(second.jobs[0], _reading())
        progress.append(commands.get_task(domain).reading)
    assert [part and part.done for part in progress] == [0, 0], "counts of unfinished domains are kept"
    assert read_queued("third") == 11
    assert _counts(domain) == (12, 12, 0, 0)


def test_killed_worker_loses_no_video_that_it_has_read(domain: str, reader: FakeReader) -> None:
    """The videos of its claim are then claimed one by one: one of them may have killed it.

    A worker that lost its lease writes nothing.
    """
    start_reading(domain, ReadingSpec())
    killed = _claimed()
    first, second, third = killed.jobs
    killed.store(first, _reading())
    _expire_leases()
    reader.heard = "a crane flies"
    assert [job.uri for job in _claimed().jobs] == [second.uri]
    _expire_leases()
    assert read_queued("worker") == 2
    assert [name for name, _ in reader.read_videos] == [third.uri, second.uri]
    for job in killed.jobs:
        killed.store(job, _reading())
    assert [_texts(video)[0][0] for video in _names(domain)] == [HEARD[0][0], *["a crane flies"] * 2]


def test_worker_that_stops_gives_its_videos_back(
    domain: str, reader: FakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its child reports no progress; this is no attempt, however often it happens."""
    monkeypatch.setattr(reading_worker, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(reading_worker, "_STOP_SECONDS", 0.1)
    start_reading(domain, ReadingSpec())
    for _ in range(4):
        begun, go_on = Event(), Event()
        reader.during = lambda begun=begun, go_on=go_on: (begun.set(), go_on.wait(60))
        thread = ReadingThread("stopping")
        thread.start()
        assert begun.wait(60)
        thread.stop()
        assert get_reading(domain).active is False
        leases.stopping.set()
        go_on.set()
        thread.join(60)
        leases.stopping.clear()
    assert _counts(domain) == (3, 0, 3, 0)
    reader.during = lambda: None
    assert read_queued("worker") == 3


def test_video_that_kills_its_worker_is_given_up(domain: str, reader: FakeReader) -> None:
    start_reading(domain, ReadingSpec())
    for _ in range(1 + 7 * 3):  # together, and then one by one
        _claimed()
        _expire_leases()
    assert claim_readings("worker", READ_SOURCES) is None
    assert _counts(domain) == (3, 3, 0, 3)
    notes = {row.note for video in _names(domain) for row in get_video(video).readings}
    assert notes == {"The worker stopped 8 times while it read the video."}


def test_cancelled_and_deleted_videos_get_no_texts(domain: str, reader: FakeReader) -> None:
    first, second, third = _names(domain)
    start_reading(domain, ReadingSpec())

    def delete_or_cancel() -> None:
        if len(reader.read_videos) == 1:
            delete_videos([first])
        else:
            cancel_reading(domain)

    reader.during = delete_or_cancel
    assert read_queued("worker") in (2, 3)  # the claim may notice that nothing is left
    assert [_texts(video) for video in (second, third)] == [[], []]
    with session_scope() as session:
        assert session.scalars(select(Passage)).all() == []
        assert set(session.scalars(select(Reading.state))) == {"cancelled"}
    assert _counts(domain) == (0, 0, 0, 0)
    assert commands.get_task(domain).reading is None
    reader.during = lambda: None
    assert start_reading(domain, ReadingSpec()).remaining == 2
    read_queued("worker")
    assert [_texts(video) for video in (second, third)] == [HEARD, HEARD]


def test_correction_survives_another_model(domain: str, reader: FakeReader) -> None:
    video, *_ = _names(domain)
    start_reading(domain, ReadingSpec())
    read_queued("worker")
    cues = get_video(video).transcript
    edit_video(video, VideoPatch(transcript=[cues[0].model_copy(update={"text": "Aaron flies"}), cues[1]]))
    reader.heard = "a hair on flies"
    assert start_reading(domain, ReadingSpec(speech_model="large-v3")).remaining == 3
    read_queued("worker")
    assert {model for _, model in reader.read_videos[3:]} == {"large-v3"}
    assert _texts(video) == [("Aaron flies", "person"), HEARD[1]]
    assert _texts(_names(domain)[1]) == [("a hair on flies", "speech"), HEARD[1]]


def test_subtitled_videos_are_transcribed_on_request_only(domain: str, reader: FakeReader) -> None:
    video, *_ = _names(domain)
    edit_video(video, VideoPatch(transcript=[Cue(start=0, end=1, text="written", source="subtitles")]))
    start_reading(domain, ReadingSpec())
    read_queued("worker")
    assert _texts(video) == [("written", "subtitles"), HEARD[1]]
    start_reading(domain, ReadingSpec(subtitled=True))
    read_queued("worker")
    assert _texts(video) == [("written", "subtitles"), *HEARD]


def test_files_of_an_old_domain_are_read(catalog: Settings, post_probed: Post, reader: FakeReader) -> None:
    domain = mark_learned(post_probed("old", 4, read="file,speech").id)
    subtitled, plain, given, gone = _names(domain)
    film = {"streams": [("subrip", [(0.5, 1.5, "in the file")])], "metadata": {"title": "Herons"}}
    for name, content in ((subtitled, film), (plain, {}), (given, film), (gone, None)):
        path = settings().media_root / get_video(name).uri
        path.unlink()
        if content is not None:
            write_film(path.with_suffix(".mkv"), **content).rename(path)
    beside = [Cue(start=0, end=1, text="beside it", source="subtitles")]
    edit_video(given, VideoPatch(transcript=beside, metadata={"title": "Mine"}))
    start_reading(domain, ReadingSpec())
    assert [row.source for row in get_video(plain).readings] == ["file"]
    assert _counts(domain) == (4, 0, 4, 0)
    assert read_queued("worker") == 4 + 2  # of which two have no subtitles
    assert start_reading(domain, ReadingSpec()).remaining == 0
    texts = [("in the file", "subtitles")], [HEARD[0]], [("beside it", "subtitles")], []
    assert [_texts(video) for video in (subtitled, plain, given, gone)] == list(texts)
    titles = [get_video(video).metadata.get("title") for video in (subtitled, plain, given)]
    assert titles == ["Herons", None, "Mine"]
    with session_scope() as session:
        assert session.get_one(Task, domain).metadata_edits == 2  # of the user, and of the file
    states = {row.source: (row.state, row.note) for row in get_video(subtitled).readings}
    assert states == {"file": ("done", None), "subtitles": ("done", None)}
    assert {row.state for row in get_video(gone).readings} == {"failed"}
    assert _counts(domain) == (4, 4, 0, 1)


def test_reading_waits_while_videos_are_to_be_probed(domain: str, reader: FakeReader, post: Post) -> None:
    start_reading(domain, ReadingSpec())
    waiting = post("waiting")
    assert read_queued("worker") == 0
    with session_scope(write=True) as session:  # until its source responds again
        session.get_one(Task, waiting.id).lease_expires_at = now(session) + timedelta(seconds=60)
    arrived: list[str] = []
    reader.during = lambda: arrived or arrived.append(post("more").id)
    assert read_queued("worker") == 1
    commands.cancel_task(arrived[0])
    assert read_queued("worker") == 2
    assert _counts(domain) == (3, 3, 0, 0)


def test_domain_with_reading_off_is_read_on_request_only(
    catalog: Settings, post_probed: Post, reader: FakeReader
) -> None:
    private = mark_learned(post_probed("private", read="off").id)
    assert commands.get_task(private).read == "off"
    with pytest.raises(Conflict, match="can be read from 'private': read is off"):
        start_reading(private, ReadingSpec())
    assert start_reading(private, ReadingSpec(read="screen")).read == "screen"
    read_queued("worker")
    assert _texts(_names(private)[0]) == [HEARD[1]]
    with pytest.raises(NotFound):
        get_reading("tsk_nobody")


def test_reader_that_does_not_start_is_no_fault_of_the_videos(domain: str, reader: FakeReader) -> None:
    start_reading(domain, ReadingSpec())

    def fail() -> None:
        raise DecoderUnavailable("no memory")

    for _ in range(4):
        reader.during = fail
        with pytest.raises(DecoderOutage, match="no memory"):
            read_queued("worker")
        assert read_queued("worker") == 0  # after a pause
        _expire_leases()
    reader.during = lambda: None
    assert read_queued("worker") == 3


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of the readers, whether or not they are installed."""
    from service.reading import reading_commands

    problems: dict[str, Any] = dict.fromkeys(MODEL_SOURCES)
    for module in (readings, reading_commands):
        monkeypatch.setattr(module, "available_sources", lambda _: problems)
