"""Run commands in a test's process."""

from __future__ import annotations

from functools import cache

from click.testing import Result
from typer import testing
from typer.main import get_command

from cli.console import console
from cli.main import app

# The runner would build all commands for each invocation, which takes longer than most commands.
testing._get_command = cache(get_command)


def run(*arguments: object, given: str | None = None) -> Result:
    """Run ``cinestrata …`` with a standard input, which is empty by default."""
    result = testing.CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
    console.quiet = False  # set by --json
    return result
