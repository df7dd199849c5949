"""The recall matrix and its measures, compared with values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import update

from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task
from service.core.settings import Settings
from service.library.recall_cells import read_measures_version
from service.library.recall_matrix import read_recall_matrix
from tests.measured_library import add_measured_domains

# Recall by release and task.
LOCAL = {(1, 1): 0.9, (2, 1): 0.7, (2, 2): 0.8, (3, 1): 0.5, (3, 2): 0.6, (3, 3): 0.4}
UNION = {(1, 1): 0.9, (2, 1): 0.6, (2, 2): 0.7, (3, 1): 0.3, (3, 2): 0.65, (3, 3): 0.4}


def _random_cells(releases: int) -> dict[tuple[int, int], float]:
    values = np.random.default_rng(5).random((releases + 1, releases + 1))
    return {(i, t): float(values[i, t]) for i in range(1, releases + 1) for t in range(1, i + 1)}


def test_matrix_and_its_measures(catalog: Settings) -> None:
    for gallery, cells in (("local", LOCAL), ("global", UNION), ("local_all", LOCAL), ("global_all", UNION)):
        add_measured_domains(cells, gallery=gallery)
    add_measured_domains({(0, 1): 0.2, (0, 3): 0.1})
    with session_scope(write=True) as session:
        session.execute(update(Task).values(held_out="given"))
        session.execute(
            update(Recall).where(Recall.routing1.is_not(None)).values(routing1=0.5 + 0.1 * Recall.task_order)
        )
    view = read_recall_matrix()
    assert (view.tasks, view.mode) == (["domain 1", "domain 2", "domain 3"], "pinned")
    assert view.releases == ["r1", "r2", "r3"]
    assert view.matrix_local == [[0.9, None, None], [0.7, 0.8, None], [0.5, 0.6, 0.4]]
    assert view.matrix_global == [[0.9, None, None], [0.6, 0.7, None], [0.3, 0.65, 0.4]]
    assert view.matrix_local_all == view.matrix_local
    assert view.bwf_local == pytest.approx(((0.9 - 0.5) + (0.8 - 0.6)) / 2)
    assert view.bwf_global == pytest.approx(((0.9 - 0.3) + (0.7 - 0.65)) / 2)
    assert view.fr == pytest.approx((0.9 - 0.5) + (0.8 - 0.6))
    current, final = (0.9 + 0.8 + 0.4) / 3, (0.5 + 0.6 + 0.4) / 3
    assert view.hm == pytest.approx(2 * current * final / (current + final))
    assert view.zero_shot == [0.2, None, 0.1]
    assert view.queries == [[10, 0, 0], [10, 20, 0], [10, 20, 30]]
    weighted = [0.9, (10 * 0.7 + 20 * 0.8) / 30, (10 * 0.5 + 20 * 0.6 + 30 * 0.4) / 60]
    assert view.recall_over_time_local == pytest.approx(weighted)
    weighted = [0.9, (10 * 0.6 + 20 * 0.7) / 30, (10 * 0.3 + 20 * 0.65 + 30 * 0.4) / 60]
    assert view.recall_over_time_global == pytest.approx(weighted)
    assert view.router_accuracy == pytest.approx([0.6, (10 * 0.6 + 20 * 0.7) / 30, (6 + 14 + 24) / 60])
    assert view.held_out == ["given"] * 3


def test_empty_library_has_no_measures(catalog: Settings) -> None:
    view = read_recall_matrix()
    assert (view.tasks, view.matrix_local, view.bwf_local, view.fr, view.hm) == ([], [], None, None, None)


def test_single_task_has_no_forgetting(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.9})
    view = read_recall_matrix()
    assert (view.bwf_local, view.fr, view.hm) == (None, None, pytest.approx(0.9))
    assert view.matrix_local == [[0.9]]


def test_task_without_queries_has_a_row_but_no_column(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.9, (2, 1): 0.7})  # task 2 was indexed without captions
    view = read_recall_matrix()
    assert view.tasks == ["domain 1"]
    assert view.matrix_local == [[0.9], [0.7]]
    assert view.bwf_local == pytest.approx(0.2)


def test_rows_are_a_window_of_the_releases(sqlite_catalog: Settings) -> None:
    add_measured_domains(_random_cells(5))
    complete, newest = read_recall_matrix(), read_recall_matrix(rows=2)
    assert (newest.first_release, newest.matrix_local) == (4, complete.matrix_local[3:])
    assert (newest.releases, newest.after) == (complete.releases[3:], ["domain 4", "domain 5"])
    assert newest.queries == complete.queries[3:]
    first = read_recall_matrix(rows=2, first_release=1)
    assert (first.first_release, first.matrix_local) == (1, complete.matrix_local[:2])
    assert first.learned["local"] == [complete.matrix_local[t][t] for t in range(5)]
    unchanged = {"bwf_local", "served", "tasks", "newest", "zero_shot", "domains", "learned"}
    unchanged |= {"recall_over_time_local", "router_accuracy"}
    for shown in (newest, first):
        assert shown.model_dump(include=unchanged) == complete.model_dump(include=unchanged)


def test_columns_are_a_window_of_the_domains(sqlite_catalog: Settings) -> None:
    add_measured_domains(_random_cells(5))
    complete, shown = read_recall_matrix(), read_recall_matrix(first_domain=4, domains=3)
    assert (shown.tasks, shown.first_domain, shown.domains) == (["domain 4", "domain 5"], 4, 5)
    assert shown.matrix_local == [row[3:] for row in complete.matrix_local]
    assert shown.held_out == complete.held_out[3:]
    assert shown.newest["local"] == complete.newest["local"][3:]
    assert (shown.bwf_local, shown.recall_over_time_local) == (
        complete.bwf_local,
        complete.recall_over_time_local,
    )
    behind = read_recall_matrix(first_domain=6, rows=2)
    assert (behind.tasks, behind.matrix_local, behind.domains) == ([], [[], []], 5)


def test_cells_in_memory_follow_the_catalog(catalog: Settings) -> None:
    cells = _random_cells(5)
    add_measured_domains({key: value for key, value in cells.items() if key[0] <= 3})
    versions = [read_measures_version()]
    assert len(read_recall_matrix().releases) == 3
    add_measured_domains({key: value for key, value in cells.items() if key[0] > 3})
    add_measured_domains({(0, 5): 0.25})
    versions.append(read_measures_version())
    extended = read_recall_matrix()
    assert extended.matrix_local == [[cells.get((i, t)) for t in range(1, 6)] for i in range(1, 6)]
    assert extended.zero_shot == [None] * 4 + [0.25]
    with session_scope(write=True) as session:
        session.query(Recall).filter(Recall.task_order == 2).delete()
        session.get_one(Task, "t2").counts = {"accepted": 0}
    versions.append(read_measures_version())
    assert read_recall_matrix().tasks == ["domain 1", "domain 3", "domain 4", "domain 5"]
    with session_scope(write=True) as session:
        session.get_one(Task, "t1").name = "renamed"
    versions.append(read_measures_version())
    assert read_recall_matrix().tasks[0] == "renamed"
    assert len(set(versions)) == 4
    assert read_measures_version() == versions[-1]
