"""Measured libraries without workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from service.catalog.database import now, session_scope
from service.catalog.tables import Recall, Task

Measure = Callable[..., None]


@pytest.fixture
def measure() -> Measure:
    """``measure(cells, first=1)``: learned tasks without videos, and cells ``{(i, t): r1}`` of their releases."""

    def make(
        cells: Mapping[tuple[int, int], float],
        *,
        mode: str = "pinned",
        gallery: str = "local",
        queries: Callable[[int, int], int] = lambda i, t: 10 * t,
    ) -> None:
        with session_scope(write=True) as session:
            for t in sorted({t for _, t in cells} | {i for i, _ in cells if i}):
                if session.get(Task, f"t{t}") is None:
                    session.add(_task(t, now(session)))
            session.flush()
            session.add_all(
                Recall(
                    release_order=i,
                    task_order=t,
                    mode=mode,
                    gallery=gallery,
                    queries=queries(i, t),
                    r1=r1,
                    r5=r1,
                    r10=r1,
                    medr=1,
                    meanr=1,
                    routing1=r1 if gallery == "global" else None,
                )
                for (i, t), r1 in cells.items()
            )

    return make


def _task(order: int, at: object) -> Task:
    return Task(
        id=f"t{order}",
        position=order,
        name=f"domain {order}",
        method="strata",
        state="ready",
        learned_order=order,
        release_id=f"r{order}",
        counts={"accepted": 5},
        created_at=at,
        finished_at=at,
    )


@pytest.fixture
def recalls() -> Callable[[int], dict[tuple[int, int], float]]:
    """``recalls(n)``: the cells of n releases on their tasks."""

    def make(releases: int) -> dict[tuple[int, int], float]:
        values = np.random.default_rng(5).random((releases + 1, releases + 1))
        return {(i, t): float(values[i, t]) for i in range(1, releases + 1) for t in range(1, i + 1)}

    return make
