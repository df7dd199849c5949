"""Run commands in a test's process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from cli.main import app


def run(*arguments: object, given: str | None = None) -> Result:
    """Run ``cinestrata …`` with a standard input, which is empty by default."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
