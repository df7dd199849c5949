"""An OpenID provider for tests: discovery, authorization, token and key endpoints over HTTP on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT_ID = "cinestrata"
CLIENT_SECRET = "secret of the client"


class IdentityProvider:
    """A provider that signs in everyone at once, and checks the client, the redirect address and PKCE.

    Attributes:
        claims: Claims of the next ID token, which replace the right ones; None leaves a claim out.
        signing_key: Key of the next ID tokens.
        algorithm: Algorithm of their signatures.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.signing_key: RSAKey | OctKey
        self.signing_key = self._published_key = RSAKey.generate_key(2048, {"kid": "first"})
        self.algorithm = "RS256"
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(address.query).items()}
                if address.path == "/.well-known/openid-configuration":
                    self._send_json(provider.metadata())
                elif address.path == "/keys":
                    self._send_json({"keys": [provider._published_key.as_dict(private=False)]})
                elif address.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", provider._authorize(query))
                    self.end_headers()
                else:
                    self.send_error(404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                answer = provider._exchange(form, self.headers.get("Authorization", ""))
                self._send_json(answer, 400 if "error" in answer else 200)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

            def _send_json(self, document: dict[str, Any], status: int = 200) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def issuer(self) -> str:
        """Address of the provider."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def metadata(self) -> dict[str, Any]:
        """Return the discovery document."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }

    def rotate_key(self) -> None:
        """Sign and publish with a new key."""
        self.signing_key = self._published_key = RSAKey.generate_key(2048, {"kid": f"k{time.monotonic_ns()}"})

    def reset(self) -> None:
        """Send right claims, signed with the published key."""
        self.claims, self.signing_key, self.algorithm = {}, self._published_key, "RS256"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _authorize(self, query: dict[str, str]) -> str:
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT_ID)
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def _exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        client = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
        ):
            return {"error": "invalid_grant"}
        if not client.startswith(f"{CLIENT_ID}:"):
            return {"error": "invalid_client"}
        now = int(time.time())
        right = {
            "iss": self.issuer,
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
        return {"access_token": "access", "token_type": "Bearer", "expires_in": 300, "id_token": token}
