"""Recognition of loopback addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

__all__ = ["is_loopback"]


@lru_cache(maxsize=16)  # requests name few different hosts
def is_loopback(host: str) -> bool:
    """Whether a host name or address refers to this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
