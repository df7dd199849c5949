"""The recall matrix, its measures and the recall of searches, compared with values computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import update

from service.catalog.database import now, session_scope
from service.catalog.tables import Recall, Release, Task
from service.core.settings import Settings
from service.library.recall_cells import read_measures_version
from service.library.recall_matrix import (
    difference_interval,
    read_recall_matrix,
    read_served_recall,
    wilson_interval,
)
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
    served = read_served_recall()
    assert (served.domains, served.unfound, served.unfound_all) == (0, [], [])
    assert served.router_accuracy is None
    assert set(served.recall.values()) == set(served.loss.values()) == {None}


def test_single_task_has_no_forgetting(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.9})
    view = read_recall_matrix()
    assert (view.bwf_local, view.fr, view.hm) == (None, None, pytest.approx(0.9))
    assert view.matrix_local == [[0.9]]


@pytest.mark.parametrize("backbone", ["small", "tiny"])
def test_domain_of_another_lineage_keeps_its_recall(sqlite_catalog: Settings, backbone: str) -> None:
    """Releases of one lineage do not measure the domains of another, which they do not change."""
    for gallery in ("local", "global"):
        add_measured_domains(
            {(1, 1): 0.9, (2, 2): 0.8, (3, 1): 0.7, (3, 3): 0.6, (4, 4): 0.5}, gallery=gallery
        )
    releases = ((None, "tiny"), (None, backbone), ("r1", "tiny"), ("r3", "tiny"))
    with session_scope(write=True) as session:
        for order, (parent, name) in enumerate(releases, 1):
            session.get_one(Task, f"t{order}").backbone = name
            columns = {"method": "m", "kind": "k", "fingerprint": "f", "bytes": 1, "created_at": now(session)}
            session.add(
                Release(id=f"r{order}", task_id=f"t{order}", learned_order=order, backbone=name, **columns)
            )
            before = parent and {"release": parent, "tasks": 1}
            folder = sqlite_catalog.index_dir / "releases" / f"r{order}"
            folder.mkdir(parents=True)
            (folder / "release.json").write_text(json.dumps({"schema": 1, "kind": "k", "before": before}))
    view = read_recall_matrix()
    # The held-out videos of the domains 1 and 3 were deleted before the last release.
    assert view.matrix_local == [
        [0.9, None, None, None],
        [0.9, 0.8, None, None],
        [0.7, 0.8, 0.6, None],
        [None, 0.8, None, 0.5],
    ]
    assert view.queries == [[10, 0, 0, 0], [10, 20, 0, 0], [10, 20, 30, 0], [0, 20, 0, 40]]
    assert [row and row.r1 for row in view.newest["global"]] == [None, 0.8, None, 0.5]


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
    assert shown.bwf_local == complete.bwf_local
    assert shown.recall_over_time_local == complete.recall_over_time_local
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


def _of_domains(*queries: int) -> Callable[[int, int], int]:
    """Return the query counts of each domain's cells."""
    return lambda i, t: queries[t - 1]


def test_tiny_domain_hardly_changes_the_recall_of_a_library(catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.2, (2, 1): 0.2, (2, 2): 1.0}, queries=_of_domains(120, 1))
    served = read_served_recall()
    recall = served.recall["local"]
    assert recall is not None
    assert (recall.share, recall.queries) == (pytest.approx((120 * 0.2 + 1) / 121), 121)
    assert recall.low == pytest.approx(0.144, abs=5e-3)
    assert recall.high == pytest.approx(0.287, abs=5e-3)
    assert (served.domains, served.domains_with_few_queries) == (2, 1)
    assert served.recall["global"] is None, "not measured"


def test_loss_is_weighted_by_queries(sqlite_catalog: Settings) -> None:
    cells = {(1, 1): 0.5, (2, 1): 0.5, (3, 1): 0.4, (2, 2): 0.5, (3, 2): 0.0, (3, 3): 0.9}
    add_measured_domains(cells, queries=_of_domains(90, 10, 500))
    loss = read_served_recall().loss["local"]
    assert loss is not None
    assert (loss.domains, loss.queries) == (2, 100), "the newest domain cannot have been forgotten"
    assert loss.loss == pytest.approx((90 * 0.1 + 10 * 0.5) / 100)
    assert loss.learned - loss.now == pytest.approx(loss.loss)
    assert loss.worst is not None
    assert (loss.worst.task, loss.worst.queries) == ("domain 1", 90), "domain 2 has too few queries"
    assert loss.worst.loss == pytest.approx(0.1)
    view = read_recall_matrix()
    assert view.bwf_local == pytest.approx((0.1 + 0.5) / 2), "BWF weighs domains equally, as in the papers"


