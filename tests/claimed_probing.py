"""Probing of a task by the worker that claims it, in the process of the test."""

from __future__ import annotations

from cinestrata_schemas.tasks import TaskDetails
from service.tasks import commands, lifecycle, probing


def probe(task_id: str) -> TaskDetails:
    """Claim a task, and probe its videos to the end, or to an outage of their source."""
    claim = lifecycle.claim_probing(task_id, "prober")
    assert claim is not None
    with claim:
        probing.probe(claim)
    return commands.get_task(task_id)
