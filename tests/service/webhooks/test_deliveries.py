"""Delivery of webhook messages to a real server that misbehaves in every way, and turns of failing endpoints."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from cinestrata_schemas.webhooks import WebhookPatch, WebhookSecret, WebhookSpec
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery, LeaseRow
from service.core.errors import NotFound
from service.core.list_parameters import PageParameters
from service.core.settings import Settings
from service.webhooks import deliveries, endpoints
from service.webhooks.deliveries import Answer, claim_turn, due_endpoints
from service.webhooks.endpoints import emit
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
    assert (row.state, row.status, row.attempts) == ("delivered", 204, 1)
    assert row.message_id == headers["webhook-id"]
    with session_scope(write=True) as session:
        emit(session, "task.ready", {})
        session.rollback()
    assert deliver_due() == 0
    assert len(receiver.messages) == 1, "an event that is rolled back is not sent"


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
    assert (row.state, row.status) == ("pending", 500)
    assert row.answer == "<script>alert(1)</script>\ufffd[31m\ufffd"
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


def test_messages_of_one_endpoint_are_listed_by_page_newest_first(register: Register) -> None:
    webhook, _ = register(), register()
    for number in range(5):
        emit_event(number)
    listed, sizes, cursor = list[str](), [], None
    while not sizes or cursor:
        page = endpoints.list_deliveries(webhook.id, PageParameters(cursor=cursor, limit=2))
        listed += [message.payload["data"]["task_id"] for message in page.deliveries]
        sizes.append(len(page.deliveries))
        cursor = page.next_cursor
    assert sizes == [2, 2, 1]
    assert listed == [f"tsk_{number}" for number in (4, 3, 2, 1, 0)]
    for unknown in ("whk_0", f"{webhook.id}\0"):
        with pytest.raises(NotFound, match="no webhook"):
            endpoints.list_deliveries(unknown, PageParameters())


@pytest.mark.parametrize(
    ("status", "headers", "answer", "reason"),
    [
        (410, {}, "", "The endpoint responded with status 410 (Gone)."),
        (307, {"Location": "/secret"}, "The endpoint redirects, and redirects are not followed.", None),
    ],
)
def test_redirect_is_not_followed_and_a_gone_endpoint_disabled(
    register: Register,
    receiver: Receiver,
    status: int,
    headers: dict[str, str],
    answer: str,
    reason: str | None,
) -> None:
    register()
    receiver.answer = lambda request: send(request, status, b"", **headers)
    emit_event()
    deliver_due()
    assert receiver.server.requests == ["/hook"]
    (webhook,), (row,) = endpoints.list_webhooks(), stored()
    assert (webhook.enabled, webhook.reason) == (reason is None, reason)
    assert (row.state, row.answer) == ("failed" if reason else "pending", answer)


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
    assert (row.status, len(row.answer or "")) == (status, deliveries.MAX_ANSWER_BYTES)
    assert row.state == ("delivered" if status == 200 else "pending")
    assert closed.wait(10)


def test_silent_endpoint_is_left(
    register: Register, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "ANSWER_SECONDS", 0.2)
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
    assert row.state == "failed"  # given up
    endpoints.resend(webhook.id, row.id)
    receiver.answer = lambda request: send(request, 503, b"")
    assert deliver_due() == 1
    deliveries.sweep_deliveries()
    (again,) = stored()
    assert (again.state, again.attempts, again.payload) == ("pending", 1, row.payload)
    with session_scope(write=True) as session:
        session.execute(update(Delivery).values(state="delivered", finished_at=old))
    deliveries.sweep_deliveries()
    assert stored() == []


def test_test_message_is_sent_once_at_once(register: Register, receiver: Receiver) -> None:
    webhook = register()
    endpoints.edit_webhook(webhook.id, WebhookPatch(enabled=False))
    receiver.answer = lambda request: send(request, 500, b"no")
    outcome = endpoints.send_test(webhook.id)
    assert (outcome.event, outcome.state) == ("webhook.test", "failed")
    assert (outcome.status, outcome.answer) == (500, "no")
    ((headers, body),) = receiver.messages
    assert headers["webhook-signature"] == _signature(webhook, headers, body)
    assert deliver_due() == 0


SECONDS = 30  # after which a test fails that waits for a thread


@dataclass
class Network:
    """Endpoints by host name, in place of the network."""

    # status of each host; hosts that are missing answer with 204
    answers: dict[str, int] = field(default_factory=dict)
    # hosts and numbers of the tasks in the messages, in the order of arrival
    sent: list[tuple[str, int]] = field(default_factory=list)
    on_message: Callable[[], None] = lambda: None  # called for each message

    def send(self, url: str, _headers: Mapping[str, str], body: bytes) -> Answer:
        host = url.split("/")[2].partition(".")[0]
        self.sent.append((host, int(json.loads(body)["data"]["task_id"].removeprefix("tsk_"))))
        self.on_message()
        return Answer(self.answers.get(host, 204), "")

    def numbers(self, host: str) -> list[int]:
        return [number for sender, number in self.sent if sender == host]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(deliveries, "send_message", network.send)
    return network


def register(host: str) -> str:
    return endpoints.create_webhook(WebhookSpec.model_validate({"url": f"https://{host}.example/"})).id


def add_backlog(webhook_id: str, messages: int) -> None:
    with session_scope(write=True) as session:
        at = now(session) - timedelta(minutes=1)
        session.add_all(
            Delivery(
                webhook_id=webhook_id,
                message_id=f"msg_{number}",
                event="task.ready",
                payload={"data": {"task_id": f"tsk_{number}"}},
                state="pending",
                attempts=0,
                next_attempt_at=at,
                created_at=at,
            )
            for number in range(messages)
        )


@pytest.mark.usefixtures("sqlite_catalog")
def test_backlog_of_a_failing_endpoint_delays_others_by_one_attempt(network: Network) -> None:
    add_backlog(register("broken"), 300)
    register("healthy")
    network.answers["broken"] = 500
    emit_event(1000)
    assert deliver_due() == 2
    assert sorted(network.sent) == [("broken", 0), ("healthy", 1000)]


@pytest.mark.usefixtures("catalog")
def test_concurrent_workers_send_each_message_once_and_in_order(network: Network) -> None:
    for host in ("a", "b"):
        add_backlog(register(host), 12)
    barrier = threading.Barrier(3)

    def deliver() -> None:
        barrier.wait(SECONDS)
        while deliver_due():
            pass

    workers = [threading.Thread(target=deliver) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [network.numbers(host) for host in ("a", "b")] == [list(range(12))] * 2
    assert {(row.state, row.attempts) for row in stored()} == {("delivered", 1)}


@pytest.mark.usefixtures("catalog")
def test_turn_of_a_dead_worker_passes_to_another_after_its_lease(network: Network) -> None:
    webhook = register("hooks")
    add_backlog(webhook, 2)
    dead = claim_turn(webhook)
    assert dead is not None
    assert (due_endpoints(), claim_turn(webhook), deliver_due()) == ([], None, 0)
    with session_scope(write=True) as session:
        past = now(session) - timedelta(seconds=1)
        session.execute(update(LeaseRow).values(until=past))
    alive = claim_turn(webhook)
    assert alive is not None
    assert deliveries.send_next(webhook, dead) is None  # it wakes up late
    assert deliveries.send_next(webhook, alive) is not None
    with session_scope(write=True) as session:
        assert not dead.release(session)
        alive.release(session)
    assert deliver_due() == 1
    assert network.numbers("hooks") == [0, 1]


@pytest.mark.usefixtures("sqlite_catalog")
@pytest.mark.parametrize("change", ["disable", "remove"])
def test_change_of_an_endpoint_ends_its_turn(network: Network, change: str) -> None:
    webhook = register("hooks")
    add_backlog(webhook, 3)

    def change_endpoint() -> None:
        if change == "disable":
            endpoints.edit_webhook(webhook, WebhookPatch(enabled=False))
        else:
            endpoints.remove_webhook(webhook)

    network.on_message = change_endpoint
    assert deliver_due() <= 1
    assert deliver_due() == 0
    assert len(stored()) == (3 if change == "disable" else 0)
    if change == "disable":
        network.on_message = lambda: None
        endpoints.edit_webhook(webhook, WebhookPatch(enabled=True))
        deliver_due()
        assert network.numbers("hooks") == [0, 1, 2]


@pytest.mark.usefixtures("catalog")
def test_message_that_ends_an_outage_makes_the_others_due(network: Network) -> None:
    webhook = register("hooks")
    add_backlog(webhook, 6)
    network.answers["hooks"] = 503
    for _ in range(2):
        pass_pause()
        assert deliver_due() == 1
    with session_scope(write=True) as session:
        later = Delivery.message_id != "msg_0"
        session.execute(
            update(Delivery).where(later).values(next_attempt_at=now(session) + timedelta(hours=2))
        )
        session.execute(update(Delivery).where(~later).values(next_attempt_at=now(session)))
    network.answers.clear()
    network.sent.clear()
    assert deliver_due() == 6
    assert network.numbers("hooks") == [0, 1, 2, 3, 4, 5]
