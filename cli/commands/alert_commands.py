"""``cinestrata alerts``: crossed thresholds of forgetting, recall and failed tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.console import console, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

__all__ = ["app"]

app = typer.Typer(help="List and dismiss alerts.", no_args_is_help=True)


@app.command("list")
@report_errors
def list_(
    show_earlier: Annotated[
        bool, typer.Option("--all", help="Also the last 20 cleared or dismissed alerts.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the open alerts, newest first. With --json, also the earlier ones and the thresholds."""
    from cli.connection import connect

    page = connect(url, data).alerts()
    print_json(page)
    for alert in [*page.open, *(page.earlier if show_earlier else ())]:
        end = alert.cleared_at or alert.dismissed_at
        ended = (
            f", {'cleared' if alert.cleared_at else 'dismissed'} {end.astimezone():%Y-%m-%d %H:%M}"
            if end
            else ""
        )
        console.print(
            f"{alert.id}  {alert.raised_at.astimezone():%Y-%m-%d %H:%M}{ended}", style="dim" if end else ""
        )
        console.print(f"    {alert.message}", soft_wrap=True)
    if page.open_count > len(page.open):
        console.print(f"{page.open_count - len(page.open)} further open alerts")
    if not page.open:
        console.print("No alert is open.")


@app.command()
@report_errors
def dismiss(
    alert: Annotated[int, typer.Argument(help="Number of the alert (see `alerts list`).", min=1)],
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Hide an alert. It is raised again only after its measure has recovered."""
    from cli.connection import connect

    dismissed = connect(url, data).dismiss_alert(alert)
    print_json(dismissed)
    console.print(f"Alert {dismissed.id} is dismissed.")
