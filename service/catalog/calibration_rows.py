"""Confidence models that appends fitted again for the release of the library.

A release never changes, so such a model is stored in the catalog, before the manifest lists the append. It applies to
the generations of the index from the first one with the append.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.catalog.tables import FINAL_STATES, Calibration, Task


def store_calibration(
    session: Session, task_id: str, release_id: str, generation: int, model: dict[str, Any]
) -> None:
    """Store the model of an append in place of one of an earlier attempt.

    Models of other releases stay: no release is ever removed, so each of them may be served again.

    Args:
        session: Transaction that locks the append.
        release_id: Identifier of the release that the model was fitted to.
        generation: First generation of the index that the model applies to.
        model: JSON object of the model.
    """
    session.execute(delete(Calibration).where(Calibration.task_id == task_id))
    session.add(Calibration(task_id=task_id, release_id=release_id, generation=generation, model=model))


def read_calibration(session: Session, release_id: str, generation: int) -> dict[str, Any] | None:
    """Return the newest model of a release for a generation of the index; None without one.

    Models of appends that failed or were cancelled do not apply.
    """
    return session.scalars(
        select(Calibration.model)
        .join(Task, Task.id == Calibration.task_id)
        .where(
            Calibration.release_id == release_id,
            Calibration.generation <= generation,
            Task.state.not_in([state for state in FINAL_STATES if state != "ready"]),
        )
        .order_by(Calibration.generation.desc(), Calibration.id.desc())
        .limit(1)
    ).one_or_none()
