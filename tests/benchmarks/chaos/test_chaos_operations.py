"""Rounds of operations, and the comparison of answers with those of an undisturbed run."""

from __future__ import annotations

from benchmarks.chaos.service_client import QUERIES, compare_answers, plan_rounds

Answer = list[tuple[str, float]]


def _answers(first: Answer) -> list[Answer]:
    return [first, *([("x", 0.5)] for _ in QUERIES[1:])]


def test_videos_are_deleted_only_after_they_were_added_in_an_earlier_request() -> None:
    rounds = plan_rounds(1)
    for number, operations in enumerate(rounds):
        known = {v.id for earlier in rounds[:number] for op in earlier for v in op.videos}
        for operation in operations:
            own = {video.id for video in operation.videos}
            assert set(operation.deleted) <= (own if operation.kind == "append" else known)


def test_equal_answers_and_rounding_errors_do_not_differ() -> None:
    wanted = _answers([("a", 0.9), ("b", 0.8), ("c", 0.7)])
    found = _answers([("a", 0.9 + 1e-7), ("b", 0.8), ("c", 0.7)])
    assert compare_answers(wanted, found) == []


def test_ties_may_be_in_any_order() -> None:
    wanted = _answers([("a", 0.9), ("b", 0.8), ("c", 0.8), ("d", 0.1)])
    found = _answers([("a", 0.9), ("c", 0.8), ("b", 0.8), ("d", 0.1)])
    assert compare_answers(wanted, found) == []


def test_other_score_order_or_number_of_results_is_a_difference() -> None:
    wanted = _answers([("a", 0.9), ("b", 0.8), ("c", 0.7)])
    for found, sentence in (
        ([("a", 0.9), ("b", 0.81), ("c", 0.7)], "the score at rank 2 is 0.81 instead of 0.8"),
        ([("b", 0.9), ("a", 0.8), ("c", 0.7)], "rank 1 is b instead of a"),
        ([("a", 0.9), ("b", 0.8)], "has 2 results instead of 3"),
    ):
        (difference,) = compare_answers(wanted, _answers(found))
        assert sentence in difference
