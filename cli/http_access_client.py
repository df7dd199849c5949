"""Administration of keys and users of a running service over HTTP."""

from __future__ import annotations

from cinestrata_schemas.access import KeyDetails, KeySecret, KeySpec, UserDetails, UserPatch, UserSpec
from cli.api_client import open_client

__all__ = ["HttpAccessClient"]


class HttpAccessClient:
    """Calls the HTTP API with :class:`cinestrata_client.Client`, whose errors it raises.

    Args:
        url: Base URL of the service.
    """

    def __init__(self, url: str) -> None:
        self._client = open_client(url)

    def keys(self) -> list[KeyDetails]:
        """All keys, newest first."""
        return self._client.list_keys()

    def create_key(self, spec: KeySpec) -> KeySecret:
        """Create a key."""
        return self._client.create_key(spec)

    def revoke_key(self, name_or_id: str) -> KeyDetails:
        """Revoke a key."""
        return self._client.revoke_key(name_or_id)

    def users(self) -> list[UserDetails]:
        """All users by name."""
        return self._client.list_users()

    def create_user(self, spec: UserSpec) -> UserDetails:
        """Create a user with a password."""
        return self._client.create_user(spec)

    def edit_user(self, name_or_id: str, patch: UserPatch) -> UserDetails:
        """Change the password or the role of a user."""
        return self._client.edit_user(name_or_id, patch)

    def remove_user(self, name_or_id: str) -> UserDetails:
        """Remove a user with all sessions."""
        return self._client.remove_user(name_or_id)
