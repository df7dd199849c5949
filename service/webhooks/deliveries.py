"""Deliver messages: endpoints take turns, and a failed attempt is repeated after a pause.

A worker holds the lease of an endpoint while it sends, so one worker at a time sends to an endpoint, in the order of
its messages. If it dies while sending, its lease expires, and the message is sent again with the same ID, by which
receivers recognize it.

An attempt is bounded in time and size, and goes to allowed addresses only. Addresses are checked when the connection is
opened (:mod:`media.sources.guarded_network`), so neither DNS nor an unusual address notation leads into the service's
network. Redirects are not followed.
"""

from __future__ import annotations

import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import httpcore
import httpx
import structlog
from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.orm import Session
from standardwebhooks import Webhook as Signer

from cinestrata_schemas.uris import redact_uri
from media.errors import MediaError, SourceOutage
from media.sources import guarded_network
from media.sources.media_source import SourcePrefix, SourceUri
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire
from service.catalog.operation_tables import Delivery, LeaseRow, Webhook
from service.core.errors import CinestrataError, InvalidInput
from service.core.settings import settings
from service.core.text_rules import CONTROL_CHARACTERS

ANSWER_SECONDS = 15.0  # from the response's first byte to the last byte read
MAX_ANSWER_BYTES = 2000
_TIMEOUTS = {"connect": 5.0, "read": 15.0, "write": 5.0, "pool": 5.0}  # seconds
_MAX_RETRY_AFTER = 86_400
_MAX_ADDRESSES = 3  # tried per host, each within the connection timeout
_PUBLIC = SourcePrefix.parse("https://")
_UNPRINTABLE = re.compile(rf"(?!\n)(?:[^\S ]|[{CONTROL_CHARACTERS}])")

# The schedule that Standard Webhooks recommends: 75 hours in all.
RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
RETENTION = timedelta(days=7)  # for finished messages, and for those that no attempt delivered

_OUTAGE_ATTEMPTS = 3  # accepting a message after this many attempts ends an outage
_JITTER = 0.1  # share of a pause, so that messages do not all return at once
_GONE = 410
# Longer than an attempt in which name lookup, connection and response all use up their timeouts.
_LEASE_SECONDS = 120.0

log = structlog.get_logger(__name__)

_TURN_SECONDS = 20.0  # after which other endpoints come first
_POLL_SECONDS = 2.0
_SWEEP_SECONDS = 600.0


def due_endpoints() -> Sequence[str]:
    """List the IDs of endpoints with due messages that no worker sends to, longest without a turn first."""
    with session_scope() as session:
        at = now(session)
        is_due = exists().where(
            Delivery.webhook_id == Webhook.id, Delivery.state == "pending", Delivery.next_attempt_at <= at
        )
        return session.scalars(
            select(Webhook.id)
            .outerjoin(LeaseRow, (LeaseRow.kind == "webhook") & (LeaseRow.id == Webhook.id))
            .where(Webhook.enabled.is_(True), is_due, or_(LeaseRow.until.is_(None), LeaseRow.until <= at))
            .order_by(LeaseRow.until.nulls_first(), Webhook.id)
        ).all()


def claim_turn(webhook_id: str) -> Lease | None:
    """Lease an endpoint; None if another worker has its lease."""
    with session_scope(write=True) as session:
        return acquire(session, "webhook", webhook_id, seconds=_LEASE_SECONDS)


class _Attempt(NamedTuple):
    """An attempt to send a message, as the catalog had it when the attempt began."""

    message: Delivery
    webhook: Webhook
    at: datetime


def send_next(webhook_id: str, lease: Lease) -> Answer | None:
    """Send an endpoint's oldest due message and store the answer; None if none is due, or the endpoint is lost."""
    with session_scope(write=True) as session:
        at = now(session)
        is_enabled = session.scalar(select(Webhook.enabled).where(Webhook.id == webhook_id))
        if not lease.renew(session) or not is_enabled:
            return None
        oldest = session.scalar(
            select(Delivery.id)
            .where(
                Delivery.webhook_id == webhook_id, Delivery.state == "pending", Delivery.next_attempt_at <= at
            )
            .order_by(Delivery.id)
            .limit(1)
        )
        attempt = None if oldest is None else _begin_attempt(session, oldest, at)
    return None if attempt is None else _send(attempt, is_test=False)


def send_once(delivery_id: int) -> None:
    """Send a test message, whatever its endpoint's state, and do not repeat it."""
    with session_scope(write=True) as session:
        attempt = _begin_attempt(session, delivery_id, now(session))
    if attempt is not None:
        _send(attempt, is_test=True)


def _begin_attempt(session: Session, delivery_id: int, at: datetime) -> _Attempt | None:
    """Count an attempt; None if the message was given up or removed meanwhile."""
    message = session.scalars(
        update(Delivery)
        .where(Delivery.id == delivery_id, Delivery.state == "pending")
        .values(attempts=Delivery.attempts + 1)
        .returning(Delivery)
    ).one_or_none()
    return None if message is None else _Attempt(message, session.get_one(Webhook, message.webhook_id), at)


