"""Report a chaos run: each fault with its violations as JSON, and a table of fault groups."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reporting.markdown_tables import markdown_table

_COLUMNS = (
    "fault",
    "runs",
    "with PostgreSQL",
    "struck",
    "searches",
    "failed",
    "failed during a restart of the API",
    "retried tasks",
    "violations",
)
_GROUPS = {  # group → pattern of fault kinds; the first match counts
    "kill points of all operations": "kill at: ",
    "kill all processes": "kill all",
    "kill Redis, kill Redis and lose its messages": "kill redis",
    "kill PostgreSQL, cut and freeze its networks": "kill postgresql|cut|freeze",
    "kill the API, the learning worker, the probing worker": "kill",
    "read-only data folder, full disk": "full|.*read-only",
    "restart the API during a hot swap, and without the database": "restart",
    "pause a process past its lease": "stop",
    "deliver every message twice, two learning workers": "deliver|two",
    "clock jumps backward and forward": "clock",
}


@dataclass
class FaultRecord:
    """A fault, and the state of the library after recovery.

    Attributes:
        number: Position of the fault in the run, from 0.
        mode: Deployment: embedded or server.
        round: Round of operations in which it struck.
        delay: Seconds from the start of the round to the fault.
        struck: Whether the fault took effect; a kill point may not be reached.
        seconds: Duration of the round, including recovery.
        searches: Number of searches in the round.
        failed_searches: Errors of failed searches, except those during a restart of the API.
        excused_searches: Number of failed searches during a restart of the API.
        unavailable_searches: Number of searches answered with 503 and ``Retry-After``.
        retried_tasks: Errors of tasks that failed and that the operator retried.
        violations: What the checker found, as sentences.
    """

    number: int
    mode: str
    kind: str
    round: int
    delay: float
    struck: bool = False
    seconds: float = 0.0
    searches: int = 0
    failed_searches: list[str] = field(default_factory=list)
    excused_searches: int = 0
    unavailable_searches: int = 0
    retried_tasks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def write_chaos_report(path: Path, records: Sequence[FaultRecord], seed: int) -> None:
    """Write the report as JSON. It is written after each fault, so that an interrupted run has one."""
    facts: dict[str, Any] = {
        "seed": seed,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "faults": len(records),
        "struck": sum(record.struck for record in records),
        "searches": sum(record.searches for record in records),
        "failed_searches": sum(len(record.failed_searches) for record in records),
        "violations": sum(len(record.violations) for record in records),
        "columns": _COLUMNS,
        "rows": _rows(records),
        "records": [asdict(record) for record in records],
    }
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)


def chaos_table(records: Sequence[FaultRecord]) -> str:
    """Format a Markdown table with a row per fault group, and a total."""
    return markdown_table(_COLUMNS, [list(map(str, row)) for row in _rows(records)])


def _rows(records: Sequence[FaultRecord]) -> list[list[str | int]]:
    groups: dict[str, list[FaultRecord]] = {title: [] for title in (*_GROUPS, "other", "all")}
    for record in records:
        groups[_group(record.kind)].append(record)
        groups["all"].append(record)
    return [
        [
            title,
            len(own),
            sum(record.mode != "embedded" for record in own),
            sum(record.struck for record in own),
            sum(record.searches for record in own),
            sum(len(record.failed_searches) for record in own),
            sum(record.excused_searches for record in own),
            sum(len(record.retried_tasks) for record in own),
            sum(len(record.violations) for record in own),
        ]
        for title, own in groups.items()
        if own
    ]


def _group(kind: str) -> str:
    return next((title for title, pattern in _GROUPS.items() if re.match(pattern, kind)), "other")
