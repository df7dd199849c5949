"""Moments in the catalog."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails
from index.arrays import FIRST_MOMENT_ID, MAX_MOMENTS_PER_VIDEO, is_moment, moment_ids, video_ids_of
from service.catalog.database import session_scope
from service.catalog.domain_videos import moment_spans, replace_moments
from service.catalog.tables import Moment, Video
from service.core.settings import Settings

Post = Callable[..., TaskDetails]


@hypothesis.settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 2**46 - 1), st.integers(0, MAX_MOMENTS_PER_VIDEO), min_size=1, max_size=4)
)
def test_moment_ids_are_distinct_and_identify_their_video(counts: dict[int, int]) -> None:
    ids_by_video = {video: moment_ids(video, count) for video, count in counts.items()}
    every = np.concatenate(list(ids_by_video.values()))
    assert len(np.unique(every)) == len(every) == sum(counts.values())
    for video, ids in ids_by_video.items():
        assert ids.dtype == np.int64
        assert (np.diff(ids) == 1).all()
        assert (video_ids_of(ids) == video).all()
        assert is_moment(ids).all()
        assert (ids >= FIRST_MOMENT_ID).all()
    whole = np.array(list(counts), np.int64)
    assert not is_moment(whole).any()
    assert (video_ids_of(whole) == whole).all()


@pytest.mark.parametrize(("video", "count"), [(-1, 1), (2**46, 1), (0, MAX_MOMENTS_PER_VIDEO + 1), (0, -1)])
def test_moment_ids_out_of_range_are_refused(video: int, count: int) -> None:
    with pytest.raises(ValueError, match="no IDs"):
        moment_ids(video, count)


def _vector_ids(task: str) -> list[int]:
    with session_scope() as session:
        ids = select(Video.vector_id).where(Video.task_id == task).order_by(Video.vector_id)
        return list(session.scalars(ids))


def _ids(session: Session) -> np.ndarray:
    return np.array(session.scalars(select(Moment.vector_id).order_by(Moment.vector_id)).all(), np.int64)


def test_moments_of_a_task_are_replaced_as_a_whole(catalog: Settings, post: Post) -> None:
    (one, two, three), (other,) = (
        _vector_ids(post(name, videos=n).id) for name, n in (("birds", 3), ("sea", 1))
    )
    with session_scope() as session:
        birds, sea = (session.get_one(Video, vector_id).task_id for vector_id in (one, other))
    for _ in range(2):  # a repetition has the same result
        with session_scope(write=True) as session:
            replace_moments(session, sea, {other: [(0.0, 1.5)]})
            spans = {one: [(0, 20), (10, 30), (20, 40)], three: [(0, 9.25), (4.5, 13.75)]}
            replace_moments(session, birds, spans)
        with session_scope() as session:
            assert moment_spans(session, one) == [(0, 20), (10, 30), (20, 40)]
            assert moment_spans(session, two) == []
            expected = np.concatenate([moment_ids(n, c) for n, c in ((one, 3), (three, 2), (other, 1))])
            assert np.array_equal(_ids(session), expected)
    with session_scope(write=True) as session:
        replace_moments(session, birds, {two: [(0, 7)]})
        assert _ids(session).tolist() == [*moment_ids(two, 1), *moment_ids(other, 1)]
        assert moment_spans(session, other) == [(0, 1.5)]


@pytest.mark.slow
def test_many_moments_of_many_videos(sqlite_catalog: Settings, post: Post) -> None:
    videos = _vector_ids(post(videos=3).id)
    with session_scope(write=True) as session:
        task = session.get_one(Video, videos[0]).task_id
        replace_moments(session, task, {video: [(n / 7, n / 7 + 1) for n in range(5000)] for video in videos})
        assert len(_ids(session)) == 15_000
        assert moment_spans(session, videos[1])[-1] == (4999 / 7, 4999 / 7 + 1)
