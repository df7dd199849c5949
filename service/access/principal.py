"""The originator of a request after authentication, and the scopes that permit requests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from cinestrata_schemas.choice_types import AccessScope
from service.audit.actor import ActorKind

SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)


def includes_scope(granted: AccessScope, required: AccessScope) -> bool:
    """Whether a scope permits what another scope permits."""
    return SCOPES.index(granted) >= SCOPES.index(required)


@dataclass(frozen=True)
class Principal:
    """The authenticated originator of a request.

    Attributes:
        kind: Kind of the actor in the audit log.
        name: Name in the audit log.
        scope: The granted scope.
        caller: Identifier that distinguishes idempotency keys of different callers.
        session_id: Identifier of the session of a browser; None for a key.
        expires_at: Time at which the key or the session ends; None where it does not end.
    """

    kind: ActorKind
    name: str
    scope: AccessScope
    caller: str
    session_id: str | None = None
    expires_at: datetime | None = None


# Without keys and users, every request on loopback is permitted.
OPEN_PRINCIPAL = Principal("anonymous", "anonymous", "admin", "")
