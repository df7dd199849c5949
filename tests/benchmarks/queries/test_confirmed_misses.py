"""Which searches miss a right video."""

from __future__ import annotations

import pytest

from benchmarks.queries.confirmed_misses import Target


@pytest.mark.parametrize(
    ("right", "places", "top", "missed"),
    [
        (["a", "b"], 2, ["b", "a", "c"], []),
        (["a", "b"], 2, ["b", "c", "a"], ["a"]),
        (["a"], 10, ["b", "a"], []),
        (["a"], 1, ["b", "a"], ["a"]),
        (["a", "b", "c"], 2, ["c", "b"], []),
        ([], 0, ["a"], []),
    ],
)
def test_right_videos_behind_the_first_places_are_missed(
    right: list[str], places: int, top: list[str], missed: list[str]
) -> None:
    assert Target("text", right, places).missed(top) == missed
