"""``cinestrata audit`` on a data folder."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from service.access.audit_log import Actor, record_event
from service.core.settings import Settings
from tests.cli.invocation import run


def test_entries_are_printed_as_table_or_json_lines(folder: Settings) -> None:
    ada = Actor("user", "ada [bold]", "10.0.0.7")
    record_event("task.cancel", "tsk_1", {"name": "Küche"}, actor=ada)
    record_event("video.edit", "v1", actor=ada)
    table = run("audit", "--action", "task")
    assert table.exit_code == 0, table.output
    assert "ada [bold] (user)" in table.output
    assert "Küche" in table.output
    assert "video.edit" not in table.output
    lines = run("audit", "--json").output.splitlines()
    assert [json.loads(line)["target"] for line in lines] == ["tsk_1", "v1"]
    assert "No entries match" in run("audit", "--actor", "bob").output


@pytest.mark.parametrize("length", [3, 64])
def test_entries_fit_80_columns(folder: Settings, length: int) -> None:
    long = "漢" * length
    actor = Actor("user", "a" * length, "2001:db8:0000:0000:0000:0000:0000:0007")
    record_event(
        "snapshot.download",
        "whk_847a549" + "f" * length,
        {"name": long, "lines": "a\nb\x1b[31m"},
        actor=actor,
    )
    heading, row, *details = run("audit").output.splitlines()
    assert heading.split() == ["time", "actor", "action", "target"]
    assert [cell_len(line) for line in (row, *details) if cell_len(line) > 80] == []
    assert "snapshot.download" in row
    assert all(line.startswith("    ") for line in details)
    shown = "".join(line.removeprefix("    ") for line in details)
    assert "from 2001:db8:" in shown
    assert long in shown
    assert ("whk_847a549" + "f" * length in shown) is (length > 10)
    assert "\x1b" not in shown
