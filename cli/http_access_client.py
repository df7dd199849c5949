"""Administration of keys and users of a running service over HTTP."""

from __future__ import annotations

from cinestrata_client import models as api_models
from cinestrata_schemas.access import KeyDetails, KeySecret, KeySpec, UserDetails, UserPatch, UserSpec
from cli.api_client import client_model, open_client, service_model

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
        return [service_model(KeyDetails, key) for key in self._client.list_keys()]

    def create_key(self, spec: KeySpec) -> KeySecret:
        """Create a key."""
        return service_model(KeySecret, self._client.create_key(client_model(api_models.KeySpec, spec)))

    def revoke_key(self, name_or_id: str) -> KeyDetails:
        """Revoke a key."""
        return service_model(KeyDetails, self._client.revoke_key(name_or_id))

    def users(self) -> list[UserDetails]:
        """All users by name."""
        return [service_model(UserDetails, user) for user in self._client.list_users()]

    def create_user(self, spec: UserSpec) -> UserDetails:
        """Create a user with a password."""
        password = spec.password.get_secret_value()
        body = api_models.UserSpec(name=spec.name, password=password, scope=spec.scope)
        return service_model(UserDetails, self._client.create_user(body))

    def edit_user(self, name_or_id: str, patch: UserPatch) -> UserDetails:
        """Change the password or the role of a user."""
        changes = patch.model_dump(exclude_none=True)
        if patch.password is not None:
            changes["password"] = patch.password.get_secret_value()
        body = api_models.UserPatch(**changes)
        return service_model(UserDetails, self._client.edit_user(name_or_id, body))

    def remove_user(self, name_or_id: str) -> UserDetails:
        """Remove a user with all sessions."""
        return service_model(UserDetails, self._client.remove_user(name_or_id))
