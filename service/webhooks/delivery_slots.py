"""Threads that deliver messages: a bounded number per process, each for one endpoint at a time."""

from __future__ import annotations

import threading
import time

import structlog

from service.core.errors import CinestrataError
from service.webhooks.deliveries import Turn, claim_turns, release_turn, send_next, sweep_deliveries

_SLOTS = 8
_TURN_SECONDS = 20.0  # after this time, other endpoints that wait for a slot come first
_POLL_SECONDS = 2.0
_SWEEP_SECONDS = 600.0

log = structlog.get_logger(__name__)


class DeliverySlots:
    """Slots of a process. An endpoint that answers slowly, or not at all, occupies one slot and delays no other."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._stop_requested = threading.Event()

    def start_turns(self) -> int:
        """Start to send the due messages of as many endpoints as there are free slots; does not wait for answers.

        Returns:
            The number of endpoints.

        Raises:
            Unavailable: the catalog cannot be reached.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        free = _SLOTS - len(self._threads)
        turns = claim_turns(free) if free else []
        for turn in turns:
            # Threads without an executor, which would let a stopping worker wait for a silent endpoint.
            thread = threading.Thread(target=self._run_turn, args=(turn,), name="webhook", daemon=True)
            self._threads.append(thread)
            thread.start()
        return len(turns)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the current turns end, at most for a time in seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """End each turn after its current message."""
        self._stop_requested.set()

    def _run_turn(self, turn: Turn) -> None:
        """Send the messages of an endpoint, oldest first, until an attempt fails."""
        deadline = time.monotonic() + _TURN_SECONDS
        try:
            while not self._stop_requested.is_set() and time.monotonic() < deadline:
                answer = send_next(turn)
                if answer is None or not answer.is_success:
                    break
            release_turn(turn)
        except CinestrataError as error:  # the lease expires
            log.warning("webhook_result_not_stored", webhook=turn.webhook_id, reason=str(error))
        except Exception:
            log.exception("webhook_turn_failed", webhook=turn.webhook_id)


class DeliveryThread(threading.Thread):
    """Delivers due messages every few seconds, until it is stopped. Every worker process has one.

    It is separate from the maintenance of tasks, which must not wait for endpoints.
    """

    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self._slots = DeliverySlots()
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Run rounds until :meth:`stop`."""
        sweep_due = 0.0  # on the monotonic clock
        while not self._stop_requested.wait(_POLL_SECONDS):
            try:
                self._slots.start_turns()
                if time.monotonic() >= sweep_due:
                    sweep_due = time.monotonic() + _SWEEP_SECONDS
                    sweep_deliveries()
            except CinestrataError as error:
                log.warning("webhooks_postponed", reason=str(error))
            except Exception:
                log.exception("webhooks_failed")

    def stop(self) -> None:
        """End after the current messages. Another worker repeats an attempt that does not end soon."""
        self._stop_requested.set()
        self._slots.stop()
        if self.is_alive():
            self.join(timeout=1)
            self._slots.wait(1)
