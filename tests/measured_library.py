"""Measured libraries without workers: rows of tasks and of the recall matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cinestrata_schemas.library import RecallMatrix
from service.catalog.database import now, session_scope
from service.catalog.tables import Recall, Task

_IDS = frozenset({"task_id", "task_ids", "releases"})


def first_hits(r1: float, queries: int) -> bytes:
    """Return query outcomes, the first of which rank their video first."""
    return np.packbits(np.arange(queries) < round(r1 * queries)).tobytes()


def figures_without_ids(matrix: RecallMatrix) -> Any:
    """Return the figures of a matrix, without identifiers, which differ between equal libraries."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(part) for name, part in value.items() if name not in _IDS}
        return [strip(part) for part in value] if isinstance(value, list) else value

    return strip(matrix.model_dump())


def add_measured_domains(
    cells: Mapping[tuple[int, int], float],
    *,
    mode: str = "pinned",
    gallery: str = "local",
    queries: Callable[[int, int], int] = lambda i, t: 10 * t,
    has_outcomes: bool = True,
) -> None:
    """Add learned tasks without videos, and cells of their releases."""
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
                query_set=f"{t}: {queries(i, t)}" if has_outcomes else None,
                first_hits=first_hits(r1, queries(i, t)) if has_outcomes else None,
            )
            for (i, t), r1 in cells.items()
        )


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
        trained=True,
        progress={"stage": "ready", "fraction": 1},
        created_at=at,
        finished_at=at,
    )
