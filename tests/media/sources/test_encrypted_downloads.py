"""Downloads over TLS: the certificate belongs to the name of the URL, the connection to the checked address."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from media.errors import SourceOutage
from media.sources.downloading import DownloadLimits, SourceCache, download_file
from media.sources.guarded_network import GuardedNetwork
from media.sources.media_source import SourcePrefix, SourceUri, find_prefix
from media.sources.web_server import WebServer
from tests.web_files import WebFiles


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key and the certificate of ``media.internal``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "media.internal")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("media.internal")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "media.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def tls_files(certificate: Path) -> Iterator[WebFiles]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with WebFiles(context) as server:
        server.files["/a.mp4"] = b"video"
        yield server


def read(server: WebFiles, host: str, cache: SourceCache) -> bytes:
    """Download a file from a host whose name leads to the server."""
    url = f"https://{host}:{server.port}"
    allowed = [SourcePrefix.parse(f"private+{url}/")]

    def network(is_private: bool) -> GuardedNetwork:
        return GuardedNetwork(is_private, resolve=lambda name, port: ["127.0.0.1"])

    source = WebServer(partial(find_prefix, allowed=allowed), network)
    limits = DownloadLimits(max_bytes=100, attempts=1)
    with download_file(source, SourceUri.parse(f"{url}/a.mp4"), cache, limits) as path:
        return path.read_bytes()


def test_certificate_of_another_name_or_authority_is_refused(
    tls_files: WebFiles, certificate: Path, cache: SourceCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceOutage, match=r"certificate of https://media\.internal:\d+ is not trusted"):
        read(tls_files, "media.internal", cache)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with pytest.raises(SourceOutage, match=r"certificate of https://other\.internal:\d+ is not trusted"):
        read(tls_files, "other.internal", cache)
    assert tls_files.requests == []
    assert read(tls_files, "media.internal", cache) == b"video"
