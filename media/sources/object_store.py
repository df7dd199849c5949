"""Objects in S3 and Google Cloud Storage, through fsspec.

Credentials, endpoints and proxies come from the environment of the libraries (``AWS_…``, ``FSSPEC_S3_…``,
``GOOGLE_APPLICATION_CREDENTIALS``). Their error messages may contain parts of requests and are not passed on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from media.errors import InconsistentFile, MediaError, RangeOutside, SourceOutage
from media.sources.media_source import ByteRange, ListedFile, RemoteStream, SourceUri

_BLOCK = 8 * 1024**2  # bytes per request
_BLOCK_SECONDS = 45.0  # per request, including the library's retries
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}}},
    "gs": {},
}
# S3 error codes about the server's credentials, not about an object.
_CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidToken",
        "NotSignedUp",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)


def missing_package(scheme: str) -> str | None:
    """Name the package that a scheme needs but that is not installed, or None."""
    package = _PACKAGES.get(scheme)
    return package if package is not None and find_spec(package) is None else None


class ObjectStore:
    """Source of objects in buckets."""

    @contextmanager
    def open(self, uri: SourceUri, part: ByteRange | None = None) -> Iterator[RemoteStream]:
        """Open an object, and check at its end that it has not changed; see :class:`MediaSource`."""
        store = _filesystem(uri)
        size, version = _stat(store, uri)
        start, stop = _bounds(uri, part, size)
        yield RemoteStream(
            _blocks(store, uri, start, stop, version), size, start, stop - start, part is not None, version
        )

    def list_files(
        self, folder: SourceUri, report_progress: Callable[[], object] = lambda: None
    ) -> list[ListedFile]:
        """List all objects below a folder, sorted by name; raise MediaError, SourceOutage.

        Calls ``report_progress`` after each page of up to 1000 objects.
        """
        store = _filesystem(folder)
        base = folder.key.rstrip("/") + "/" if folder.key else ""
        files: dict[str, ListedFile] = {}
        pages = (_s3_pages if folder.scheme == "s3" else _google_pages)(store, folder.host, base)
        while (page := _next_page(store, folder, pages)) is not None:
            files |= {file.name: file for file in page}
            report_progress()
        with _translate_errors(store, folder):
            if not files and not store.exists(folder.host):
                raise SourceOutage(f"The bucket {folder.origin} does not exist.")
        return [files[name] for name in sorted(files)]


def _next_page(store: Any, folder: SourceUri, pages: Iterator[list[ListedFile]]) -> list[ListedFile] | None:
    with _translate_errors(store, folder):
        return next(pages, None)


def _s3_pages(store: Any, bucket: str, base: str) -> Iterator[list[ListedFile]]:
    """Yield the objects below an S3 folder page by page, since fsspec's ``find`` reads all pages in one call."""
    token: dict[str, str] = {}
    while True:
        page = store.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=base, **store.req_kw, **token, timeout=_BLOCK_SECONDS
        )
        yield [
            ListedFile(entry["Key"][len(base) :], int(entry["Size"] or 0), _version(entry))
            for entry in page.get("Contents", ())
            if not entry["Key"].endswith("/")  # a folder
        ]
        if not page.get("IsTruncated"):
            return
        token = {"ContinuationToken": page["NextContinuationToken"]}


def _google_pages(store: Any, bucket: str, base: str) -> Iterator[list[ListedFile]]:
    """Yield the objects below a Google Cloud Storage folder, page by page."""
    token: dict[str, str] = {}
    while True:
        page = store.call(
            "GET", "b/{}/o", bucket, prefix=base, **token, json_out=True, timeout=_BLOCK_SECONDS
        )
        entries = [entry for entry in page.get("items", ()) if not entry["name"].endswith("/")]
        for entry in entries:
            if "updated" in entry:  # so that the version equals that of ``info``
                entry["mtime"] = datetime.fromisoformat(entry["updated"])
        yield [
            ListedFile(entry["name"][len(base) :], int(entry.get("size", 0)), _version(entry))
            for entry in entries
        ]
        if not page.get("nextPageToken"):
            return
        token = {"pageToken": page["nextPageToken"]}