def _send(attempt: _Attempt, *, is_test: bool) -> Answer:
    message, webhook = attempt.message, attempt.webhook
    at = attempt.at.astimezone(UTC)  # the library reads any time as UTC
    body = _body(message.payload)
    headers = {
        "webhook-id": message.message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(webhook.secret).sign(message.message_id, at, body),
    }
    answer = send_message(webhook.url, headers, body.encode())
    with session_scope(write=True) as session:
        _store(session, message, answer, is_test)
    if not answer.is_success:
        log.info(
            "webhook_attempt_failed",
            webhook=webhook.id,
            message=message.message_id,
            attempt=message.attempts,
            status=answer.status,
        )
    return answer


def _body(payload: dict[str, Any]) -> str:
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _store(session: Session, message: Delivery, answer: Answer, is_test: bool) -> None:
    # Lock rows in the same order as removing an endpoint does.
    webhook = session.scalars(
        select(Webhook).where(Webhook.id == message.webhook_id).with_for_update()
    ).one_or_none()
    row = session.scalars(select(Delivery).where(Delivery.id == message.id).with_for_update()).one_or_none()
    if webhook is None or row is None or row.attempts != message.attempts or row.state != "pending":
        return  # the endpoint was removed, or another worker sent the message after the lease expired
    at = now(session)
    row.status, row.answer = answer.status, answer.text
    reason = answer.text if answer.is_forbidden else None
    if answer.status == _GONE:
        reason = "The endpoint responded with status 410 (Gone)."
    if answer.is_success or is_test or reason or message.attempts > len(RETRY_SECONDS):
        row.state = "delivered" if answer.is_success else "failed"
        row.finished_at, row.next_attempt_at = at, None
    else:
        pause = max(RETRY_SECONDS[message.attempts - 1], answer.retry_after)
        spread = 1 + _JITTER * random.random()  # noqa: S311 (no secret)
        row.next_attempt_at = at + timedelta(seconds=pause * spread)
    if answer.is_success and message.attempts >= _OUTAGE_ATTEMPTS:
        make_backlog_due(session, webhook.id, at)
    elif reason and not is_test:
        webhook.enabled, webhook.reason = False, reason
        log.warning("webhook_disabled", webhook=webhook.id, reason=reason)


def make_backlog_due(session: Session, webhook_id: str, at: datetime) -> None:
    """Make all of an endpoint's waiting messages due now, in their order: their pauses may be hours long."""
    session.execute(
        update(Delivery)
        .where(Delivery.webhook_id == webhook_id, Delivery.state == "pending", Delivery.next_attempt_at > at)
        .values(next_attempt_at=at)
        .execution_options(synchronize_session=False)
    )


def sweep_deliveries() -> None:
    """Give up messages not delivered after 7 days, and delete finished messages after that time."""
    with session_scope(write=True) as session:
        limit = now(session) - RETENTION
        session.execute(delete(Delivery).where(Delivery.finished_at < limit))
        session.execute(
            update(Delivery)
            .where(Delivery.state == "pending", Delivery.created_at < limit)
            .values(state="failed", finished_at=now(session), next_attempt_at=None)
            .execution_options(synchronize_session=False)
        )


class DeliveryThread(threading.Thread):
    """Delivers due messages every few seconds, until it is stopped. Every worker process has one.

    It is separate from task maintenance, which must not wait for endpoints. An endpoint that does not respond delays
    the others of a round by one attempt.
    """

    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Run rounds until :meth:`stop`."""
        sweep_due = 0.0  # on the monotonic clock
        while not self._stop_requested.wait(_POLL_SECONDS):
            try:
                self.deliver_due()
                if time.monotonic() >= sweep_due:
                    sweep_due = time.monotonic() + _SWEEP_SECONDS
                    sweep_deliveries()
            except CinestrataError as error:
                log.warning("webhooks_postponed", reason=str(error))
            except Exception:
                log.exception("webhooks_failed")

    def deliver_due(self) -> None:
        """Give each endpoint with due messages a turn; raise Unavailable."""
        for webhook_id in due_endpoints():
            if not self._stop_requested.is_set() and (lease := claim_turn(webhook_id)) is not None:
                self._run_turn(webhook_id, lease)

    def stop(self) -> None:
        """End after the current message. If its attempt does not end soon, another worker repeats it."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=1)

    def _run_turn(self, webhook_id: str, lease: Lease) -> None:
        """Send an endpoint's messages, oldest first, until an attempt fails."""
        deadline = time.monotonic() + _TURN_SECONDS
        with lease:
            try:
                while not self._stop_requested.is_set() and time.monotonic() < deadline:
                    answer = send_next(webhook_id, lease)
                    if answer is None or not answer.is_success:
                        break
            except Exception:
                lease.end()  # it expires, so that the message is not repeated at once
                log.exception("webhook_turn_failed", webhook=webhook_id)


