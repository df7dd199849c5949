"""Connection to a Milvus server: requests, timeouts, and errors without secrets."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from index.errors import ShardMissing, StoreUnavailable
from index.store_options import MilvusAddress

if TYPE_CHECKING:
    from pymilvus import MilvusClient


# gRPC's fork handlers start a thread in a forked child, which aborts the child if it closes its files before it runs a
# program, as the decoder and supervised processes do when they start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

RETRY_SECONDS = 5  # pause before the next request to a server that did not respond
_TIMEOUT_FACTORS = {"upsert": 10, "delete": 10, "load_partitions": 6, "load_collection": 6}
# Otherwise a new connection inherits the failure of the previous one, although the server is back.
_GRPC_OPTIONS = {"grpc.use_local_subchannel_pool": 1}
_HALF_PRECISION_VERSION = (2, 4)  # Milvus 2.3 creates such a field, and then rejects every row
_NO_CONNECTION_CODE = 2
_MISSING_CODES = (100, 200)  # collection or partition not found
_MISSING_TEXT = re.compile(r"partition name \S+ not found")  # searches report it without a code


class TimedClient:
    """A client with a timeout for each request, since pymilvus retries for minutes by default."""

    def __init__(self, client: MilvusClient, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(getattr(self._client, name), timeout=self._timeout * _TIMEOUT_FACTORS.get(name, 1))


class MilvusConnection:
    """Connects on first use, and again after losing the connection."""

    def __init__(self, address: MilvusAddress, on_changed: Callable[[], object]) -> None:
        """Create a connection; ``on_changed`` is called when it is lost or closed, or a partition is missing."""
        self.address = address
        # Known after the first request.
        self.is_lite = False
        self.has_half_precision = True
        self._on_changed = on_changed
        self._lock = Lock()
        self._client: MilvusClient | None = None
        self._retry_at = 0.0  # on the monotonic clock

    @contextmanager
    def request(self, action: str) -> Iterator[TimedClient]:
        """Yield a client for requests; raise ShardMissing, or StoreUnavailable with ``Milvus could not <action>``.

        After a lost connection, no request is sent for a few seconds.
        """
        client = self._connect()
        from grpc import FutureTimeoutError, RpcError
        from pymilvus import MilvusException

        try:
            yield TimedClient(client, self.address.timeout)
        except (MilvusException, RpcError, FutureTimeoutError) as error:
            # Without its cause: the client's frames hold the token, and a log may show the variables of frames.
            raise self._translate(error, action) from None

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None
            self._on_changed()
            self._retry_at = 0.0

    def _connect(self) -> MilvusClient:
        with self._lock:
            if time.monotonic() < self._retry_at:
                raise StoreUnavailable(f"Milvus at {self.address.display_uri} did not answer a moment ago")
            if self._client is None:
                try:
                    from grpc import FutureTimeoutError, RpcError
                    from pymilvus import MilvusClient, MilvusException
                except ImportError as error:
                    raise StoreUnavailable(
                        "vectors are in Milvus, but its client is not installed: pip install 'cinestrata[milvus]'"
                    ) from error
                # Failures are reported by exceptions; the client would log each of them a second time.
                for name in ("pymilvus", "milvus_lite"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
                try:
                    client = MilvusClient(
                        self.address.uri,
                        token=self.address.token,
                        timeout=self.address.timeout,
                        grpc_options=_GRPC_OPTIONS,
                    )
                    version = client.get_server_version()
                except (MilvusException, RpcError, FutureTimeoutError) as error:
                    raise self._translate(error, "be reached") from None
                self.is_lite = version.startswith("milvus_lite")
                numbers = re.search(r"(\d+)\.(\d+)", version)  # a version without them counts as new
                is_new = numbers is None or tuple(map(int, numbers.groups())) >= _HALF_PRECISION_VERSION
                self.has_half_precision = is_new and not self.is_lite
                self._client = client
            return self._client

    def _translate(self, error: Exception, action: str) -> Exception:
        """Convert an error of the client to the exception to raise, without secrets."""
        from grpc import RpcError, StatusCode
        from pymilvus import MilvusException

        # The client reports a wrong password like a server that it cannot connect to.
        cause: Any = error.__cause__
        is_denied = isinstance(cause, RpcError) and cause.code() == StatusCode.UNAUTHENTICATED
        reason = str(cause.details() if is_denied else getattr(error, "message", "") or error)
        reason = " ".join(reason.split())[:300].replace(self.address.uri, self.address.display_uri)
        if self.address.token:
            reason = reason.replace(self.address.token, "***")
        message = f"Milvus at {self.address.display_uri} could not {action}: {reason}"
        code = error.code if isinstance(error, MilvusException) else None
        if code in _MISSING_CODES or _MISSING_TEXT.search(reason):
            self._on_changed()
            return ShardMissing(f"{message}; restore it from Milvus' backup")
        if is_denied or "auth" in reason.lower():
            return StoreUnavailable(f"{message}. Check CINESTRATA_MILVUS__TOKEN")
        if self._client is not None and isinstance(code, int) and code != _NO_CONNECTION_CODE:
            return StoreUnavailable(f"{message}. See Milvus' log")  # it did respond
        self._client = None
        self._on_changed()
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if self.address.uri.endswith(".db"):
            return StoreUnavailable(
                f"{message}. Check that the path is a .db file that no other process uses"
            )
        return StoreUnavailable(f"{message}. Check that it runs, and CINESTRATA_MILVUS__URI")
