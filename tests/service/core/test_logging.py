"""Log lines in both formats."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog

from service.core.logging import configure_logging
from service.core.request_ids import use_request_id


@pytest.fixture
def own_logging() -> Any:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_logging")
def test_json_logs_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "INFO")
    structlog.get_logger("product").info("shard_published", task="tsk_1")
    logging.getLogger("library").warning("from %s", "elsewhere")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("product").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (lines[0]["event"], lines[0]["task"], lines[0]["level"]) == ("shard_published", "tsk_1", "info")
    assert (lines[1]["event"], lines[1]["logger"]) == ("from elsewhere", "library")
    assert lines[2]["exception"][0]["exc_value"] == "broken"


@pytest.mark.usefixtures("own_logging")
def test_log_lines_carry_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "INFO")
    with use_request_id("req-1"):
        structlog.get_logger("product").info("inside")
        logging.getLogger("library").warning("inside, too")
    structlog.get_logger("product").info("outside")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("request_id") for line in lines] == ["req-1", "req-1", None]


@pytest.mark.usefixtures("own_logging")
def test_console_logs_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("console", "WARNING")
    structlog.get_logger("product").info("not shown")
    structlog.get_logger("product").warning("shown", task="tsk_1")
    printed = capsys.readouterr().err
    assert "not shown" not in printed
    assert "shown" in printed
    assert "tsk_1" in printed
