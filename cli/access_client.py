"""Administration of keys and users, over HTTP or in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cinestrata_schemas.access import KeyDetails, KeySecret, KeySpec, UserDetails, UserPatch, UserSpec

__all__ = ["AccessClient", "connect_access"]


class AccessClient(Protocol):
    """Operations on keys and users."""

    def keys(self) -> list[KeyDetails]:
        """All keys, newest first."""

    def create_key(self, spec: KeySpec) -> KeySecret:
        """Create a key."""

    def revoke_key(self, name_or_id: str) -> KeyDetails:
        """Revoke a key."""

    def users(self) -> list[UserDetails]:
        """All users by name."""

    def create_user(self, spec: UserSpec) -> UserDetails:
        """Create a user with a password."""

    def edit_user(self, name_or_id: str, patch: UserPatch) -> UserDetails:
        """Change the password or the role of a user."""

    def remove_user(self, name_or_id: str) -> UserDetails:
        """Remove a user with all sessions."""


def connect_access(url: str | None, data: Path | None) -> AccessClient:
    """A client of the service at ``url``, or of the catalog of the data folder without a URL."""
    if url:
        from cli.http_access_client import HttpAccessClient

        return HttpAccessClient(url)
    from cli.embedded.data_folder import data_folder_settings
    from service.audit.actor import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade

    upgrade(data_folder_settings(data))
    set_process_actor(command_line_actor())
    return _CatalogAccessClient()


class _CatalogAccessClient:
    def keys(self) -> list[KeyDetails]:
        from service.access import api_keys

        return api_keys.list_keys()

    def create_key(self, spec: KeySpec) -> KeySecret:
        from service.access import api_keys

        return api_keys.create_key(spec)

    def revoke_key(self, name_or_id: str) -> KeyDetails:
        from service.access import api_keys

        return api_keys.revoke_key(name_or_id)

    def users(self) -> list[UserDetails]:
        from service.access import users

        return users.list_users()

    def create_user(self, spec: UserSpec) -> UserDetails:
        from service.access import users

        return users.create_user(spec)

    def edit_user(self, name_or_id: str, patch: UserPatch) -> UserDetails:
        from service.access import users

        return users.edit_user(name_or_id, patch)

    def remove_user(self, name_or_id: str) -> UserDetails:
        from service.access import users

        return users.remove_user(name_or_id)