@dataclass(frozen=True)
class Answer:
    """An endpoint's response, or the error of an attempt without one."""

    status: int | None  # HTTP status; None without a response
    text: str  # start of the body, or the error; printable characters
    retry_after: int = 0  # seconds in the Retry-After header; 0 without it
    is_forbidden: bool = False  # whether the address is refused, so that more attempts are pointless

    @property
    def is_success(self) -> bool:
        """Whether the endpoint accepted the message."""
        return self.status is not None and 200 <= self.status < 300


def check_url(url: str) -> None:
    """Check that messages may be sent to a URL; raise InvalidInput."""
    try:
        uri = _parse(url)
    except MediaError as error:
        raise InvalidInput.at(
            "url", f"{error}.", "Write an address such as https://hooks.example.com/path."
        ) from None
    prefix = _find_prefix(uri)
    if prefix is None:
        raise InvalidInput.at(
            "url",
            f"{redact_uri(url)[:500]!r} is not an allowed target of webhooks.",
            "Use a public https:// address, or let the operator allow a prefix with CINESTRATA_WEBHOOK_TARGETS.",
        )
    address = guarded_network.read_address(uri.host)
    if address is None or guarded_network.is_public_address(address):
        return
    if not (prefix.is_private and guarded_network.is_private_address(address)):
        raise InvalidInput.at(
            "url",
            f"The host {uri.host[:500]!r} is not a public address.",
            "Use a public https:// address, or let the operator allow a private one with private+ in "
            "CINESTRATA_WEBHOOK_TARGETS.",
        )


def send_message(url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """POST a message and return the response; a network error is a response without a status."""
    try:
        uri = _parse(url)
        prefix = _find_prefix(uri)
    except MediaError:
        prefix = None
    if prefix is None:
        text = "The address is no longer an allowed target (CINESTRATA_WEBHOOK_TARGETS)."
        return Answer(None, text, is_forbidden=True)
    try:
        return _exchange(uri, prefix.is_private, headers, body)
    except SourceOutage as error:
        return Answer(None, printable(str(error)))
    except MediaError:
        return Answer(
            None,
            f"The host {uri.host!r} has an address that is not public. An operator can allow it with private+ in "
            "CINESTRATA_WEBHOOK_TARGETS.",
            is_forbidden=True,
        )
    except httpcore.TimeoutException:
        return Answer(None, "The endpoint did not respond in time.")
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
        return Answer(None, printable(f"The connection fails ({type(error).__name__}: {error})."))


def printable(text: str) -> str:
    """Strip control and bidi-override characters from a text."""
    return _UNPRINTABLE.sub("\ufffd", text)[:MAX_ANSWER_BYTES]


def _parse(url: str) -> SourceUri:
    if not url.lower().startswith(("https://", "http://")):
        raise MediaError(f"{redact_uri(url)[:500]!r} does not begin with https:// or http://")
    return SourceUri.parse(url)


def _find_prefix(uri: SourceUri) -> SourcePrefix | None:
    allowed: Sequence[SourcePrefix] = [_PUBLIC, *map(SourcePrefix.parse, settings().webhook_targets)]
    matching = [prefix for prefix in allowed if prefix.contains(uri)]
    return max(matching, key=lambda prefix: prefix.is_private, default=None)


def _exchange(uri: SourceUri, allows_private: bool, headers: Mapping[str, str], body: bytes) -> Answer:
    url = httpx.URL(uri.text)
    target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    sent = {
        "Host": url.netloc.decode("ascii"),
        "User-Agent": "cinestrata",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Accept-Encoding": "identity",
        **headers,
    }
    network = guarded_network.GuardedNetwork(allows_private, _resolve)
    # One pool per attempt: an endpoint never keeps a worker's connection open.
    with (
        guarded_network.answer_within(ANSWER_SECONDS),
        httpcore.ConnectionPool(
            ssl_context=_ssl_context(), network_backend=network, max_connections=1
        ) as pool,
        pool.stream(
            "POST", target, headers=list(sent.items()), content=body, extensions={"timeout": _TIMEOUTS}
        ) as response,
    ):
        text = printable(_read_beginning(response).decode("utf-8", "replace"))
        if 300 <= response.status < 400:
            text = "The endpoint redirects, and redirects are not followed."
        return Answer(response.status, text, _retry_after(response))


def _read_beginning(response: httpcore.Response) -> bytes:
    """Read the start of a body. The status decides about delivery, so a broken body is not a failure."""
    body = b""
    try:
        for chunk in response.iter_stream():
            body += chunk
            if len(body) >= MAX_ANSWER_BYTES:
                break
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        pass
    return body[:MAX_ANSWER_BYTES]


def _retry_after(response: httpcore.Response) -> int:
    value = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    return min(int(value), _MAX_RETRY_AFTER) if re.fullmatch(rb"\d{1,9}", value) else 0


def _resolve(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries[:_MAX_ADDRESSES]]


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # certifi, or SSL_CERT_FILE for a company's authority
