"""URIs of remote videos, and the interface of sources that open a file, or a range of it, as a stream of bytes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from urllib.parse import unquote

import httpx

from cinestrata_schemas.uris import is_source_uri, redact_uri
from media.errors import MediaError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# A name, or an address, which httpx checks.
_HOST = re.compile(r"[a-z0-9_][a-z0-9._-]{0,252}|[0-9a-f.]*:[0-9a-f:.]+")
_PRIVATE = "private+"
_ANY_HOST = "https://"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65_535


def file_name(uri: str) -> str:
    """Extract the file name from a remote URI; empty if the URI is malformed."""
    try:
        return SourceUri.parse(uri).segments[-1]
    except MediaError:
        return ""


@dataclass(frozen=True)
class SourceUri:
    """A parsed URI of a file, or of a folder of files."""

    text: str
    scheme: str  # s3, gs, http or https
    host: str  # bucket, or host in lower case
    port: int | None  # port of a web server; None for an object store
    segments: tuple[str, ...]  # decoded parts of the path between slashes; the last is empty for a folder

    @classmethod
    def parse(cls, text: str) -> SourceUri:
        """Parse a URI; raises MediaError."""
        scheme = text.partition("://")[0].lower()
        first_allowed = " " if scheme in ("s3", "gs") else "!"
        if any(character < first_allowed or character == "\x7f" for character in text):
            raise _invalid(text, "contains a space or a control character; write %20 for a space in a URL")
        authority = re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]
        if "@" in authority:
            raise _invalid(text, "contains a user or a password, which belong in the server's environment")
        if scheme in ("s3", "gs"):
            return cls._parse_object(text, scheme, authority)
        return cls._parse_url(text, scheme)

    @classmethod
    def _parse_object(cls, text: str, scheme: str, bucket: str) -> SourceUri:
        if not _BUCKET.fullmatch(bucket):
            raise _invalid(text, f"does not name a bucket; write {scheme}://bucket/path")
        key = text.partition("://")[2][len(bucket) :]
        if key and not key.startswith("/"):  # a ? or # right after the bucket
            raise _invalid(text, f"does not name a bucket; write {scheme}://bucket/path")
        segments = tuple(key[1:].split("/"))
        _refuse_dots(text, segments)
        return cls(text, scheme, bucket, None, segments)

    @classmethod
    def _parse_url(cls, text: str, scheme: str) -> SourceUri:
        if "\\" in text or "#" in text:
            raise _invalid(text, "contains a backslash or a #; write %5C or %23 if they belong to the name")
        try:
            url = httpx.URL(text)
            host = url.raw_host.decode("ascii").lower()
            # httpx resolves dot segments, so look for them in the text.
            raw = text.partition("://")[2].partition("?")[0].partition("/")[2]
            segments = tuple(unquote(part, errors="strict") for part in raw.split("/"))
        except (httpx.InvalidURL, ValueError) as error:
            raise _invalid(text, "is not a valid URL") from error
        if not _HOST.fullmatch(host):
            raise _invalid(text, f"does not name a host; write {scheme}://host/path")
        if url.port is not None and not 0 < url.port <= _MAX_PORT:
            raise _invalid(text, f"has a port outside 1 to {_MAX_PORT}")
        _refuse_dots(text, segments)
        return cls(text, scheme, host, url.port or _DEFAULT_PORTS[scheme], segments)

    @cached_property
    def shown(self) -> str:
        """The URI without credentials."""
        return redact_uri(self.text)

    @property
    def key(self) -> str:
        """Path of an object in its bucket."""
        return "/".join(self.segments)

    @property
    def origin(self) -> str:
        """Scheme and bucket, or scheme, host and port."""
        is_default = self.port is None or self.port == _DEFAULT_PORTS[self.scheme]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if is_default else f":{self.port}")

    def require_file(self) -> None:
        """Raise MediaError if the URI names a bucket, a host, or a folder of an object store."""
        if not any(self.segments) or (self.port is None and not self.segments[-1]):
            raise _invalid(self.text, "names no file; add the path of one")


@dataclass(frozen=True)
class SourcePrefix:
    """An allowed folder of a source, with all folders below it."""

    root: SourceUri | None  # the folder; None allows all public web servers over HTTPS
    is_private: bool = False  # whether the host may have a private or loopback address

    @classmethod
    def parse(cls, text: str) -> SourcePrefix:
        """Parse a prefix such as ``s3://bucket/videos/``; a private address needs ``private+``; raise ValueError."""
        is_private = text.lower().startswith(_PRIVATE)
        uri = text[len(_PRIVATE) :] if is_private else text
        if uri.lower() == _ANY_HOST and not is_private:
            return cls(None)
        if not is_source_uri(uri):
            raise ValueError(f"{redact_uri(text)!r} does not begin with s3://, gs://, https:// or http://")
        if "?" in uri:
            raise ValueError(f"{redact_uri(text)!r} has a query; a prefix ends with a folder")
        root = SourceUri.parse(uri if uri.endswith("/") else uri + "/")
        if is_private and root.port is None:
            raise ValueError(f"{text!r}: private+ is for web servers; an object store has no address")
        if not is_private and root.port is not None and _is_private_literal(root.host):
            raise ValueError(f"{text!r} names a private address; write {_PRIVATE}{uri} if that is intended")
        return cls(root, is_private)

    def contains(self, uri: SourceUri) -> bool:
        """Check whether a URI names something below the prefix."""
        if self.root is None:
            return uri.scheme == "https"
        root = self.root
        folder = root.segments[:-1]  # the last segment is empty
        return (
            (uri.scheme, uri.host, uri.port) == (root.scheme, root.host, root.port)
            and uri.segments[: len(folder)] == folder
            and len(uri.segments) > len(folder)
        )


