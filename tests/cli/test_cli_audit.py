"""``cinestrata audit`` on a data folder."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from cli.main import app
from service.audit.actor import Actor
from service.audit.audit_log import record_event
from service.core.settings import Settings


def test_entries_are_printed_as_table_or_json_lines(folder: Settings) -> None:
    ada = Actor("user", "ada [bold]", "10.0.0.7")
    record_event("task.cancel", "tsk_1", {"name": "Küche"}, actor=ada)
    record_event("video.edit", "v1", actor=ada)
    table = CliRunner().invoke(app, ["audit", "--action", "task"])
    assert table.exit_code == 0, table.output
    assert "ada [bold] (user)" in table.output
    assert "Küche" in table.output
    assert "video.edit" not in table.output
    lines = CliRunner().invoke(app, ["audit", "--json"]).output.splitlines()
    assert [json.loads(line)["target"] for line in lines] == ["tsk_1", "v1"]
    assert "no such entries" in CliRunner().invoke(app, ["audit", "--actor", "bob"]).output
