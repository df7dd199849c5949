"""An OpenID provider for tests: discovery, authorization, token and key endpoints over HTTP on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from tests.web_files import Handler, WebFiles, send

CLIENT_ID = "cinestrata"
CLIENT_SECRET = "secret of the client"


class IdentityProvider(WebFiles):
    """A provider that signs in everyone at once, and checks the client, the redirect address and PKCE.

    Attributes:
        claims: Claims of the next ID token, which replace the right ones; None leaves a claim out.
        signing_key: Key of the next ID tokens.
        algorithm: Algorithm of their signatures.
    """

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Any] = {}
        self.signing_key: RSAKey | OctKey
        self.signing_key = self._published_key = RSAKey.generate_key(2048, {"kid": "first"})
        self.algorithm = "RS256"
        self._codes: dict[str, dict[str, str]] = {}
        self.handlers = {
            "/.well-known/openid-configuration": lambda request: _send_json(request, self.metadata()),
            "/keys": lambda request: _send_json(
                request, {"keys": [self._published_key.as_dict(private=False)]}
            ),
            "/authorize": self._authorize,
            "/token": self._exchange,
        }

    def metadata(self) -> dict[str, Any]:
        """Return the discovery document."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }

    def rotate_key(self) -> None:
        """Sign and publish with a new key."""
        self.signing_key = self._published_key = RSAKey.generate_key(2048, {"kid": f"k{time.monotonic_ns()}"})

    def reset(self) -> None:
        """Send right claims, signed with the published key."""
        self.claims, self.signing_key, self.algorithm = {}, self._published_key, "RS256"

    def _authorize(self, request: Handler) -> None:
        query = dict(parse_qsl(urlsplit(request.path).query))
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT_ID)
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        location = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
        send(request, 302, b"", Location=location)

    def _exchange(self, request: Handler) -> None:
        form = dict(parse_qsl(request.rfile.read(int(request.headers["Content-Length"])).decode()))
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        client = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
        ):
            return _send_json(request, {"error": "invalid_grant"}, 400)
        if not client.startswith(f"{CLIENT_ID}:"):
            return _send_json(request, {"error": "invalid_client"}, 400)
        now = int(time.time())
        right = {
            "iss": self.url,
            "sub": "subject-1",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "preferred_username": "ada",
            "groups": ["staff"],
        }
        claims = {name: value for name, value in {**right, **self.claims}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.signing_key.kid}
        token = jwt.encode(header, claims, self.signing_key, algorithms=[self.algorithm])
        answer = {"access_token": "access", "token_type": "Bearer", "expires_in": 300, "id_token": token}
        _send_json(request, answer)


def _send_json(request: Handler, document: dict[str, Any], status: int = 200) -> None:
    send(request, status, json.dumps(document).encode(), **{"Content-Type": "application/json"})
