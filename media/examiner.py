"""The parent's side of decoding: one warm child, replaced whenever it dies or hangs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from media.errors import MediaError
from media.facts import Limits, VideoInfo

__all__ = ["Examiner", "examine"]

_ROOT = Path(__file__).resolve().parent.parent


class Examiner:
    """Examines videos one after the other; use it as a context manager.

    The child is a plain subprocess, so that it also works in workers that may not have daemonic children.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def examine(
        self,
        path: Path,
        *,
        frames: int,
        size: int,
        name: str | None = None,
        thumbnail: Path | None = None,
        cache: Path | None = None,
    ) -> VideoInfo:
        """Decode a video.

        Args:
            path: of the file.
            frames: how many to sample.
            size: side of the square they are cut to, pixels.
            name: how messages call the video; its file name by default.
            thumbnail: where to write a JPEG, at most 320 pixels wide.
            cache: folder for the sampled frames, see :func:`media.paths.frame_cache_path`.

        Raises:
            MediaError: the video cannot be used, took too long, or brought the decoder down.
        """
        name = name or path.name
        request = {
            "path": str(path.absolute()),  # the child runs in another folder
            "name": name,
            "frames": frames,
            "size": size,
            "thumbnail": str(thumbnail.absolute()) if thumbnail else None,
            "cache": str(cache.absolute()) if cache else None,
            "limits": asdict(self.limits),
        }
        answer = self._ask(request, name)
        if "reason" in answer:
            raise MediaError(answer["reason"])
        return VideoInfo(**answer["info"])

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe:
                    pipe.close()
            self._child = None

    def _ask(self, request: dict[str, Any], name: str) -> dict[str, Any]:
        child = self._child
        warm = child is not None and child.poll() is None
        if child is None or not warm:
            self.close()
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "media.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        if child.stdin is None or child.stdout is None:
            raise AssertionError("the child was started with pipes")
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return self._dead(request, name, warm)
        received = b""
        deadline = time.monotonic() + self.limits.timeout_seconds
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                self.close()
                raise MediaError(
                    f"{name} took longer than {self.limits.timeout_seconds:g} s to decode; shorten it or scale it down"
                )
            chunk = os.read(child.stdout.fileno(), 65536)
            if not chunk:
                return self._dead(request, name, warm)
            received += chunk
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _dead(self, request: dict[str, Any], name: str, warm: bool) -> dict[str, Any]:
        self.close()
        if warm:  # it may have been dying already; only a child that had no other work to do tells
            return self._ask(request, name)
        raise MediaError(
            f"{name} brought the decoder down; it is damaged or hostile; export it again, or leave it out"
        )


def examine(
    path: Path,
    *,
    frames: int,
    size: int,
    limits: Limits | None = None,
    name: str | None = None,
    thumbnail: Path | None = None,
    cache: Path | None = None,
) -> VideoInfo:
    """:meth:`Examiner.examine` with a child of its own."""
    with Examiner(limits) as examiner:
        return examiner.examine(path, frames=frames, size=size, name=name, thumbnail=thumbnail, cache=cache)
