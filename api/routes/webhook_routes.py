"""Webhooks: endpoints that receive signed messages about events, and the log of the messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.dependencies import NoParameters, page_links
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas import webhooks
from service.core.list_parameters import PageParameters
from service.webhooks import endpoints

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=ScopedRoute)

_DeliveryId = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.post("", status_code=201)
@requires("admin")
def create_webhook(spec: webhooks.WebhookSpec) -> webhooks.WebhookSecret:
    """Register an endpoint that receives events as signed messages (Standard Webhooks).

    Only this response contains the secret that verifies the signatures. A message is a `POST` with a JSON body of
    `type`, `timestamp` and `data`, and the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. A status
    from 200 to 299 accepts it. After any other response, or none within 15 seconds, the message is sent up to nine more
    times in about three days; 410 disables the webhook. Redirects are not followed.
    """
    return endpoints.create_webhook(spec)


@router.get("")
@requires("admin")
def list_webhooks(_parameters: NoParameters) -> list[webhooks.WebhookDetails]:
    """List the registered endpoints, oldest first."""
    return endpoints.list_webhooks()


@router.patch("/{webhook_id}")
@requires("admin")
def edit_webhook(webhook_id: str, patch: webhooks.WebhookPatch) -> webhooks.WebhookDetails:
    """Change a webhook's events, or enable or disable it."""
    return endpoints.edit_webhook(webhook_id, patch)


@router.delete("/{webhook_id}", status_code=204)
@requires("admin")
def remove_webhook(webhook_id: str) -> None:
    """Remove a webhook and its messages."""
    endpoints.remove_webhook(webhook_id)


@router.post("/{webhook_id}/test")
@requires("admin")
def test_webhook(webhook_id: str) -> webhooks.DeliveryDetails:
    """Send one `webhook.test` message now, and return the result."""
    return endpoints.send_test(webhook_id)


@router.get("/{webhook_id}/deliveries")
@requires("admin")
def list_deliveries(
    webhook_id: str, request: Request, response: Response, parameters: Annotated[PageParameters, Query()]
) -> webhooks.DeliveryPage:
    """List a webhook's messages in pages, newest first, with attempts and last responses.

    Messages are kept for 7 days.
    """
    page = endpoints.list_deliveries(webhook_id, parameters)
    response.headers.update(page_links(request, page.next_cursor))
    return page


@router.post("/{webhook_id}/deliveries/{delivery_id}/resend", status_code=202)
@requires("admin")
def resend_delivery(webhook_id: str, delivery_id: _DeliveryId) -> webhooks.DeliveryDetails:
    """Resend a message that was delivered or given up. It keeps its `webhook-id`."""
    return endpoints.resend(webhook_id, delivery_id)
