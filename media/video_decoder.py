"""The parent's side of decoding: one warm child, replaced whenever it dies or hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from media.errors import DecoderUnavailable, MediaError
from media.media_paths import frame_cache_path, staged_by
from media.video_limits import VideoInfo, VideoLimits

__all__ = ["VideoDecoder"]

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 60.0  # on a machine that is busy with other things, importing takes its time
_GRACE_SECONDS = 1.0
_MORE_SECONDS = 480.0
# All that the child inherits: secrets of the service are none of its business.
_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "TMPDIR",
)


class _ChildDied(Exception):
    """The child ended before it answered."""


class _ChildHangs(Exception):
    """The child did not answer in time."""


class VideoDecoder:
    """Examines videos one after the other; use it as a context manager. Not for several threads at once.

    The child is a plain subprocess, so that it also works in workers that may not have daemonic children.
    """

    def __init__(self, limits: VideoLimits | None = None) -> None:
        self.limits = limits or VideoLimits()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def decode(
        self,
        path: Path,
        *,
        frames: int,
        size: int,
        name: str | None = None,
        thumbnail: Path | None = None,
        cache: Path | None = None,
        pictures: bool = False,
    ) -> VideoInfo:
        """Decode a video.

        Args:
            path: of the file.
            frames: how many to sample, at the moments of :func:`media.video_limits.sample_times`.
            size: side of the square they are cut to, pixels.
            name: how messages call the video; its file name by default.
            thumbnail: where to write a JPEG, at most 320 pixels wide.
            cache: folder for the sampled frames, see :func:`media.media_paths.frame_cache_path`.
            pictures: take a single picture too, as a video of one frame.

        Raises:
            MediaError: the video cannot be used, took too long, or brought the decoder down.
            DecoderUnavailable: decoding does not even start, whatever the video.
        """
        if frames < 1 or size < 1:
            raise ValueError(f"frames and size must be at least 1, not {frames} and {size}")
        name = name or path.name
        request = {
            "path": str(path.absolute()),  # the child runs in another folder
            "name": name,
            "frames": frames,
            "size": size,
            "thumbnail": str(thumbnail.absolute()) if thumbnail else None,
            "cache": str(cache.absolute()) if cache else None,
            "pictures": pictures,
            "limits": asdict(self.limits),
        }
        answer = self._ask(request, name)
        if "reason" in answer:
            raise MediaError(answer["reason"])
        return VideoInfo(**answer["info"])

    def sample(
        self, path: Path, *, times: Sequence[float], size: int, into: Path, name: str | None = None
    ) -> None:
        """Decode the frames on display at given times into a ``.npy`` file, ``uint8 [len(times), size, size, 3]``.

        They are cut as those of :meth:`examine` are, and never in memory together. What lies before the first and
        after the last of the times is not read where the container can be jumped in.

        Args:
            times: rising, seconds since the first frame.
            into: the file, which is replaced.
            name: how messages call the video; its file name by default.

        Raises:
            MediaError, DecoderUnavailable: as :meth:`examine`. Beyond the usual time it may take as long as the part
                of the video between the first time and the last, up to eight minutes.
            OSError: the file cannot be written; no video is to blame.
        """
        name = name or path.name
        longer = self.limits.timeout_seconds + min(times[-1] - times[0], _MORE_SECONDS)
        request = {
            "path": str(path.absolute()),
            "name": name,
            "times": list(times),
            "size": size,
            "into": str(into.absolute()),
            "limits": {**asdict(self.limits), "timeout_seconds": longer},
        }
        answer = self._ask(request, name)
        if "stored" in answer:
            raise OSError(answer["reason"])
        if "reason" in answer:
            raise MediaError(answer["reason"])

    def close(self) -> None:
        """End the child."""
        self._end()

    def _ask(self, request: dict[str, Any], name: str) -> dict[str, Any]:
        warm = self._child is not None and self._child.poll() is None
        child = self._child if warm and self._child else self._start()
        seconds = request["limits"]["timeout_seconds"]
        try:
            return _exchange(child, request, seconds)
        except _ChildHangs as error:
            self._end(request)
            raise MediaError(
                f"{name} took longer than {seconds:g} s to decode; shorten it or scale it down"
            ) from error
        except _ChildDied as error:
            status = self._end(request, _GRACE_SECONDS)
            if warm:  # it may have been dying already; only a child that had no other work to do tells
                return self._ask(request, name)
            raise MediaError(
                f"{name} brought the decoder down ({_ending(status)}); it is damaged or hostile; "
                "export it again, or leave it out"
            ) from error

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        inherited = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", "media.decoder_process"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env={**inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child in its own time
        )
        try:
            _exchange(child, None, _START_SECONDS)
        except (_ChildDied, _ChildHangs) as error:
            status = self._end(grace=_GRACE_SECONDS)
            raise DecoderUnavailable(
                f"the decoding process does not start ({_ending(status)}); run `python -m media.decoder_process` to see why"
            ) from error
        return child

    def _end(self, unfinished: dict[str, Any] | None = None, grace: float = 0.0) -> int | None:
        """End the child, take away what it was writing, and tell its exit status.

        Args:
            grace: seconds that a child which is ending by itself may take, so that the status is its own.
        """
        child, self._child = self._child, None
        if child is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
        child.kill()
        status = child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()
        if unfinished:
            _sweep(unfinished, child.pid)
        return status


def _exchange(
    child: subprocess.Popen[bytes], request: dict[str, Any] | None, seconds: float
) -> dict[str, Any]:
    """Send a line, if there is one to send, and wait for the line that answers it."""
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child was started with pipes")
    deadline = time.monotonic() + seconds
    if request is not None:
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise _ChildDied from error
    readable = select.poll()  # select() would refuse descriptors above 1023
    readable.register(child.stdout)
    received = b""
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not readable.poll(left * 1000):
            raise _ChildHangs
        chunk = os.read(child.stdout.fileno(), 65536)
        if not chunk:
            raise _ChildDied
        received += chunk
    answer: dict[str, Any] = json.loads(received)
    return answer


def _sweep(request: dict[str, Any], pid: int) -> None:
    """Remove what a child that has ended had begun to write."""
    targets = [Path(request[key]) for key in ("thumbnail", "into") if request.get(key)]
    if request.get("cache"):
        targets.append(frame_cache_path(Path(request["cache"]), request["frames"], request["size"], ""))
    for target in targets:
        for staged in staged_by(pid, target.parent):
            staged.unlink(missing_ok=True)


def _ending(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