def _filesystem(uri: SourceUri) -> Any:
    if package := missing_package(uri.scheme):
        raise SourceOutage(
            f"{uri.origin} needs the package {package}: pip install 'cinestrata[{uri.scheme}]' on this machine."
        )
    import fsspec  # slow together with its drivers

    try:
        return fsspec.filesystem(uri.scheme, use_listings_cache=False, **_OPTIONS[uri.scheme])
    except Exception as error:  # gcsfs looks for credentials here
        raise SourceOutage(f"{uri.origin} cannot be read ({_error_code(error)}).") from error


def _stat(store: Any, uri: SourceUri) -> tuple[int, str]:
    """Look up an object's size and version."""
    with _translate_errors(store, uri):
        entry = store.info(f"{uri.host}/{uri.key}", timeout=_BLOCK_SECONDS)
    if entry["type"] != "file":
        raise MediaError(f"{uri.shown} is a folder; name a file")
    return int(entry["size"] or 0), _version(entry)


def _version(entry: dict[str, Any]) -> str:
    keys = ("ETag", "etag", "generation", "VersionId", "LastModified", "mtime", "updated")
    return ":".join(str(entry[key]) for key in keys if entry.get(key))


def _bounds(uri: SourceUri, part: ByteRange | None, size: int) -> tuple[int, int]:
    if part is None:
        return 0, size
    if part.first is None:
        start, stop = max(0, size - (part.last or 0)), size
    else:
        start, stop = part.first, size if part.last is None else min(part.last + 1, size)
    if start >= stop:
        raise RangeOutside(f"{uri.shown} has no bytes in the requested range")
    return start, stop


def _blocks(store: Any, uri: SourceUri, start: int, stop: int, version: str) -> Iterator[bytes]:
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        with _translate_errors(store, uri):
            block = store.cat_file(f"{uri.host}/{uri.key}", start=first, end=last, timeout=_BLOCK_SECONDS)
        if len(block) != last - first:
            raise InconsistentFile(f"{uri.shown} ends early: the file changes while it is read")
        yield block
    if _stat(store, uri)[1] != version:
        raise InconsistentFile(f"{uri.shown} changes while it is read")


@contextmanager
def _translate_errors(store: Any, uri: SourceUri) -> Iterator[None]:
    """Raise MediaError for errors about an object, and SourceOutage for all others."""
    started = time.monotonic()
    try:
        yield
    except (MediaError, SourceOutage):
        raise
    except FileNotFoundError as error:
        if not _has_bucket(store, uri.host):
            raise SourceOutage(f"The bucket {uri.origin} does not exist, or cannot be reached.") from error
        raise MediaError(f"{uri.shown} does not exist in its bucket") from error
    except Exception as error:
        code = _error_code(error)
        if code in _CREDENTIAL_CODES or type(error).__name__ in ("NoCredentialsError", "RefreshError"):
            raise SourceOutage(f"{uri.origin} refuses the credentials of this machine ({code}).") from error
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden"):
            raise MediaError(f"{uri.shown} is forbidden; allow the service's account to read it") from error
        seconds = time.monotonic() - started
        raise SourceOutage(f"{uri.origin} cannot be read ({code}, after {seconds:.0f} s).") from error


def _has_bucket(store: Any, bucket: str) -> bool:
    try:
        return bool(store.exists(bucket, timeout=_BLOCK_SECONDS))
    except Exception:
        return False


def _error_code(error: BaseException) -> str:
    """Name an error by the code in an S3 response or by its type, since its text may contain secrets."""
    for raised in (error, error.__cause__):
        response = getattr(raised, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code") or type(error).__name__)
    return type(error).__name__
