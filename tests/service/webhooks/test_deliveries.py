"""Delivery of webhook messages to a real server that misbehaves in every way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.webhooks import WebhookPatch, WebhookSecret
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery, Webhook
from service.core.settings import Settings
from service.webhooks import deliveries, endpoints, sending
from service.webhooks.events import emit
from tests.service.webhooks.conftest import Receiver, deliver_due, emit_event, pass_pause, stored
from tests.web_files import Handler, send

Register = Callable[..., WebhookSecret]


def _signature(webhook: WebhookSecret, headers: Mapping[str, str], body: bytes) -> str:
    """Compute a message's signature as the specification says (Standard Webhooks, "Signature scheme")."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(webhook.secret.removeprefix("whsec_"))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


@pytest.mark.parametrize("allowed", ["sqlite", "postgresql"], indirect=True)
def test_signature_is_that_of_the_specification(register: Register, receiver: Receiver) -> None:
    webhook = register()
    emit_event()
    assert deliver_due() == 1
    ((headers, body),) = receiver.messages
    assert headers["webhook-signature"] == _signature(webhook, headers, body)
    with session_scope() as session:
        assert abs(now(session).timestamp() - int(headers["webhook-timestamp"])) < 300
    payload = json.loads(body)
    assert payload["type"] == "task.ready"
    assert payload["data"] == {"task_id": "tsk_1", "name": "Küche <b>"}
    (row,) = stored()
    assert (row.state, row.status, row.attempts, row.message_id) == (
        "delivered",
        204,
        1,
        headers["webhook-id"],
    )
    assert deliver_due() == 0


def test_rolled_back_event_is_not_sent(register: Register, receiver: Receiver) -> None:
    register()
    with session_scope(write=True) as session:
        emit(session, "task.ready", {})
        session.rollback()
    assert deliver_due() == 0
    assert receiver.messages == []


def test_event_goes_to_its_enabled_receivers_only(register: Register, receiver: Receiver) -> None:
    register(events=["alert.raised"])
    disabled = register(events=["task.ready"])
    endpoints.edit_webhook(disabled.id, WebhookPatch(enabled=False))
    emit_event()
    assert stored() == []
    endpoints.edit_webhook(disabled.id, WebhookPatch(enabled=True))
    emit_event()
    assert [row.webhook_id for row in stored()] == [disabled.id]


def test_failed_attempt_is_repeated_later_with_the_same_id(register: Register, receiver: Receiver) -> None:
    register()
    receiver.answer = lambda request: send(request, 500, b"<script>alert(1)</script>\x1b[31m\x00")
    emit_event()
    assert deliver_due() == 1
    (row,) = stored()
    assert (row.state, row.status, row.answer) == (
        "pending",
        500,
        "<script>alert(1)</script>\ufffd[31m\ufffd",
    )
    assert row.next_attempt_at is not None
    pause = (row.next_attempt_at - row.created_at).total_seconds()
    assert deliveries.RETRY_SECONDS[0] <= pause
    assert deliver_due() == 0  # not due yet
    pass_pause()
    receiver.answer = lambda request: send(request, 200, b"ok")
    assert deliver_due() == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.messages}) == 1
    assert [(row.state, row.attempts) for row in stored()] == [("delivered", 2)]


def test_message_is_given_up_after_the_last_attempt_and_can_be_sent_again(
    register: Register, receiver: Receiver
) -> None:
    webhook = register()
    receiver.answer = lambda request: send(request, 503, b"")
    emit_event()
    for _ in range(len(deliveries.RETRY_SECONDS) + 1):
        pass_pause()
        assert deliver_due() == 1
    (row,) = stored()
    assert (row.state, row.attempts, row.next_attempt_at) == ("failed", 10, None)
    assert endpoints.list_webhooks()[0].failed == 1
    endpoints.resend(webhook.id, row.id)
    receiver.answer = lambda request: send(request, 200, b"")
    assert deliver_due() == 1
    assert [row.state for row in stored()] == ["delivered"]


def test_retry_after_prolongs_the_pause(register: Register, receiver: Receiver) -> None:
    register()
    receiver.answer = lambda request: send(request, 429, b"", **{"Retry-After": "3600"})
    emit_event()
    deliver_due()
    (row,) = stored()
    assert row.next_attempt_at is not None
    assert row.next_attempt_at - row.created_at >= timedelta(seconds=3600)


def test_gone_endpoint_is_disabled(register: Register, receiver: Receiver) -> None:
    register()
    receiver.answer = lambda request: send(request, 410, b"")
    emit_event()
    deliver_due()
    (webhook,) = endpoints.list_webhooks()
    assert (webhook.enabled, webhook.reason) == (False, "The endpoint responded with status 410 (Gone).")
    assert [row.state for row in stored()] == ["failed"]


