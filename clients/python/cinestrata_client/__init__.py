"""Client of Cinestrata, text-to-video search that keeps learning and never re-indexes.

>>> from cinestrata_client import Client
>>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
...     for result in client.search("eggs are whisked", k=5).results:
...         print(result.video_id, result.score)
"""

from __future__ import annotations

from cinestrata_client.client import AsyncClient, Client, FileUpload
from cinestrata_client.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
    ServiceError,
    TaskFailedError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from cinestrata_client.requests import RetryPolicy
from cinestrata_schemas import __version__

__all__ = [
    "AsyncClient",
    "Client",
    "ConflictError",
    "FileUpload",
    "ForbiddenError",
    "GoneError",
    "InvalidInputError",
    "NotFoundError",
    "PreconditionFailedError",
    "RetryPolicy",
    "ServiceError",
    "TaskFailedError",
    "TooLargeError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "UnavailableError",
    "UnreachableError",
    "__version__",
]
