"""Turns of endpoints: failing endpoints beside healthy ones, on both databases."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from cinestrata_schemas.webhooks import WebhookPatch, WebhookSpec
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery
from service.catalog.tables import LeaseRow
from service.core.settings import Settings
from service.webhooks import deliveries, endpoints
from service.webhooks.deliveries import claim_turn, due_endpoints
from service.webhooks.sending import Answer
from tests.service.webhooks.conftest import deliver_due, emit_event, pass_pause, stored

SECONDS = 30  # after which a test fails that waits for a thread


@dataclass
class Network:
    """Endpoints by host name, in place of the network.

    Attributes:
        answers: Status of each host; hosts that are missing answer with 204.
        sent: Hosts and numbers of the tasks in the messages, in the order of arrival.
        on_message: Called for each message.
    """

    answers: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)
    on_message: Callable[[], None] = lambda: None

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


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> Settings:
    return settings_factory(tmp_path, request.param)


@pytest.fixture
def sqlite_catalog(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Settings:
    return settings_factory(tmp_path)


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