def find_prefix(uri: SourceUri, allowed: Sequence[SourcePrefix]) -> SourcePrefix:
    """Find the prefix that allows a URI, one with ``private+`` or a host before ``https://``; raise MediaError."""
    matching = [prefix for prefix in allowed if prefix.contains(uri)]
    if not matching:
        raise _invalid(uri.text, "is in no allowed source; the operator lists them in CINESTRATA_SOURCES")
    return max(matching, key=lambda prefix: (prefix.is_private, prefix.root is not None))


def _refuse_dots(text: str, segments: Sequence[str]) -> None:
    # Servers resolve these in different ways, so a path outside an allowed prefix could look like one inside.
    if any(part in (".", "..") or "/" in part or "\\" in part or "\0" in part for part in segments):
        raise _invalid(text, "contains . or .. or an encoded slash in its path; write the path without them")


def _is_private_literal(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return not address.is_global


def _invalid(text: str, problem: str) -> MediaError:
    return MediaError(f"{redact_uri(text)[:500]!r} {problem}")


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes."""

    first: int | None  # position of the first byte; None: the range ends the file, and ``last`` is its length
    last: int | None  # position of the last byte, or the number of bytes at the end; None: up to the end


@dataclass(frozen=True)
class RemoteStream:
    """The content of a remote file, or of a range of it."""

    # the bytes in parts; raises SourceOutage or InconsistentFile if the transfer breaks
    chunks: Iterator[bytes]
    total: int | None  # size of the whole file in bytes; None if the source does not state it
    start: int
    length: int | None  # number of bytes in ``chunks``; None if the source does not state it
    is_partial: bool  # whether the source answered with a range
    version: str | None  # ETag, generation or modification time; None if the source states none


@dataclass(frozen=True)
class ListedFile:
    """A file in a source's listing."""

    name: str
    size: int
    version: str  # ETag or generation, which changes with the content


class MediaSource(Protocol):
    """A kind of source."""

    def open(self, uri: SourceUri, part: ByteRange | None = None) -> AbstractContextManager[RemoteStream]:
        """Open a file. A source may ignore ``part`` and provide the whole file.

        Raises MediaError if the file does not exist or the source forbids access to it, RangeOutside if the file has no
        bytes in the range, and SourceOutage if the source is unreachable at the moment.
        """