def test_deleted_queries_are_no_loss_of_a_frozen_shard(sqlite_catalog: Settings) -> None:
    """Half of domain 1's held-out videos are deleted, all of which were found; no result has changed."""
    cells = {(1, 1): 0.5, (2, 1): 0.0, (2, 2): 0.9}
    for gallery in ("local", "global"):
        add_measured_domains(cells, gallery=gallery, queries=lambda i, t: 80 if (i, t) == (1, 1) else 40)
    losses = read_served_recall().loss
    assert losses["local"] is None
    assert losses["global"] is not None, "among all shards, results may have changed as well"


def test_literature_measures_weigh_domains_equally(sqlite_catalog: Settings) -> None:
    """One query in domain 2 counts like 99 in domain 1."""
    add_measured_domains({(1, 1): 0.5, (2, 1): 0.5, (3, 1): 0.5, (2, 2): 1.0, (3, 2): 1.0, (3, 3): 0.5})
    union = {(1, 1): 0.5, (2, 1): 0.5, (3, 1): 0.5, (2, 2): 1.0, (3, 2): 0.0, (3, 3): 0.5}
    add_measured_domains(union, gallery="global", queries=_of_domains(99, 1, 10))
    shown = read_recall_matrix()
    assert (shown.bwf_local, shown.bwf_global) == (0, pytest.approx(0.5))
    assert shown.hm == pytest.approx(2 / 3)
    assert shown.losses["global"] is not None
    assert shown.losses["global"].loss == pytest.approx(0.01)


def test_domain_that_is_never_found_is_named(sqlite_catalog: Settings) -> None:
    """Recall 0 before and after is no loss, but the domain cannot be found."""
    cells = {(i, t): 0.0 if t != 2 else 0.5 for i in range(1, 4) for t in range(1, i + 1)}
    add_measured_domains({key: 0.5 for key in cells})
    add_measured_domains(cells, gallery="global", queries=_of_domains(3, 40, 25))
    served = read_served_recall()
    assert served.loss["global"] is not None
    assert served.loss["global"].loss == 0
    assert served.unfound_domains == 2
    assert [(domain.task, domain.queries) for domain in served.unfound] == [("domain 3", 25), ("domain 1", 3)]


def test_domain_that_is_found_only_among_held_out_videos_is_named(sqlite_catalog: Settings) -> None:
    cells = {(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.5}
    for gallery in ("local", "global"):
        add_measured_domains(cells, gallery=gallery, queries=_of_domains(40, 12))
    add_measured_domains(cells | {(2, 2): 0.0}, gallery="global_all", queries=_of_domains(40, 12))
    served = read_served_recall()
    assert (served.unfound_domains, served.unfound) == (0, [])
    assert served.unfound_all_domains == 1
    assert [(domain.task, domain.queries) for domain in served.unfound_all] == [("domain 2", 12)]


def test_router_accuracy_has_its_queries(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.9})
    add_measured_domains({(1, 1): 0.9}, gallery="global")
    with session_scope(write=True) as session:
        session.query(Recall).filter_by(gallery="global").one().routing1 = 0.8
    accuracy = read_served_recall().router_accuracy
    assert accuracy is not None
    assert (accuracy.share, accuracy.queries) == (0.8, 10)


@pytest.mark.parametrize(
    ("hits", "queries", "low", "high"),
    [
        (0, 1, 0.000000, 0.793451),
        (1, 1, 0.206549, 1.000000),
        (0, 29, 0.000000, 0.116970),
        (15, 148, 0.062386, 0.160487),
        (81, 263, 0.255289, 0.366210),
        (500, 500, 0.992376, 1.000000),
    ],
)
def test_interval_of_a_share(hits: int, queries: int, low: float, high: float) -> None:
    """The ends are those of scipy's ``binomtest(...).proportion_ci(method="wilson")``."""
    assert wilson_interval(hits / queries, queries) == pytest.approx((low, high), abs=1e-6)


def test_interval_of_a_difference_equals_the_published_example() -> None:
    """56/70 against 48/80 has the interval 0.0524 to 0.3339 (Newcombe 1998, table II); here with equal numbers."""
    low, high = difference_interval(0.8, 0.6, 75)
    assert low == pytest.approx(0.0524, abs=5e-3)
    assert high == pytest.approx(0.3339, abs=5e-3)
