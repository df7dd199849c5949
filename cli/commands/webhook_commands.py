"""``cinestrata webhooks``: endpoints that receive signed messages about events."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.console import console, fail, plain_table, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

__all__ = ["app"]

app = typer.Typer(help="Register, test and remove webhooks.", no_args_is_help=True)

WebhookId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the webhook (see `cinestrata webhooks list`).")
]


@app.command()
@report_errors
def create(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="https:// address of the endpoint.")],
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event", help="Event that is sent, such as task.ready; may be repeated (default: all)."
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Register an endpoint, and print the secret that verifies its signatures."""
    from cli.connection import connect
    from service.core.schemas import WebhookSpec

    fields = {"url": address} | ({"events": events} if events else {})
    created = connect(url, data).create_webhook(WebhookSpec.model_validate(fields))
    print_json(created)
    console.print(f"{created.id} receives {', '.join(created.events)}.", soft_wrap=True)
    console.print(f"Secret (shown once): {created.secret}", soft_wrap=True)


@app.command("list")
@report_errors
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all webhooks with the state of their messages."""
    from rich.text import Text

    from cli.connection import connect

    table = plain_table()
    for heading in ("id", "address", "state", "pending", "failed", "last delivery"):
        table.add_column(heading, overflow="fold")
    webhooks = connect(url, data).webhooks()
    print_json(webhooks)
    for webhook in webhooks:
        state = "enabled" if webhook.enabled else webhook.reason or "disabled"
        last = webhook.last_delivery_at
        table.add_row(
            webhook.id,
            Text(webhook.url),
            Text(state, style="" if webhook.enabled else "yellow"),
            str(webhook.pending),
            str(webhook.failed),
            f"{last:%Y-%m-%d %H:%M}" if last else "never",
        )
    console.print(table)


@app.command()
@report_errors
def remove(webhook: WebhookId, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Remove a webhook with its messages."""
    from cli.connection import connect

    connect(url, data).remove_webhook(webhook)
    print_json({"removed": webhook})
    console.print(f"The webhook {webhook} was removed.")


@app.command("test")
@report_errors
def send_test(webhook: WebhookId, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Send a test message now. Exits with status 1 if the endpoint does not accept it."""
    from cli.connection import connect

    result = connect(url, data).test_webhook(webhook)
    print_json(result)
    if result.state == "delivered":
        console.print(f"The endpoint answered with status {result.status}.")
        return
    status = f"status {result.status}: " if result.status else ""
    if as_json:
        raise typer.Exit(1)
    fail(f"The endpoint did not accept the message: {status}{result.answer}")
