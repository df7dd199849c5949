"""Recall of searches as they are answered: weights and counts, compared with values computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.catalog.database import session_scope
from service.catalog.tables import Recall
from service.core.settings import Settings
from service.library.recall_matrix import read_recall_matrix, read_served_recall
from tests.measured_library import add_measured_domains


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


def test_empty_library_has_no_served_recall(catalog: Settings) -> None:
    served = read_served_recall()
    assert (served.domains, served.unfound, served.unfound_all) == (0, [], [])
    assert served.router_accuracy is None
    assert set(served.recall.values()) == {None}
    assert set(served.loss.values()) == {None}
