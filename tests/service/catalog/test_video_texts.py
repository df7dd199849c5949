"""Timed texts in the catalog: passages by source, edits by people, and the texts of copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, VideoPatch
from index.arrays import moment_ids
from service.catalog.database import session_scope
from service.catalog.tables import Passage, Reading, Video
from service.catalog.video_texts import (
    TimedText,
    copy_texts,
    cut_passages,
    read_passages,
    read_texts,
    store_texts,
)
from service.core.settings import Settings
from service.library.deletion import delete_videos
from service.library.library_listing import get_video
from service.library.video_changes import edit_video

Post = Callable[..., TaskDetails]

_CUES = st.lists(
    st.tuples(st.floats(0, 9000), st.floats(0.1, 60), st.text(min_size=1, max_size=2000)).map(
        lambda cue: (cue[0], cue[0] + cue[1], cue[2])
    )
).map(sorted)


@given(_CUES)
def test_passages_are_short_and_together_the_transcript(cues: list[TimedText]) -> None:
    passages = list(cut_passages(cues))
    assert [cue for passage in passages for cue in passage] == cues
    for passage in passages:
        assert len(passage) == 1 or passage[-1][1] - passage[0][0] <= 30
        assert len(" ".join(text for *_, text in passage)) <= 2000


def _videos(task: str) -> dict[str, int]:
    ids = select(Video.id, Video.vector_id).where(Video.task_id == task).order_by(Video.vector_id)
    with session_scope() as session:
        return dict(session.execute(ids).all())


def _count_passages() -> int:
    with session_scope() as session:
        return session.scalar(select(func.count()).select_from(Passage)) or 0


def _read(video: int, source: TextSource, cues: Sequence[TimedText], state: str = "done") -> None:
    """Store what a reading of a source says."""
    with session_scope(write=True) as session:
        session.merge(Reading(video_vector_id=video, source=source, state=state))
        store_texts(session, {video: {source: cues}}, is_read=True)


def _texts(video: int) -> list[tuple[str, str | None]]:
    with session_scope() as session:
        return [(text.text, text.source) for text in read_texts(session, video)]


def test_transcript_is_replaced_and_deleted_with_its_video(catalog: Settings, post: Post) -> None:
    (first, second) = _videos(post("talks", videos=2).id)
    spoken = [Cue(start=40.0, end=41.5, text=" later  on "), Cue(start=0, end=2, text="<b>hello</b>")]
    for video in (first, second):
        edited = edit_video(video, VideoPatch(transcript=spoken))
        assert [(cue.start, cue.text) for cue in edited.transcript] == [(0, "<b>hello</b>"), (40, "later on")]
        assert {cue.source for cue in edited.transcript} == {"person"}
    assert edit_video(first, VideoPatch(captions=["a talk"])).transcript == get_video(second).transcript
    edit_video(first, VideoPatch(transcript=spoken[:1]))
    assert [cue.text for cue in get_video(first).transcript] == ["later on"]
    edit_video(first, VideoPatch(transcript=None))
    assert get_video(first).transcript == []
    assert _count_passages() == 2
    delete_videos([second])
    assert _count_passages() == 0


SPEECH = [(0.0, 2.0, "meet doctor hewn"), (2.0, 4.0, "in ward three"), (40.0, 42.0, "good bye")]
SCREEN = [(1.0, 3.0, "WARD 3"), (1.0, 3.0, "Visiting hours")]


def test_new_reading_replaces_only_its_source(catalog: Settings, post: Post) -> None:
    ((name, video),) = _videos(post("talks", videos=1).id).items()
    edit_video(name, VideoPatch(transcript=[Cue(start=3, end=5, text="a subtitle", source="subtitles")]))
    _read(video, "screen", SCREEN)
    _read(video, "speech", SPEECH[2:])
    _read(video, "speech", SPEECH)
    expected = [("meet doctor hewn", "speech"), ("WARD 3", "screen"), ("Visiting hours", "screen")]
    expected += [("in ward three", "speech"), ("a subtitle", "subtitles"), ("good bye", "speech")]
    assert _texts(video) == expected
    passages = moment_ids(video, 4)
    with session_scope() as session:
        cues = read_passages(session, passages)
        assert session.scalars(select(Passage.number).order_by(Passage.number)).all() == [0, 1, 2, 3]
    # A passage goes on in the next one, but not in another source.
    texts = [[text for *_, text in cues[passage].cues] for passage in passages.tolist()]
    assert texts == [["a subtitle"], [cue[2] for cue in SPEECH], ["good bye"], [cue[2] for cue in SCREEN]]


def test_correction_of_a_person_survives_new_readings(catalog: Settings, post: Post) -> None:
    ((name, video),) = _videos(post("talks", videos=1).id).items()
    _read(video, "speech", SPEECH)
    _read(video, "screen", SCREEN)
    cues = get_video(name).transcript
    (misheard,) = (cue for cue in cues if "hewn" in cue.text)
    (shown,) = (cue for cue in cues if cue.text == "Visiting hours")
    corrected = misheard.model_copy(update={"text": "meet doctor Huen"})
    sent = [corrected if cue is misheard else cue for cue in cues if cue is not shown]
    for _ in range(2):  # a repetition changes nothing
        edited = edit_video(name, VideoPatch(transcript=sent))
    expected = [("meet doctor Huen", "person"), ("WARD 3", "screen"), ("in ward three", "speech")]
    assert [(cue.text, cue.source) for cue in edited.transcript] == [*expected, ("good bye", "speech")]
    # Another model hears other words at the same time; a line that was deleted is shown at the time of another.
    _read(video, "speech", [(0.1, 2.2, "meat dr hewn"), (2.0, 4.0, "in ward three")])
    _read(video, "screen", [(1.0, 3.5, "WARD 3"), (1.0, 3.5, "visiting hours")])
    assert _texts(video) == expected


@pytest.mark.parametrize("is_changed", [False, True])
def test_copies_have_the_texts_of_their_originals(catalog: Settings, post: Post, is_changed: bool) -> None:
    originals = _videos(post("talks", videos=2).id)
    (name, _), (original, other) = originals, originals.values()
    copies = _videos(post("copies", videos=2).id)
    copy, second = copies.values()
    edit_video(name, VideoPatch(transcript=[Cue(start=9, end=10, text="by hand")]))
    _read(original, "speech", SPEECH)
    edit_video(name, VideoPatch(transcript=get_video(name).transcript[1:]))
    _read(original, "screen", [], "cancelled")
    _read(original, "chapters", [(0, 5, "old chapter")])
    _read(copy, "chapters", [(0, 5, "chapter")])
    with session_scope(write=True) as session:
        store_texts(session, {second: {"subtitles": [(0.0, 1.0, "old")]}})
        for video, source, digest in ((copy, original, "ab"), (second, other, "cd")):
            hashes = {source: digest, video: "ef" if is_changed else digest}
            for vector_id, value in hashes.items():
                session.execute(update(Video).where(Video.vector_id == vector_id).values(content_hash=value))
            session.execute(update(Video).where(Video.vector_id == video).values(copy_of=source))
    for _ in range(2):
        with session_scope(write=True) as session:
            copy_texts(session, session.get_one(Video, copy).task_id)
    chapter = ("chapter", "chapters") if is_changed else ("old chapter", "chapters")
    read = [("in ward three", "speech"), ("by hand", "person"), ("good bye", "speech")]
    assert _texts(copy) == ([chapter, ("by hand", "person")] if is_changed else [chapter, *read])
    assert _texts(second) == []
    with session_scope() as session:
        rows = session.scalars(select(Reading).where(Reading.video_vector_id == copy)).all()
        states = {row.source: (row.state, row.corrected) for row in rows}
    assert states["screen"] == ("cancelled", [])
    assert states["speech"] == ("pending" if is_changed else "done", [[*SPEECH[0]]])
    assert states["chapters"] == ("done", [])
