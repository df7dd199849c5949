"""The actor of the current request, command or job, as the audit log names it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

ActorKind = Literal["user", "key", "environment", "anonymous", "cli", "worker", "system"]
ACTOR_KINDS: tuple[ActorKind, ...] = get_args(ActorKind)


@dataclass(frozen=True)
class Actor:
    """The originator of a change.

    Attributes:
        kind: ``user`` (signed in), ``key`` (API key of the catalog), ``environment`` (key of the environment),
            ``anonymous`` (a request without credentials), ``cli`` (command on the data folder), ``worker``, or
            ``system`` (a process without a request).
        name: Name of the user or of the key, login name of the operating system, or name of the process.
        address: Network address of the client; None if there is none.
        request_id: Identifier of the HTTP request; None if there is none.
    """

    kind: ActorKind
    name: str
    address: str | None = None
    request_id: str | None = None


_current: ContextVar[Actor | None] = ContextVar("cinestrata_actor", default=None)
_process_actor = Actor("system", "system")


def current_actor() -> Actor:
    """Return the actor of this context; outside of :func:`acting_as`, the actor of the process."""
    return _current.get() or _process_actor


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Set the actor of all changes in this context, including threads that copy the context."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def set_process_actor(actor: Actor) -> None:
    """Set the actor of all changes of this process, and of processes that it forks."""
    global _process_actor
    _process_actor = actor


def command_line_actor() -> Actor:
    """Return the login name of the operating system as an actor."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for the user
        name = f"uid {os.getuid()}"
    return Actor("cli", name)