def test_redirect_is_not_followed(register: Register, receiver: Receiver) -> None:
    register()
    inward = f"{receiver.server.url}/secret"
    receiver.answer = lambda request: send(request, 307, b"", Location=inward)
    emit_event()
    deliver_due()
    assert receiver.server.requests == ["/hook"]
    assert [row.answer for row in stored()] == ["The endpoint redirects, and redirects are not followed."]


@pytest.mark.parametrize("status", [200, 500])
def test_endless_body_is_cut(register: Register, receiver: Receiver, status: int) -> None:
    register()
    closed = threading.Event()

    def stream(request: Handler) -> None:
        request.send_response(status)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b"x" * 65_536)
        except OSError:
            closed.set()

    receiver.answer = stream
    emit_event()
    deliver_due()
    (row,) = stored()
    assert (row.status, len(row.answer or "")) == (status, sending.MAX_ANSWER_BYTES)
    assert row.state == ("delivered" if status == 200 else "pending")
    assert closed.wait(10)


def test_silent_endpoint_is_left(
    register: Register, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ANSWER_SECONDS", 0.2)
    register()
    release = threading.Event()

    def drip(request: Handler) -> None:
        """Return a byte of the header at a time, so that no single read times out."""
        try:
            while not release.wait(0.05):
                request.wfile.write(b"X")
        except OSError:
            pass

    receiver.answer = drip
    emit_event()
    deliver_due()
    release.set()
    assert [(row.status, row.answer) for row in stored()] == [(None, "The endpoint did not respond in time.")]


def test_stopped_receiver_is_an_error_of_the_attempt(register: Register, receiver: Receiver) -> None:
    register()
    receiver.server.stop()
    emit_event()
    deliver_due()
    (row,) = stored()
    assert (row.state, row.status) == ("pending", None)
    assert "The connection fails" in (row.answer or "")


def test_withdrawn_permission_disables_the_endpoint(
    register: Register, receiver: Receiver, settings_factory: Any, allowed: Settings
) -> None:
    webhook = register()
    emit_event(1)
    emit_event(2)
    settings_factory(allowed.data_dir.parent, webhook_targets="")
    assert deliver_due() == 1
    assert deliver_due() == 0
    assert receiver.messages == []
    (details,) = endpoints.list_webhooks()
    assert (details.enabled, details.pending, details.failed) == (False, 1, 1)
    assert "no longer an allowed target" in (details.reason or "")
    settings_factory(allowed.data_dir.parent, webhook_targets=f"private+{receiver.server.url}/")
    endpoints.edit_webhook(webhook.id, WebhookPatch(enabled=True))
    assert deliver_due() == 1
    assert [row.state for row in stored()] == ["failed", "delivered"]


def test_old_messages_are_removed(register: Register, receiver: Receiver) -> None:
    register()
    emit_event()
    deliver_due()
    emit_event()
    with session_scope(write=True) as session:
        old = now(session) - deliveries.RETENTION - timedelta(seconds=1)
        session.execute(update(Delivery).where(Delivery.state == "delivered").values(finished_at=old))
        session.execute(update(Delivery).where(Delivery.state == "pending").values(created_at=old))
    deliveries.sweep_deliveries()
    assert [row.state for row in stored()] == ["failed"]


def test_old_message_that_is_sent_again_has_all_of_its_attempts(
    register: Register, receiver: Receiver
) -> None:
    webhook = register()
    emit_event()
    with session_scope(write=True) as session:
        old = now(session) - deliveries.RETENTION - timedelta(seconds=1)
        session.execute(update(Delivery).values(created_at=old))
    deliveries.sweep_deliveries()
    (row,) = stored()
    assert row.state == "failed"
    endpoints.resend(webhook.id, row.id)
    receiver.answer = lambda request: send(request, 503, b"")
    assert deliver_due() == 1
    deliveries.sweep_deliveries()
    (again,) = stored()
    assert (again.state, again.attempts, again.payload) == ("pending", 1, row.payload)


def test_test_message_is_sent_once_at_once(register: Register, receiver: Receiver) -> None:
    webhook = register()
    endpoints.edit_webhook(webhook.id, WebhookPatch(enabled=False))
    receiver.answer = lambda request: send(request, 500, b"no")
    outcome = endpoints.send_test(webhook.id)
    assert (outcome.event, outcome.state, outcome.status, outcome.answer) == (
        "webhook.test",
        "failed",
        500,
        "no",
    )
    ((headers, body),) = receiver.messages
    assert headers["webhook-signature"] == _signature(webhook, headers, body)
    assert deliver_due() == 0


def test_removed_webhook_takes_its_messages_along(register: Register) -> None:
    webhook = register()
    emit_event()
    endpoints.remove_webhook(webhook.id)
    with session_scope() as session:
        assert session.scalars(select(Webhook)).all() == []
    assert stored() == []
