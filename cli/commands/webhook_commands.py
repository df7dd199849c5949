"""``cinestrata webhooks``: endpoints that receive signed messages about events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, fail, plain_table, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cinestrata_schemas.webhooks import WebhookDetails
    from cli.service_client import ServiceClient


app = typer.Typer(help="Register, test and remove webhooks, and read their messages.", no_args_is_help=True)

_SHORT_ID = 12  # characters of a listed ID, unless two webhooks share them
_MAX_ANSWER = 80  # columns

WebhookName = Annotated[
    str,
    typer.Argument(
        metavar="WEBHOOK",
        help="Address of the endpoint, or ID of the webhook (first characters suffice; see `webhooks list`).",
    ),
]


@app.command()
@report_errors
def create(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="https:// address of the endpoint.")],
    events: Annotated[
        list[str] | None,
        typer.Option("--event", help="Event to send, such as task.ready; may be repeated (default: all)."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Register an endpoint, and print the secret that verifies its signatures."""
    from cinestrata_schemas.webhooks import WebhookSpec
    from cli.service_client import connect

    fields = {"url": address} | ({"events": events} if events else {})
    created = connect(url, data).create_webhook(WebhookSpec.model_validate(fields))
    print_json(created)
    console.print(f"{created.id} receives {', '.join(created.events)}.", soft_wrap=True)
    console.print(f"Secret (shown once): {created.secret}", soft_wrap=True)


@app.command("list")
@report_errors
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all webhooks and the state of their messages."""
    from rich.text import Text

    from cli.service_client import connect

    table = plain_table()
    table.add_column("id", no_wrap=True)
    for heading in ("address", "state", "pending", "failed", "last delivery"):
        table.add_column(heading, overflow="fold")
    webhooks = connect(url, data).list_webhooks()
    print_json(webhooks)
    ids = _short_ids(webhooks)
    for webhook in webhooks:
        state = "enabled" if webhook.enabled else webhook.reason or "disabled"
        last = webhook.last_delivery_at
        table.add_row(
            ids[webhook.id],
            Text(webhook.url),
            Text(state, style="" if webhook.enabled else "yellow"),
            str(webhook.pending),
            str(webhook.failed),
            f"{last:%Y-%m-%d %H:%M}" if last else "never",
        )
    console.print(table if webhooks else "No webhooks yet. Register one with `cinestrata webhooks create`.")


@app.command()
@report_errors
def remove(webhook: WebhookName, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Remove a webhook and its messages."""
    from cli.service_client import connect

    client = connect(url, data)
    found = _find_webhook(client, webhook)
    client.remove_webhook(found.id)
    print_json({"removed": found.id})
    console.print(f"The webhook {found.id} of {found.url} was removed.", soft_wrap=True)


@app.command("test")
@report_errors
def send_test(webhook: WebhookName, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Send a test message now. Exits with status 1 if the endpoint doesn't accept it."""
    from cli.service_client import connect

    client = connect(url, data)
    result = client.test_webhook(_find_webhook(client, webhook).id)
    print_json(result)
    if result.state == "delivered":
        console.print(f"The endpoint responded with status {result.status}.")
        return
    status = f"status {result.status}: " if result.status else ""
    if as_json:
        raise typer.Exit(1)
    fail(f"The endpoint didn't accept the message: {status}{result.answer}")


@app.command()
@report_errors
def log(
    webhook: WebhookName,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of messages.")] = 20,
    resent: Annotated[
        int | None,
        typer.Option(
            "--resend",
            metavar="MESSAGE",
            min=1,
            help="Resend this message, which was delivered or given up.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the messages from the last 7 days with their last responses, newest first."""
    from rich.text import Text

    from cli.service_client import connect

    client = connect(url, data)
    webhook_id = _find_webhook(client, webhook).id
    if resent is not None:
        sent = client.resend_delivery(webhook_id, resent)
        print_json(sent)
        console.print(f"Message {sent.id} ({sent.event}) is {sent.state}.")
        return
    messages = client.list_deliveries(webhook_id, limit=limit).deliveries
    print_json(messages)
    table = plain_table("message", "event", "state", "tries", "created", "last response")
    table.columns[0].no_wrap = True
    for message in messages:
        answer = f"{message.status or ''} {message.answer or ''}".strip()
        table.add_row(
            str(message.id),
            message.event,
            Text(message.state, style="red" if message.state == "failed" else ""),
            str(message.attempts),
            f"{message.created_at.astimezone():%m-%d %H:%M}",
            Text(answer if len(answer) <= _MAX_ANSWER else answer[: _MAX_ANSWER - 1] + "…"),
        )
    console.print(table if messages else "No messages were sent in the last 7 days.")


@app.command("set")
@report_errors
def set_(
    webhook: WebhookName,
    is_enabled: Annotated[
        bool,
        typer.Option("--enabled/--disabled", help="Send its events, or hold its messages for up to 7 days."),
    ],
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Enable or disable a webhook."""
    from cinestrata_schemas.webhooks import WebhookPatch
    from cli.service_client import connect

    client = connect(url, data)
    changed = client.edit_webhook(_find_webhook(client, webhook).id, WebhookPatch(enabled=is_enabled))
    print_json(changed)
    state = "enabled" if changed.enabled else "disabled"
    console.print(f"The webhook {changed.id} of {changed.url} is {state}.", soft_wrap=True)


def _find_webhook(client: ServiceClient, name: str) -> WebhookDetails:
    """Find a webhook by ID, by address, or by the beginning of its ID; exits with an error if there is none."""
    webhooks = client.list_webhooks()
    address = _without_query(name)
    for matches in (
        [webhook for webhook in webhooks if webhook.id == name],
        [webhook for webhook in webhooks if _without_query(webhook.url) == address],
        [webhook for webhook in webhooks if name and webhook.id.startswith(name)],
    ):
        if len(matches) > 1:
            ids = ", ".join(webhook.id for webhook in matches[:10])
            fail(f"{len(matches)} webhooks match {name!r}: {ids}", "Choose one by its ID.")
        if matches:
            return matches[0]
    fail(f"There is no webhook {name!r}.", "See `cinestrata webhooks list`.")


def _without_query(address: str) -> str:
    """Return the address without its query, which the service withholds because it may contain a key."""
    return address.partition("?")[0].rstrip("/")


def _short_ids(webhooks: Sequence[WebhookDetails]) -> dict[str, str]:
    """Shorten each ID to as many characters as tell the webhooks apart."""
    ids = [webhook.id for webhook in webhooks]
    longest = max(map(len, ids), default=0)
    length = next(
        (n for n in range(_SHORT_ID, longest) if len({name[:n] for name in ids}) == len(ids)), longest
    )
    return {name: name[:length] for name in ids}
