"""Report of a chaos run: each fault with its violations, as JSON and as a table."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reporting.markdown_tables import markdown_table


@dataclass
class FaultRecord:
    """A fault, and the state of the library after the recovery.

    Attributes:
        number: Number of the fault, from 0.
        mode: Deployment: embedded or server.
        kind: Kind of the fault.
        round: Round of operations in which it struck.
        delay: Seconds from the start of the round to the fault.
        struck: Whether the fault took effect; a kill point may not be passed.
        seconds: Duration of the round with its recovery.
        searches: Number of searches in the round.
        failed_searches: Errors of failed searches, without those during the restart of the API.
        excused_searches: Number of failed searches during the restart of the API.
        unavailable_searches: Number of searches that were answered by 503 with ``Retry-After``.
        retried_tasks: Errors of tasks that failed and were retried by the operator.
        violations: Sentences of the checker.
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
    """Write the report as JSON; it is written after each fault, so that an interrupted run has one."""
    facts: dict[str, Any] = {
        "seed": seed,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "faults": len(records),
        "struck": sum(record.struck for record in records),
        "searches": sum(record.searches for record in records),
        "failed_searches": sum(len(record.failed_searches) for record in records),
        "violations": sum(len(record.violations) for record in records),
        "records": [asdict(record) for record in records],
    }
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)


def chaos_table(records: Sequence[FaultRecord]) -> str:
    """Markdown table with one row per kind of fault."""
    rows = []
    for kind in sorted({record.kind for record in records}):
        own = [record for record in records if record.kind == kind]
        rows.append(
            [
                kind,
                str(len(own)),
                str(sum(record.struck for record in own)),
                str(sum(record.searches for record in own)),
                str(sum(len(record.failed_searches) for record in own)),
                str(sum(record.excused_searches for record in own)),
                str(sum(len(record.retried_tasks) for record in own)),
                str(sum(len(record.violations) for record in own)),
            ]
        )
    header = [
        "fault",
        "runs",
        "struck",
        "searches",
        "failed",
        "during restart",
        "retried tasks",
        "violations",
    ]
    return markdown_table(header, rows)
