"""Selection of the tasks whose queries a row of the recall matrix contains.

In a library of up to :data:`MAX_MEASURED_TASKS` tasks, a row measures all of them. With more tasks it measures evenly
spaced ones and the newest, so the cost of a row grows with the number of tasks, not with its square: each query may
have to be encoded for every shard, and every shard counts as a gallery in any case.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MAX_MEASURED_TASKS", "select_measured_tasks"]

MAX_MEASURED_TASKS = 64


def select_measured_tasks(tasks: Sequence[str]) -> frozenset[str]:
    """Select at most :data:`MAX_MEASURED_TASKS` evenly spaced tasks, and the newest.

    The distance is a power of two. A growing library therefore only stops measuring tasks and never measures one again:
    the columns of the remaining tasks are complete, and the ranks of their queries continue.

    Args:
        tasks: Identifiers of the tasks with queries, in order of learning.
    """
    distance = 1
    while len(tasks) > MAX_MEASURED_TASKS * distance:
        distance *= 2
    return frozenset([*tasks[::distance], *tasks[-1:]])
