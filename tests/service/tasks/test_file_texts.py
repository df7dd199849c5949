"""What videos' files carry: subtitles, chapters and metadata, and what people gave instead."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, VideoDetails, VideoPatch
from media.timed_texts import FileTexts, TimedText
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.settings import Settings
from service.library.library_listing import get_video
from service.library.video_changes import edit_video
from service.tasks.file_texts import store_file_texts
from tests.claimed_probing import probe
from tests.media.test_file_texts import write_film

Post = Callable[..., TaskDetails]

CARRIED = FileTexts(
    subtitles=[TimedText(0, 1, "in the file")],
    chapters=[TimedText(0, 9, "Arrival")],
    tags={"title": "Herons", "location": "+48.1+11.5/"},
    created="2024-05-01T10:00:00Z",
    camera="Maker Model",
    notes=["pictures are not read", "the rest is damaged"],
)


def _store(task: str, texts: FileTexts | None) -> list[VideoDetails]:
    with session_scope(write=True) as session:
        rows = session.scalars(select(Video).where(Video.task_id == task).order_by(Video.vector_id)).all()
        store_file_texts(session, task, dict.fromkeys(rows, texts))
        names = [row.id for row in rows]
    return [get_video(name) for name in names]


def _texts(video: VideoDetails) -> list[tuple[str, str | None]]:
    return [(cue.text, cue.source) for cue in video.transcript]


def test_given_texts_and_metadata_win_over_those_of_the_file(catalog: Settings, post: Post) -> None:
    task = post(videos=2).id
    first, second = _store(task, None)
    assert (_texts(first), first.readings, first.metadata) == ([], [], {})
    given = [Cue(start=0, end=1, text="beside it", source="subtitles")]
    edit_video(second.id, VideoPatch(transcript=given, metadata={"title": "Mine"}))
    for _ in range(2):  # a retry probes again
        first, second = _store(task, CARRIED)
        assert _texts(first) == [("Arrival", "chapters"), ("in the file", "subtitles")][::-1]
        assert {row.source: row.note for row in first.readings} == {
            "subtitles": "pictures are not read; the rest is damaged",
            "chapters": None,
        }
        facts = {"created": "2024-05-01T10:00:00Z", "year": 2024, "camera": "Maker Model"}
        assert first.metadata == {"title": "Herons", **facts}
        assert _texts(second) == [("beside it", "subtitles"), ("Arrival", "chapters")]
        assert second.metadata == {"title": "Mine", **facts}
    # The file was replaced by one without subtitles.
    first, second = _store(task, FileTexts(chapters=CARRIED.chapters))
    assert (_texts(first), _texts(second)[0]) == ([("Arrival", "chapters")], ("beside it", "subtitles"))


def test_location_is_read_on_request_and_nothing_if_off(catalog: Settings, post: Post) -> None:
    (located,) = _store(post("located", 1, read="file,location").id, CARRIED)
    assert located.metadata["location"] == "+48.1+11.5/"
    for read in ("off", "speech"):
        (video,) = _store(post(read, 1, read=read).id, CARRIED)
        assert (video.transcript, video.metadata, video.readings) == ([], {}, [])
    hostile = FileTexts(tags={"title": "x" * 10**6})
    (video,) = _store(post("hostile", 1).id, hostile)
    assert video.metadata == {}


def test_texts_of_a_file_are_stored_when_it_is_probed(configured: Settings, post: Post) -> None:
    task = post(videos=1, read="file,location").id
    (video,) = _store(task, None)
    metadata = {"title": "Herons", "LOCATION": "+48.1+11.5/", "creation_time": "2024-05-01T10:00:00Z"}
    path = configured.media_root / video.uri
    write_film(path.with_suffix(".mkv"), metadata=metadata, chapters=[(0, 0, "Arrival")]).rename(path)
    assert probe(task).counts.accepted == 1
    details = get_video(video.id)
    assert _texts(details) == [("Arrival", "chapters")]
    assert (details.metadata["title"], details.metadata["location"]) == ("Herons", "+48.1+11.5/")
    assert details.metadata["year"] == 2024
    assert edit_video(video.id, VideoPatch(transcript=details.transcript)) == details
