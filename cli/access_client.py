"""Administration of keys and users, over HTTP or in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

if TYPE_CHECKING:
    from cli.http_service_client import HttpServiceClient
    from service.core.schemas import KeyDetails, KeySecret, KeySpec, UserDetails, UserPatch, UserSpec

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
        from cli.http_service_client import HttpServiceClient

        return _HttpAccessClient(HttpServiceClient(url))
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


class _HttpAccessClient:
    def __init__(self, client: HttpServiceClient) -> None:
        self._client = client

    def keys(self) -> list[KeyDetails]:
        from service.core.schemas import KeyDetails

        return [KeyDetails.model_validate(key) for key in self._client.request("GET", "/keys")]

    def create_key(self, spec: KeySpec) -> KeySecret:
        from service.core.schemas import KeySecret

        body = spec.model_dump(mode="json", exclude_none=True)
        return KeySecret.model_validate(self._client.request("POST", "/keys", json=body))

    def revoke_key(self, name_or_id: str) -> KeyDetails:
        from service.core.schemas import KeyDetails

        return KeyDetails.model_validate(
            self._client.request("DELETE", f"/keys/{quote(name_or_id, safe='')}")
        )

    def users(self) -> list[UserDetails]:
        from service.core.schemas import UserDetails

        return [UserDetails.model_validate(user) for user in self._client.request("GET", "/users")]

    def create_user(self, spec: UserSpec) -> UserDetails:
        from service.core.schemas import UserDetails

        body = {"name": spec.name, "scope": spec.scope, "password": spec.password.get_secret_value()}
        return UserDetails.model_validate(self._client.request("POST", "/users", json=body))

    def edit_user(self, name_or_id: str, patch: UserPatch) -> UserDetails:
        from service.core.schemas import UserDetails

        body = patch.model_dump(exclude_none=True, exclude={"password"})
        if patch.password is not None:
            body["password"] = patch.password.get_secret_value()
        path = f"/users/{quote(name_or_id, safe='')}"
        return UserDetails.model_validate(self._client.request("PATCH", path, json=body))

    def remove_user(self, name_or_id: str) -> UserDetails:
        from service.core.schemas import UserDetails

        return UserDetails.model_validate(
            self._client.request("DELETE", f"/users/{quote(name_or_id, safe='')}")
        )
