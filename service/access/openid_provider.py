"""Sign in at an OpenID provider: authorization code flow with PKCE, state, nonce and a verified ID token.

State, nonce and code verifier travel in a browser cookie, encrypted with a key derived from the client secret, so that
any API process can complete the sign-in.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.integrations.base_client.async_openid import AsyncOpenIDMixin
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from cinestrata_schemas.choice_types import AccessScope
from service.access.credentials import SCOPES
from service.core.errors import CinestrataError
from service.core.settings import OidcSettings

FLOW_SECONDS = 600  # from the redirect to the provider until the return

_METADATA_SECONDS = 3600.0
_TIMEOUT_SECONDS = 10.0
_LEEWAY_SECONDS = 60  # allowed clock skew
_VERIFIER_CHARS = 64
_MAX_FLOW_CHARS = 8000
# With a symmetric algorithm, anyone with the client secret could sign tokens.
_ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
_ENCRYPTION = {"alg": "dir", "enc": "A256GCM"}

log = structlog.get_logger(__name__)


class SignInRefused(CinestrataError, status=401, title="Unauthorized"):
    """The provider or its response does not permit the sign-in. The text is meant for the user."""


class RoleMissing(SignInRefused):
    """A verified identity, unique by issuer and subject, has no role."""

    def __init__(self, issuer: str, subject: str) -> None:
        super().__init__("Your account has no role in this service. Ask the administrator for one.")
        self.issuer, self.subject = issuer, subject


@dataclass(frozen=True)
class Identity:
    """A verified identity, unique by issuer and subject."""

    issuer: str
    subject: str
    name: str  # preferred name, which the user may have chosen
    scope: AccessScope  # highest scope that the claims grant
    next: str  # page that the user wanted to see


class OpenIdProvider(AsyncOpenIDMixin):  # type: ignore[misc]
    """A client of the configured provider."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        secret = settings.client_secret.get_secret_value() if settings.client_secret else ""
        self._secret = secret or None
        derived = hmac.new(secret.encode(), b"cinestrata openid sign-in", hashlib.sha256).digest()
        # A public client has no secret; its flows end with the process.
        self._flow_key = OctKey.import_key(derived if secret else secrets.token_bytes(32))
        self.client_id = settings.client_id
        self.server_metadata: dict[str, Any] = {}
        self._metadata_due = 0.0

    async def begin(self, redirect_uri: str, next: str) -> tuple[str, str]:
        """Begin a sign-in to the page ``next``: return the provider's URL and the cookie; raise SignInRefused."""
        metadata = await self.load_server_metadata()
        flow = {
            "state": generate_token(32),
            "nonce": generate_token(32),
            "verifier": generate_token(_VERIFIER_CHARS),
            "expires": int(time.time()) + FLOW_SECONDS,
            "redirect_uri": redirect_uri,
            "next": next,
        }
        async with self._client(metadata, redirect_uri) as client:
            address, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=flow["state"],
                code_verifier=flow["verifier"],
                nonce=flow["nonce"],
            )
        return str(address), jwe.encrypt_compact(_ENCRYPTION, json.dumps(flow), self._flow_key)

    async def complete(self, parameters: Mapping[str, str], cookie: str) -> Identity:
        """Complete a sign-in with the query of the return to the service and the cookie from :meth:`begin`.

        Raises SignInRefused if the sign-in belongs to another browser or is too old, the provider refused it, or its ID
        token is invalid; RoleMissing if the token's claims give no role.
        """
        flow = self._read_flow(cookie)
        if not hmac.compare_digest(parameters.get("state", "").encode(), flow["state"].encode()):
            raise SignInRefused("The sign-in belongs to another browser or has expired; sign in again.")
        if "error" in parameters or "code" not in parameters:
            raise SignInRefused("The provider refused the sign-in.")
        metadata = await self.load_server_metadata()
        if parameters.get("iss", metadata["issuer"]) != metadata["issuer"]:
            raise SignInRefused("The response comes from another provider.")
        try:
            async with self._client(metadata, flow["redirect_uri"]) as client:
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    grant_type="authorization_code",
                    code=parameters["code"],
                    code_verifier=flow["verifier"],
                    redirect_uri=flow["redirect_uri"],
                )
            options = {
                "iss": {"essential": True, "value": metadata["issuer"]},
                "aud": {"essential": True, "value": self.client_id},
                "nonce": {"essential": True, "value": flow["nonce"]},
            }
            # OpenID Connect Core, 3.1.3.7
            claims = await self.parse_id_token(token, flow["nonce"], options, leeway=_LEEWAY_SECONDS)
            if claims is None:
                raise ValueError("the response has no ID token")
        except SignInRefused:
            raise
        except (JoseError, AuthlibBaseError, ValueError, KeyError, TypeError) as error:
            log.warning("openid_sign_in_refused", error=f"{type(error).__name__}: {error}"[:300])
            raise SignInRefused(
                "The provider's response is not valid; see the log for the reason."
            ) from error
        except Exception as error:  # authlib and this module use different releases of the HTTP client
            log.warning("openid_provider_unreachable", error=type(error).__name__)
            raise SignInRefused("The provider doesn't respond; try again later.") from error
        issuer, subject = metadata["issuer"], str(claims["sub"])[:255]
        scope = self._scope_of(claims)
        if scope is None:
            raise RoleMissing(issuer, subject)
        texts = [claims.get(key) for key in ("preferred_username", "name", "email")]
        name = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), subject)
        return Identity(issuer, subject, name[:255], scope, flow["next"])

    def _client(self, metadata: Mapping[str, Any], redirect_uri: str) -> AsyncOAuth2Client:
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        return AsyncOAuth2Client(
            self.client_id,
            self._secret,
            token_endpoint_auth_method=method if self._secret else "none",
            scope="openid profile email",
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
            trust_env=True,
        )

    async def load_server_metadata(self) -> dict[str, Any]:
        """Read the provider's discovery document, at most an hour old."""
        if self.server_metadata and time.monotonic() < self._metadata_due:
            return self.server_metadata
        issuer = self._settings.issuer
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS) as client:
                answer = await client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            answer.raise_for_status()
            document: dict[str, Any] = dict(answer.json())
            if str(document["issuer"]).rstrip("/") != issuer.rstrip("/"):
                raise ValueError(f"the document names the issuer {document['issuer']!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                is_encrypted = str(document[name]).startswith("https://")
                if not is_encrypted and issuer.startswith("https://"):
                    raise ValueError(f"{name} is not https")
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.warning("openid_discovery_failed", error=f"{type(error).__name__}: {error}"[:300])
            raise SignInRefused(
                "The provider doesn't respond, or is misconfigured; see the log for the reason."
            ) from error
        document.pop("jwks", None)  # keys come from the address of the keys alone
        supported = document.get("id_token_signing_alg_values_supported") or []
        document["id_token_signing_alg_values_supported"] = sorted(_ALGORITHMS.intersection(supported))
        self.server_metadata, self._metadata_due = document, time.monotonic() + _METADATA_SECONDS
        return document

    def _get_session(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(timeout=_TIMEOUT_SECONDS)

    def _read_flow(self, cookie: str) -> dict[str, Any]:
        try:
            if not cookie or len(cookie) > _MAX_FLOW_CHARS:
                raise ValueError("no cookie")
            plain = jwe.decrypt_compact(
                cookie, self._flow_key, algorithms=list(_ENCRYPTION.values())
            ).plaintext
            flow: dict[str, Any] = json.loads(plain or b"")
            if flow["expires"] < time.time():
                raise ValueError("expired")
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise SignInRefused(
                "The sign-in belongs to another browser or has expired; sign in again."
            ) from error
        return flow

    def _scope_of(self, claims: Mapping[str, Any]) -> AccessScope | None:
        """Determine the highest scope that the roles in the settings grant to the claims."""
        value: Any = claims.get(self._settings.claim)
        if value is None:  # a path such as realm_access.roles
            value = claims
            for part in self._settings.claim.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        values = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        names = {"*", *(str(item) for item in values)}
        granted = [scope for name, scope in self._settings.role_scopes.items() if name in names]
        return max(granted, key=SCOPES.index, default=None)
