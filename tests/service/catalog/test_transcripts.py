"""Transcripts in the catalog."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, VideoPatch
from service.catalog.database import session_scope
from service.catalog.tables import Passage, Video
from service.catalog.transcripts import copy_transcripts, cut_passages, read_transcript, store_transcripts
from service.core.settings import Settings
from service.library.deletion import delete_videos
from service.library.video_editing import edit_video
from service.library.video_listing import get_video

Post = Callable[..., TaskDetails]

_CUES = st.lists(
    st.tuples(st.floats(0, 9000), st.floats(0.1, 60), st.text(min_size=1, max_size=2000)).map(
        lambda cue: (cue[0], cue[0] + cue[1], cue[2])
    )
).map(sorted)


@given(_CUES)
def test_passages_are_short_and_together_the_transcript(cues: list[tuple[float, float, str]]) -> None:
    passages = list(cut_passages(cues))
    assert [cue for passage in passages for cue in passage] == cues
    for passage in passages:
        assert len(passage) == 1 or passage[-1][1] - passage[0][0] <= 30
        assert len(" ".join(text for *_, text in passage)) <= 2000


def _videos(task: str) -> dict[str, int]:
    with session_scope() as session:
        return dict(
            session.execute(
                select(Video.id, Video.vector_id).where(Video.task_id == task).order_by(Video.vector_id)
            ).all()
        )


def _count_passages() -> int:
    with session_scope() as session:
        return session.scalar(select(func.count()).select_from(Passage)) or 0


def test_transcript_is_replaced_and_deleted_with_its_video(catalog: Settings, post: Post) -> None:
    (first, second) = _videos(post("talks", videos=2).id)
    spoken = [Cue(start=40.0, end=41.5, text=" later  on "), Cue(start=0, end=2, text="<b>hello</b>")]
    for video in (first, second):
        edited = edit_video(video, VideoPatch(transcript=spoken))
        assert [(cue.start, cue.text) for cue in edited.transcript] == [(0, "<b>hello</b>"), (40, "later on")]
    assert edit_video(first, VideoPatch(captions=["a talk"])).transcript == get_video(second).transcript
    edit_video(first, VideoPatch(transcript=spoken[:1]))
    assert [cue.text for cue in get_video(first).transcript] == ["later on"]
    edit_video(first, VideoPatch(transcript=None))
    assert get_video(first).transcript == []
    assert _count_passages() == 2
    delete_videos([second])
    assert _count_passages() == 0


def test_copies_have_the_transcripts_of_their_originals(catalog: Settings, post: Post) -> None:
    originals = _videos(post("talks", videos=2).id)
    copies = _videos(post("copies", videos=2).id)
    with session_scope(write=True) as session:
        task = session.scalars(select(Video.task_id).where(Video.id == next(iter(copies)))).one()
        for copy, original in zip(copies, originals.values(), strict=True):
            session.scalars(select(Video).where(Video.id == copy)).one().copy_of = original
        said, other = [(0.0, 1.5, "hello"), (90.0, 91.0, "good bye")], [(0.0, 1.0, "old")]
        store_transcripts(session, {next(iter(originals.values())): said})
        store_transcripts(session, dict.fromkeys(copies.values(), other))
    with session_scope(write=True) as session:
        copy_transcripts(session, task)
    with session_scope() as session:
        assert [read_transcript(session, copy) for copy in copies.values()] == [said, []]
        assert read_transcript(session, next(iter(originals.values()))) == said
