"""Hostile HTTP connections to a real API process, and its log output: no crash, no status 500, and no secret."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Machine

pytestmark = pytest.mark.slow

KEY = "api-key-7f3a9c"
SECRETS = {
    "key": KEY,
    "database password": "database-password-51d2",
    "object store": "aws-secret-key-9b1e",
    "Milvus": "milvus-token-4c4d",
}


@dataclass(frozen=True)
class Service:
    """A running API process."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def send(self, data: bytes, seconds: float = 10) -> bytes:
        """Send bytes on a connection of their own, and return all bytes of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # the server has answered and closed the connection
                pass
            answer = b""
            try:
                while part := connection.recv(65_536):
                    answer += part
            except (TimeoutError, ConnectionResetError):
                pass
            return answer

    def statuses(self, data: bytes) -> list[int]:
        """Return the statuses of the answers to bytes."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", self.send(data))]

    def require_healthy(self) -> None:
        """Require that the process still runs and answers."""
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        assert httpx.get(f"http://127.0.0.1:{self.port}/livez", timeout=30).status_code == 200


@pytest.fixture(scope="module")
def service(machine: Machine, postgres_url: str) -> Iterator[Service]:
    """The API on PostgreSQL, with a secret in every setting that takes one."""
    port = machine.free_port()
    plain = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    name = plain.replace("postgres:", f"postgres:{SECRETS['database password']}", 1)
    environment = {
        "CINESTRATA_DATA_DIR": machine.folder / "hostile",
        "CINESTRATA_DATABASE_URL": name,
        "CINESTRATA_BACKBONE": "tiny",
        "CINESTRATA_PORT": port,
        "CINESTRATA_API_KEY": KEY,
        "CINESTRATA_SOURCES": "s3://bucket/videos/",
        "CINESTRATA_LOG_LEVEL": "DEBUG",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRETS["object store"],
        "AWS_EC2_METADATA_DISABLED": "true",
        "CINESTRATA_MILVUS__URI": "http://127.0.0.1:9",
        "CINESTRATA_MILVUS__TOKEN": f"user:{SECRETS['Milvus']}",
    }
    assert SECRETS["database password"] in name
    log = machine.folder / "hostile.log"
    with log.open("w") as output:
        migrated = machine.run("migrate", env=environment)
        assert migrated.returncode == 0, migrated.stderr
        process = machine.start("serve", env=environment, stdout=output, stderr=subprocess.STDOUT)
        running = Service(process, port, log)
        machine.until(lambda: machine.answers(f"http://127.0.0.1:{port}/livez"), "the API answers")
        yield running
        process.terminate()
        assert process.wait(60) == 0


HEAD = b"Host: 127.0.0.1\r\nX-API-Key: " + KEY.encode() + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /tasks/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /tasks HTTP/1.1\r\n" + HEAD + CHUNKED + b"Content-Length: 6\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + b"Content-Length: 6\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + b"Content-Length: +6\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\nffffffffffffffff1\r\n" + SMUGGLED,
        b"POST /tasks HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n5;a=\n\r\n" + SMUGGLED,
        b"GET /livez\r\nX: y HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"X-A: b\rInjected: c\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"X-A: b\r\n Injected: folded\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"X\x00A: b\r\n\r\n",
        b"GET http://169.254.169.254/ HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"host: other.example\r\n\r\n",
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /livez HTTP/9.9\r\n" + HEAD + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x00" * 4096,
        b"A" * 100_000,
    ],
)
def test_malformed_or_smuggled_request_is_refused(service: Service, request_bytes: bytes) -> None:
    statuses = service.statuses(request_bytes)
    assert all(status < 500 for status in statuses)
    # The smuggled request has no key: a server that executes it answers 401 as the second answer.
    assert 401 not in statuses
    service.require_healthy()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HEAD,
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"X-Long: " + b"a" * 2_000_000 + b"\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(50_000)),
        b"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: " + b"a=b; " * 100_000 + b"\r\n",
        b"GET /search?q=" + b"%C3%28" * 5_000 + b" HTTP/1.1\r\n" + HEAD,
        b"GET /search?" + b"&".join(b"q%d=x" % n for n in range(10_000)) + b" HTTP/1.1\r\n" + HEAD,
    ],
)
def test_oversized_head_is_refused_or_answered(service: Service, head: bytes) -> None:
    assert all(status < 500 for status in service.statuses(head + b"\r\n"))
    service.require_healthy()


def test_slow_connections_do_not_delay_others(service: Service) -> None:
    """uvicorn has no limit on the time of a head; a proxy sets one. Slow connections occupy no thread."""
    slow = []
    try:
        for number in range(300):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=30)
            connection.sendall(b"POST /tasks HTTP/1.1\r\n" + HEAD)
            if number % 2:
                connection.sendall(b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{")
            slow.append(connection)
        for _ in range(3):
            for connection in slow:
                connection.sendall(b"X-A: b\r\n" if connection in slow[::2] else b" ")
            service.require_healthy()
        answered: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answered.append(
                    httpx.get(
                        f"http://127.0.0.1:{service.port}/tasks", headers={"X-API-Key": KEY}, timeout=60
                    ).status_code
                )
            )
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answered == [200] * 20
    finally:
        for connection in slow:
            connection.close()
    service.require_healthy()


def test_log_output_contains_no_secret(service: Service) -> None:
    token, query = "url-token-2e7f", "private-query-text-8d1b"
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        session = client.post("/login", data={"key": KEY}).cookies
        cookies = [value for value in session.values() if len(value) > 10]
        headers = {"X-API-Key": KEY, "Authorization": f"Bearer {KEY}"}
        client.cookies.clear()
        for sent in (headers, {"X-API-Key": KEY + "x"}, {"Authorization": "Basic " + KEY}):
            client.get("/tasks", headers=sent)
            client.get(f"/tasks?key={KEY}", headers=sent)
            client.get("/search", params={"q": query}, headers=sent)
            client.post(
                "/tasks", json={"name": query, "videos": [{"uri": f"https://u:{token}@h/a"}]}, headers=sent
            )
            client.post(
                "/tasks",
                json={"name": "a", "videos": [{"uri": f"s3://bucket/videos/a?{token}"}]},
                headers=sent,
            )
            client.post("/tasks", content=b"{" + KEY.encode(), headers=sent)
            client.get(f"/{KEY}%ZZ", headers=sent)
        client.get("/readyz")
    service.require_healthy()
    time.sleep(1)  # lines that are written after the answer
    text = service.log.read_text()
    assert "request_failed" in text or "error" in text, "the log has lines about these requests"
    assert cookies
    for name, secret in {**SECRETS, "cookie": cookies[0], "token of a URL": token}.items():
        if name == "key":
            continue
        assert secret not in text, name
    lines = [line for line in text.splitlines() if KEY in line]
    assert lines == []
    assert query not in text
