"""The map of the recall matrix, compared with means over the complete matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.library.recall.recall_cells import read_measures_version
from service.library.recall.recall_map import MapWindow, read_recall_map
from service.library.recall.recall_matrix import read_recall_matrix

Cells = dict[tuple[int, int], float]


def test_small_matrix_is_shown_cell_by_cell(
    catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    cells = recalls(4)
    measure(cells)
    measure({(i, t): value / 2 for (i, t), value in cells.items()}, gallery="global")
    measure({(0, 2): 0.1})
    shown, complete = read_recall_map(), read_recall_matrix()
    assert shown.mean == [
        [None if value is None else pytest.approx(value, abs=1e-4) for value in row]
        for row in complete.matrix_local
    ]
    assert (shown.low, shown.high) == (None, None)
    assert [column.name for column in shown.columns] == complete.tasks
    assert (shown.bwf_local, shown.bwf_global, shown.fr, shown.hm) == (
        complete.bwf_local,
        complete.bwf_global,
        complete.fr,
        complete.hm,
    )
    assert shown.zero_shot == [None, 0.1, None, None]
    assert shown.recall_mean == pytest.approx(complete.recall_over_time_local, abs=1e-4)
    assert shown.router_accuracy == pytest.approx(complete.router_accuracy, abs=1e-4)
    assert shown.router_queries == [10, 30, 60, 100]
    assert [line.name for line in shown.lines] == complete.tasks
    assert shown.lines[1].loss == pytest.approx(cells[2, 2] - cells[4, 2], abs=1e-4)
    union = read_recall_map(gallery="global")
    assert union.mean[3][0] == pytest.approx(cells[4, 1] / 2, abs=1e-4)
    assert (union.bwf_local, union.served) == (shown.bwf_local, shown.served)
    assert shown.queries == complete.queries


def test_zero_shot_is_that_of_the_gallery(sqlite_catalog: Settings, measure: Callable[..., None]) -> None:
    for gallery in ("local", "global"):
        measure({(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.6}, gallery=gallery)
    measure({(0, 1): 0.1, (0, 2): 0.4})
    own = read_recall_map()
    assert (own.zero_shot, own.zero_shot_queries) == ([0.1, 0.4], [10, 20])
    assert [line.zero_shot for line in own.lines] == [0.1, 0.4]
    union = read_recall_map(gallery="global")  # not measured
    assert (union.zero_shot, union.zero_shot_queries) == ([None, None], [0, 0])
    assert [line.zero_shot for line in union.lines] == [None, None]
    binned = read_recall_map(bins=1)
    assert (binned.zero_shot, binned.zero_shot_queries) == ([pytest.approx(0.3)], [20])


def test_bins_weigh_cells_by_their_queries(
    sqlite_catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    cells = recalls(10)
    measure(cells)
    shown = read_recall_map(bins=4)
    edges = [(1, 3), (4, 6), (7, 9), (10, 10)]
    assert [(row.first, row.last) for row in shown.rows] == edges
    assert [(column.name, column.last_name) for column in shown.columns][2:] == [
        ("domain 7", "domain 9"),
        ("domain 10", None),
    ]
    for row, (i0, i1) in enumerate(edges):
        for column, (t0, t1) in enumerate(edges):
            inside = {key: v for key, v in cells.items() if i0 <= key[0] <= i1 and t0 <= key[1] <= t1}
            if not inside:
                assert shown.mean[row][column] is None
                continue
            mean = sum(10 * t * v for (_, t), v in inside.items()) / sum(10 * t for _, t in inside)
            assert shown.mean[row][column] == pytest.approx(mean, abs=1e-4)
            assert shown.low is not None
            assert shown.high is not None
            assert shown.low[row][column] == pytest.approx(min(inside.values()), abs=1e-4)
            assert shown.high[row][column] == pytest.approx(max(inside.values()), abs=1e-4)


def test_window_shows_the_cells_of_a_bin(
    sqlite_catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    cells = recalls(10)
    measure(cells)
    window = MapWindow(first_release=7, last_release=9, first_domain=4, last_domain=6)
    shown = read_recall_map(window=window, bins=4)
    assert shown.mean == [[pytest.approx(cells[i, t], abs=1e-4) for t in (4, 5, 6)] for i in (7, 8, 9)]
    assert [line.task_id for line in shown.lines] == ["t4", "t5", "t6"]
    assert shown.lines[0].loss == pytest.approx(cells[4, 4] - cells[10, 4], abs=1e-4)
    assert shown.maximum == read_recall_map().maximum, "colors of a window are those of the whole matrix"
    assert shown.recall_mean[0] == pytest.approx(sum(10 * t * cells[7, t] for t in (4, 5, 6)) / 150, abs=1e-4)


@pytest.mark.parametrize(
    ("window", "rows"),
    [((9, 99), [9, 10]), ((50, 60), [10]), ((None, 2), [1, 2]), ((10, None), [10])],
)
def test_window_beyond_the_matrix_ends_at_its_edge(
    sqlite_catalog: Settings,
    measure: Callable[..., None],
    recalls: Callable[[int], Cells],
    window: tuple[int | None, int | None],
    rows: list[int],
) -> None:
    measure(recalls(10))
    shown = read_recall_map(window=MapWindow(first_release=window[0], last_release=window[1]))
    assert [row.first for row in shown.rows] == rows


def test_silent_domain_has_a_release_but_no_column(
    sqlite_catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    measure({key: value for key, value in recalls(4).items() if key[1] != 2})
    shown = read_recall_map(bins=2)
    assert [(column.t, column.last_t) for column in shown.columns] == [(1, 3), (4, 4)]
    assert [(row.t, row.last_t) for row in shown.rows] == [(1, 2), (3, 4)]


def test_reversed_window_is_refused(sqlite_catalog: Settings) -> None:
    with pytest.raises(InvalidInput, match="first_domain is 5, after last_domain"):
        read_recall_map(window=MapWindow(first_domain=5, last_domain=4))


def test_map_of_an_empty_library(catalog: Settings) -> None:
    shown = read_recall_map(window=MapWindow(first_release=3, last_release=8))
    assert (shown.rows, shown.columns, shown.mean, shown.lines, shown.maximum) == ([], [], [], [], None)
    assert (shown.recall_mean, shown.recall_low, shown.router_accuracy) == ([], [], [])
    assert (shown.zero_shot, shown.zero_shot_queries) == ([], [])


def test_large_window_names_the_domains_with_the_largest_loss(
    sqlite_catalog: Settings, measure: Callable[..., None]
) -> None:
    lost = {3: 0.4, 7: 0.2}
    measure(
        {
            (i, t): 0.8 - (lost.get(t, 0) if i == 12 and i > t else 0)
            for i in range(1, 13)
            for t in range(1, i + 1)
        }
    )
    shown = read_recall_map()
    assert [(line.name, line.loss) for line in shown.lines] == [("domain 3", 0.4), ("domain 7", 0.2)]
    assert (shown.recall_low[-1], shown.recall_high[-1]) == (pytest.approx(0.62), 0.8)


def test_answer_is_bounded_for_any_number_of_domains(
    sqlite_catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    measure(recalls(62))
    shown = read_recall_map()
    assert (len(shown.mean), len(shown.mean[0]), len(shown.lines)) == (31, 31, 3)
    assert len(shown.model_dump_json()) < len(read_recall_matrix().model_dump_json()) / 2


def test_cells_in_memory_follow_the_catalog(
    catalog: Settings, measure: Callable[..., None], recalls: Callable[[int], Cells]
) -> None:
    cells = recalls(5)
    measure({key: value for key, value in cells.items() if key[0] <= 3})
    versions = [read_measures_version()]
    assert len(read_recall_map().rows) == 3
    measure({key: value for key, value in cells.items() if key[0] > 3})
    measure({(0, 5): 0.25})
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
    assert read_recall_map().columns[0].name == "renamed"
    assert len(set(versions)) == 4
    assert read_measures_version() == versions[-1]
