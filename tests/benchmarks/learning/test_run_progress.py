"""Progress of a run: finished parts at once, and the state of a stage without lines."""

from __future__ import annotations

import queue
import threading

from benchmarks.learning.run_progress import RunProgress


def test_state_is_reported_while_a_stage_reports_nothing() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with RunProgress(lines.put, interval=0.001) as progress:
        progress.update("task 1 of 2 (sea): training, step 3 of 60")
        while lines.get(timeout=30) != "task 1 of 2 (sea): training, step 3 of 60":
            pass
        progress.update("task 1 of 2 (sea): indexing")
        while lines.get(timeout=30) != "task 1 of 2 (sea): indexing":
            pass


def test_finished_parts_are_reported_at_once_and_states_only_after_the_interval() -> None:
    lines: list[str] = []
    with RunProgress(lines.append, interval=3600) as progress:
        progress.update("task 1 of 2 (sea): training")
        progress.line("task 1 of 2 (sea) in 4 s")
        progress.update("task 2 of 2 (street): training")
    assert lines == ["task 1 of 2 (sea) in 4 s"]


def test_closed_receiver_ends_the_thread_without_an_error() -> None:
    called = threading.Event()

    def closed(line: str) -> None:
        called.set()
        raise BrokenPipeError

    with RunProgress(closed, interval=0.001):
        assert called.wait(30)
