"""Options of searches and stores that settings name. This module imports neither faiss, torch nor pymilvus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

EXACT_ROWS = 250_000
ANN_KINDS = ("ivf", "hnsw", "sq8")

Device = Literal["cpu", "cuda", "auto"]


@dataclass(frozen=True)
class AnnPolicy:
    """Which segments get an ANN structure (approximate nearest neighbors).

    Attributes:
        exact_rows: Maximum number of rows in a segment that is always scanned exactly.
        target: Minimum recall of a structure, at each depth that the recall gate measures.
        kinds: Kinds of structures to try, in this order.
    """

    exact_rows: int = EXACT_ROWS
    target: float = 0.99
    kinds: tuple[str, ...] = ANN_KINDS


MilvusIndex = Literal["FLAT", "IVF_SQ8", "HNSW"]


@dataclass(frozen=True)
class MilvusAddress:
    """Where Milvus runs, and how it is used.

    Attributes:
        uri: ``http://host:19530``, or the path of a file that ends in ``.db`` (milvus-lite).
        token: ``user:password`` or an API key; never shown.
        collection: Prefix of collection names; one for each library that shares a server.
        index: Kind of vector index. ``FLAT`` is exact. The others are approximate: measure their recall with text
            queries first.
        timeout: Seconds to wait for a response; slow operations wait a multiple of it.
    """

    uri: str = field(repr=False)  # it may hold a password
    token: str = field(default="", repr=False)
    collection: str = "cinestrata"
    index: MilvusIndex = "FLAT"
    timeout: float = 10.0

    @property
    def display_uri(self) -> str:
        """The URI without its password, for messages."""
        return without_password(self.uri)


def without_password(uri: str) -> str:
    """Strip user name and password from a URI."""
    user, at, _ = urlsplit(uri).netloc.rpartition("@")
    return uri.replace(user + at, "", 1) if at else uri
