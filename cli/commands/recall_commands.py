"""``cinestrata forgetting`` and ``alerts``: show the recall of each domain, and crossed thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, plain_table, print_json, report_errors
from cli.service_client import connect
from cli.shared_options import (
    AsJson,
    Data,
    Url,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cinestrata_schemas.library import RecallMatrix

_GALLERIES = {"local": "own shard", "global": "all shards"}


app = typer.Typer()


@app.command()
@report_errors
def forgetting(
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Show each domain's recall when it was learned and now. With --json, print the whole recall matrix."""
    measures = connect(url, data).get_forgetting()
    print_json(measures)
    if not measures.tasks:
        console.print("No domain has been measured yet. This needs held-out videos with captions.")
        return
    table = plain_table("domain")
    places = (f"{place}\nlearned" for place in _GALLERIES.values())
    headings = ("queries", *(text for place in places for text in (place, "\nnow", "\nloss")))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.columns[0].overflow, table.columns[0].max_width = "fold", 22
    for number, name in enumerate(measures.tasks):
        cells = [_recall_cells(measures, gallery, number) for gallery in _GALLERIES]
        table.add_row(name, str(_queries(measures, number)), *(text for part in cells for text in part))
    console.print("Recall@1 of held-out captions:")
    console.print(table)
    if len(measures.tasks) < measures.domains:
        last = measures.first_domain + len(measures.tasks) - 1
        console.print(f"Domains {measures.first_domain} to {last} of {measures.domains}", style="dim")
    for gallery, place in _GALLERIES.items():
        loss = measures.served.loss.get(gallery)  # type: ignore[call-overload]
        if loss is not None:
            console.print(
                f"Loss of earlier domains, {place}: {_points(loss.loss)} points "
                f"({_points(loss.low)} to {_points(loss.high)}, {loss.queries} queries)"
            )
    if measures.served.router_accuracy is not None:
        console.print(f"Router accuracy: {measures.served.router_accuracy.share:.0%}")


def _recall_cells(measures: RecallMatrix, gallery: str, number: int) -> tuple[str, str, str]:
    """Format a domain's Recall@1 when learned and with the newest release, and their difference in points."""
    learned, newest = measures.learned[gallery][number], measures.newest[gallery][number]  # type: ignore[index]
    now = None if newest is None else newest.r1
    return _percent(learned), _percent(now), "–" if learned is None or now is None else _points(learned - now)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _queries(measures: RecallMatrix, number: int) -> int:
    column: Sequence[int] = [row[number] for row in measures.queries]
    return max(column, default=0)


def _points(share: float) -> str:
    return f"{100 * share:.1f}".replace("-0.0", "0.0")


@app.command()
@report_errors
def alerts(
    show_earlier: Annotated[
        bool, typer.Option("--all", help="Also list the last 20 cleared or dismissed alerts.")
    ] = False,
    dismissed: Annotated[
        int | None,
        typer.Option(
            "--dismiss",
            metavar="NUMBER",
            min=1,
            help="Dismiss this alert. It is raised again only after its measure has recovered.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List open alerts, newest first. With --json, include earlier ones."""
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
        console.print(f"{page.open_count - len(page.open)} more open alerts")
    if not page.open:
        console.print("No open alerts.")
