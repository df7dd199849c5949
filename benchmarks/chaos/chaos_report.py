"""Report a chaos run as JSON: each fault with its violations, and a row per kind of fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

COLUMNS = (
    "fault",
    "runs",
    "struck",
    "searches",
    "failed",
    "failed during a restart of the API",
    "retried tasks",
    "violations",
)


@dataclass
class FaultRecord:
    """A fault, and the state of the library after recovery.

    Attributes:
        number: Position of the fault in the run, from 0.
        mode: Deployment: embedded, server or containers.
        round: Round of operations in which it struck.
        delay: Seconds from the start of the round to the fault.
        struck: Whether the fault took effect; a kill point may not be reached.
        seconds: Duration of the round, including recovery.
        searches: Number of searches in the round.
        failed_searches: Errors of failed searches, except those during a restart of the API.
        excused_searches: Number of failed searches during a restart of the API.
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
    retried_tasks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def write_chaos_report(path: Path, records: Sequence[FaultRecord], seed: int) -> list[list[str | int]]:
    """Write the report, and return its rows. It is written after each fault: an interrupted run has one."""
    kinds = sorted({record.kind for record in records})
    rows = [_row(kind, [record for record in records if record.kind == kind]) for kind in kinds]
    rows.append(_row("all", records))
    facts = {"seed": seed, "columns": COLUMNS, "rows": rows, "records": [asdict(one) for one in records]}
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)
    return rows


def _row(kind: str, records: Sequence[FaultRecord]) -> list[str | int]:
    return [
        kind,
        len(records),
        sum(record.struck for record in records),
        sum(record.searches for record in records),
        sum(len(record.failed_searches) for record in records),
        sum(record.excused_searches for record in records),
        sum(len(record.retried_tasks) for record in records),
        sum(len(record.violations) for record in records),
    ]
