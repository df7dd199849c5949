"""``cinestrata mcp``: serve the library to the agent that starts the command."""

from __future__ import annotations

import typer

from cli.console import report_errors
from cli.shared_options import Data, Url

app = typer.Typer()


@app.command()
@report_errors
def mcp(data: Data = None, url: Url = None) -> None:
    """Serve the library to an agent over standard input and output (Model Context Protocol)."""
    from api.agents.library_tools import create_agent_server
    from cli.service_client import open_agent_api
    from service.core.logging import configure_logging

    configure_logging("console", "WARNING")  # to standard error: standard output belongs to the protocol
    create_agent_server(open_agent_api(url, data)).run("stdio")
