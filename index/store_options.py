"""Options of searches and stores that settings name. This module imports neither faiss, torch nor pymilvus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

EXACT_ROWS = 250_000
ANN_KINDS = ("ivf", "sq8")

Device = Literal["cpu", "cuda", "auto"]


@dataclass(frozen=True)
class AnnPolicy:
    """Which segments get an ANN structure (approximate nearest neighbors)."""

    exact_rows: int = EXACT_ROWS  # maximum number of rows in a segment that is always scanned exactly
    target: float = 0.99  # minimum recall of a structure, at each depth that the recall gate measures
    kinds: tuple[str, ...] = ANN_KINDS  # kinds of structures to try, in this order


MilvusIndex = Literal["FLAT", "IVF_SQ8", "HNSW"]


@dataclass(frozen=True)
class MilvusAddress:
    """Where Milvus runs, and how it is used."""

    # http://host:19530, or the path of a file that ends in .db (milvus-lite); it may hold a password
    uri: str = field(repr=False)
    token: str = field(default="", repr=False)  # user:password, or an API key
    collection: str = "cinestrata"  # prefix of collection names; one for each library that shares a server
    index: MilvusIndex = "FLAT"  # exact; measure the recall of the others with text queries first
    timeout: float = 10.0  # seconds to wait for a response; slow operations wait a multiple of it

    @property
    def display_uri(self) -> str:
        """The URI without its password, for messages."""
        return without_password(self.uri)


def without_password(uri: str) -> str:
    """Strip user name and password from a URI."""
    user, at, _ = urlsplit(uri).netloc.rpartition("@")
    return uri.replace(user + at, "", 1) if at else uri
