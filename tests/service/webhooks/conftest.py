"""A receiver of webhooks on a real socket, and a catalog whose settings allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from cinestrata_schemas.webhooks import WebhookSecret, WebhookSpec
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery
from service.core.settings import Settings
from service.webhooks import endpoints
from service.webhooks.deliveries import DeliveryThread
from service.webhooks.endpoints import emit
from tests.web_files import Handler, WebFiles, send


def emit_event(number: int = 1) -> None:
    """Store a message for each endpoint that receives the event."""
    with session_scope(write=True) as session:
        emit(session, "task.ready", {"task_id": f"tsk_{number}", "name": "Küche <b>"})


def stored() -> list[Delivery]:
    """Return all messages, oldest first."""
    with session_scope() as session:
        return list(session.scalars(select(Delivery).order_by(Delivery.id)))


def deliver_due() -> int:
    """Give each due endpoint a turn, and return the number of attempts."""
    before = _attempts()
    DeliveryThread().deliver_due()
    return _attempts() - before


def _attempts() -> int:
    with session_scope() as session:
        return session.scalar(select(func.sum(Delivery.attempts))) or 0


def pass_pause() -> None:
    """Make all waiting messages due."""
    with session_scope(write=True) as session:
        session.execute(
            update(Delivery).where(Delivery.state == "pending").values(next_attempt_at=now(session))
        )


@dataclass
class Receiver:
    """An endpoint that records messages and answers as a test defines."""

    server: WebFiles  # the web server
    # headers and body of each received message
    messages: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    # function that answers a request; by default with status 204
    answer: Callable[[Handler], None] = lambda request: send(request, 204, b"")

    @property
    def url(self) -> str:
        return f"{self.server.url}/hook"

    def receive(self, request: Handler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.messages.append((dict(request.headers.items()), body))
        self.answer(request)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver at ``/hook``."""
    with WebFiles() as server:
        receiver = Receiver(server)
        server.handlers["/hook"] = receiver.receive
        yield receiver


@pytest.fixture
def allowed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    receiver: Receiver,
) -> Settings:
    """Settings that allow the receiver, on SQLite or the database of an indirect parameter."""
    targets = f"private+{receiver.server.url}/"
    return settings_factory(tmp_path, getattr(request, "param", "sqlite"), webhook_targets=targets)


@pytest.fixture
def register(allowed: Settings, receiver: Receiver) -> Callable[..., WebhookSecret]:
    """``register(**fields)``: a webhook to the receiver."""

    def make(**fields: Any) -> WebhookSecret:
        return endpoints.create_webhook(WebhookSpec.model_validate({"url": receiver.url, **fields}))

    return make
