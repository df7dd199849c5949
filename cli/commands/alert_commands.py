"""``cinestrata alerts``: crossed thresholds of forgetting, recall and failed tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.console import console, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

app = typer.Typer()


@app.command()
@report_errors
def alerts(
    show_earlier: Annotated[
        bool, typer.Option("--all", help="Also the last 20 cleared or dismissed alerts.")
    ] = False,
    dismissed: Annotated[
        int | None,
        typer.Option(
            "--dismiss",
            metavar="NUMBER",
            min=1,
            help="Hide this alert. It is raised again only after its measure has recovered.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the open alerts, newest first. With --json, also the earlier ones."""
    from cli.service_client import connect

    client = connect(url, data)
    if dismissed is not None:
        alert = client.dismiss_alert(dismissed)
        print_json(alert)
        console.print(f"Alert {alert.id} is dismissed.")
        return
    page = client.list_alerts()
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
