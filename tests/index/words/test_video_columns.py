"""Columns answer like a plain loop over the videos, whatever was replaced, merged or stored since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import moment_ids
from index.words import segment_merging
from index.words.video_columns import ColumnSegment, LiveColumns, TypedValue, VideoColumns, VideoFacts

LARGE = 2**62
NUMBERS = st.sampled_from([-1, 0, 1, 1.0, 2.5, 2**53, 2**53 + 1, LARGE, LARGE + 1, float(LARGE), 10**400])
VALUES = st.one_of(NUMBERS, st.booleans(), st.sampled_from(["", "1", "true", "a\0", "ä"]), st.none())
METADATA = st.dictionaries(
    st.sampled_from(["x", "y", ""]),
    st.one_of(VALUES, st.lists(VALUES, max_size=3), st.just({"x": 1})),
    max_size=3,
)
FACTS = st.builds(
    VideoFacts,
    st.one_of(st.none(), st.sampled_from([0.5, 3.0, 60.0])),
    METADATA,
    st.lists(st.tuples(st.floats(0, 9), st.floats(9, 20)), max_size=3),
)
CHANGES = st.lists(st.dictionaries(st.integers(0, 12), st.one_of(FACTS, st.none()), max_size=6), max_size=6)


def _values_of(facts: VideoFacts, name: str) -> set[TypedValue]:
    value = facts.metadata.get(name)
    if isinstance(value, list):
        return {(False, item) for item in value if isinstance(item, str)}
    return {(isinstance(value, bool), value)} if isinstance(value, str | int | float) else set()


def _rows(columns: VideoColumns, name: str, find: Any) -> list[int]:
    parts = [(live, live.segment.fields.get(name)) for live in columns.segments]
    return sorted(
        i for live, column in parts if column is not None for i in live.ids_of(find(column)).tolist()
    )


def _require_equal(columns: VideoColumns, videos: Mapping[int, VideoFacts]) -> None:
    assert sorted(
        i for live in columns.segments for i in live.ids_of(np.arange(len(live.segment)))
    ) == sorted(videos)
    for low, high in ((None, None), (1.0, None), (None, 3.0), (3.0, 3.0)):
        lasting = [i for live in columns.segments for i in live.ids_of(live.segment.rows_lasting(low, high))]
        assert sorted(lasting) == [
            video
            for video, (seconds, *_) in sorted(videos.items())
            if seconds is not None and (low is None or seconds >= low) and (high is None or seconds <= high)
        ]
    every = np.array([*videos, 99], np.int64)
    for name in ("x", "y", ""):
        by_video = {video: _values_of(facts, name) for video, facts in sorted(videos.items())}
        counts = Counter(value for values in by_video.values() for value in values)
        assert columns.count_values(every, [name])[name] == (sum(map(bool, by_video.values())), counts)
        assert sorted(i for ids, _ in columns.having(name) for i in ids) == [
            v for v in by_video if by_video[v]
        ]
        for value in [*counts, (False, 7), (True, 1), (False, 1)]:
            expected = [video for video, values in by_video.items() if value in values]
            assert _rows(columns, name, lambda column, value=value: column.rows_equal_to(value)) == expected
        for low, high in (
            (None, 1),
            (1, None),
            (2**53 + 1, LARGE),
            (LARGE + 1, None),
            (None, 2**53),
            (10**400, None),
        ):
            expected = [
                video
                for video, values in by_video.items()
                if any(
                    not is_flag
                    and isinstance(value, int | float)
                    and (low is None or value >= low)
                    and (high is None or value <= high)
                    for is_flag, value in values
                )
            ]
            assert (
                _rows(columns, name, lambda column, ends=(low, high): column.rows_between(*ends)) == expected
            )
    ids, spans = columns.moments_of(every)
    expected_moments = {
        (moment, span)
        for video, facts in videos.items()
        for moment, span in zip(moment_ids(video, len(facts.moments)).tolist(), facts.moments, strict=True)
    }
    assert set(zip(ids.tolist(), map(tuple, spans.tolist()), strict=True)) == expected_moments


@settings(deadline=None)
@given(CHANGES, st.sampled_from([0, 4, 512]))
def test_columns_answer_like_a_loop_over_the_videos(
    changes: list[dict[int, VideoFacts | None]], small: int
) -> None:
    columns, videos = VideoColumns(), dict[int, VideoFacts]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_merging, "_SMALL", small)
        for change in changes:
            columns = columns.replace(change.items())
            videos |= {video: facts for video, facts in change.items() if facts is not None}
            videos = {video: facts for video, facts in videos.items() if change.get(video, facts) is not None}
            _require_equal(columns, videos)
        compacted = columns.compacted()
        assert not any(live.replaced for live in compacted.segments)
        _require_equal(compacted, videos)
        stored = [ColumnSegment.from_arrays(live.segment.arrays()) for live in compacted.segments]
        _require_equal(VideoColumns(tuple(map(LiveColumns.of, stored))), videos)


def test_nothing_replaced_leaves_the_columns_as_they_are() -> None:
    columns = VideoColumns().replace([(1, VideoFacts(metadata={"a": 1}))])
    assert columns.replace([]) is columns.replace([(2, None)]) is columns.compacted() is columns


def test_fields_whose_values_nearly_all_differ_do_not_group() -> None:
    videos = {n: VideoFacts(metadata={"title": f"clip {n}", "camera": n % 3}) for n in range(300)}
    columns = VideoColumns().replace(videos.items())
    assert columns.grouping_fields == ["camera"]
    few = VideoColumns().replace(list(videos.items())[:20])
    assert few.grouping_fields == ["title", "camera"]
