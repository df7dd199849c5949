"""Signatures of webhook messages: HMAC-SHA256 as specified by Standard Webhooks (standardwebhooks.com)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from datetime import datetime

__all__ = ["new_secret", "signed_headers"]

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a random key in the notation of the specification."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(secret: str, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that identify and sign a message.

    Args:
        secret: Key of :func:`new_secret`.
        message_id: Identifier of the message, the same in all attempts.
        at: Time of the attempt, with a time zone; receivers refuse old times.
        body: Body of the request, byte by byte as it is sent.
    """
    timestamp = str(int(at.timestamp()))
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signature = hmac.digest(key, b".".join((message_id.encode(), timestamp.encode(), body)), hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
