"""Uploads of files by the tus protocol: the steps, which the clients send.

A generator yields each request and receives its answer, so both clients share the protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import httpx

from cinestrata_client.calls import Call
from cinestrata_client.errors import UnreachableError, error_of

__all__ = ["CHUNK_BYTES", "FileUpload", "upload_steps"]

CHUNK_BYTES = 8 * 1024**2  # of one request; a broken connection loses at most these
_TUS = {"Tus-Resumable": "1.0.0"}
_CONFLICT, _LOCKED = 409, 423
_MAX_CORRECTIONS = 10


@dataclass(frozen=True)
class FileUpload:
    """A complete upload.

    Attributes:
        id: Identifier of the upload.
        uri: URI of the file in ``VideoSpec.uri``.
    """

    id: str

    @property
    def uri(self) -> str:
        """URI that names the file in a task."""
        return f"upload://{self.id}"


def upload_steps(path: Path, size: int) -> Generator[Call[None], httpx.Response, FileUpload]:
    """Yield the requests that upload a file; returns the upload.

    After an answer that contradicts the number of stored bytes, the upload continues where the service has it.

    Args:
        path: The file.
        size: Its size in bytes.
    """
    name = base64.b64encode(path.name.encode()).decode()
    headers = {**_TUS, "Upload-Length": str(size), "Upload-Metadata": f"filename {name}"}
    created = yield Call("POST", "/v1/uploads", None, headers=headers)
    if created.is_error:
        raise error_of(created)
    upload = FileUpload(created.headers["Location"].rpartition("/")[2])
    template, parameters = "/v1/uploads/{upload_id}", {"upload_id": upload.id}
    offset = corrections = 0
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            block = file.read(CHUNK_BYTES)
            if not block:
                raise OSError(f"{path} became shorter while it was uploaded")
            headers = {
                **_TUS,
                "Upload-Offset": str(offset),
                "Content-Type": "application/offset+octet-stream",
            }
            corrections += 1
            try:
                answer = yield Call("PATCH", template, None, path=parameters, headers=headers, content=block)
            except UnreachableError:  # the service keeps the bytes that have arrived
                if corrections > _MAX_CORRECTIONS:
                    raise
            else:
                if answer.is_success:
                    offset, corrections = int(answer.headers["Upload-Offset"]), 0
                    continue
                if answer.status_code not in (_CONFLICT, _LOCKED) or corrections > _MAX_CORRECTIONS:
                    raise error_of(answer)
            state = yield Call("HEAD", template, None, path=parameters, headers=_TUS)
            if state.is_error:
                raise error_of(state)
            offset = int(state.headers["Upload-Offset"])
    return upload
