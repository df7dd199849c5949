"""Tasks whose queries a row contains: all of a small library, and a bounded sample of a large one."""

from __future__ import annotations

from trainer.evaluation.measured_tasks import MAX_MEASURED_TASKS, select_measured_tasks

NAMES = [f"task {t}" for t in range(3 * MAX_MEASURED_TASKS)]


def test_small_library_is_measured_completely() -> None:
    for count in (0, 1, MAX_MEASURED_TASKS):
        assert select_measured_tasks(NAMES[:count]) == set(NAMES[:count])


def test_large_library_is_measured_at_even_distances_with_its_newest_task() -> None:
    tasks = NAMES[: MAX_MEASURED_TASKS + 2]
    assert select_measured_tasks(tasks) == {*tasks[::2], tasks[-1]}
    assert select_measured_tasks(NAMES) == {*NAMES[::4], NAMES[-1]}


def test_growing_library_measures_a_bounded_number_of_tasks_and_none_again() -> None:
    ended: set[str] = set()
    before: frozenset[str] = frozenset()
    for count in range(1, len(NAMES) + 1):
        measured = select_measured_tasks(NAMES[:count])
        ended |= before - measured
        assert NAMES[count - 1] in measured
        assert MAX_MEASURED_TASKS / 2 <= len(measured) <= MAX_MEASURED_TASKS + 1 or count < MAX_MEASURED_TASKS
        assert not ended & measured
        before = measured
