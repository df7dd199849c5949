"""The parent's side of decoding: one warm child process, replaced whenever it dies or hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from media.errors import DecoderUnavailable, MediaError, UndecidedVideo
from media.media_paths import FrameSize, frame_cache_path, frame_shape, staged_files
from media.video_limits import VideoInfo, VideoLimits

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 60.0  # imports are slow on a busy machine
_GRACE_SECONDS = 1.0
_MAX_EXTRA_SECONDS = 480.0  # for a long sample, beyond the usual timeout
# A GIF of one black pixel.
_PIXEL = bytes.fromhex(
    "47494638396101000100800000000000ffffff21f90400000000002c00000000010001000002024401003b"
)
# The child inherits these variables, and none of the service's secrets.
_INHERITED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "TMPDIR",
)


class _ChildDied(Exception):
    """The child exited before it responded."""


class _ChildHangs(Exception):
    """The child did not respond in time."""


class VideoDecoder:
    """Decoder of videos, one by one, in a child process; a context manager, and not thread-safe.

    The child is a plain subprocess, which works even in workers that may not have children of ``multiprocessing``.
    """

    def __init__(self, limits: VideoLimits | None = None) -> None:
        self.limits = limits or VideoLimits()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def child_pid(self) -> int | None:
        """Process ID of the child, which may have died; None before the first video and after a failure."""
        return self._child.pid if self._child else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decode(
        self,
        path: Path,
        *,
        frames: int,
        size: FrameSize,
        name: str | None = None,
        thumbnail: Path | None = None,
        cache: Path | None = None,
        pictures: bool = False,
    ) -> VideoInfo:
        """Decode a video, and write its frame cache and thumbnail.

        Args:
            frames: Number of frames to sample, at the times of :func:`media.video_limits.sample_times`.
            size: Side of the square that frames are cropped to, in pixels, or how they are resized.
            thumbnail: File of the thumbnail, a JPEG at most 320 pixels wide; None: no thumbnail.
            cache: Folder of the frame cache, see :func:`media.media_paths.frame_cache_path`; None: no cache.
            pictures: Whether to accept a single picture as a video of one frame.

        Raises:
            UndecidedVideo: The video cannot be read, took too long, crashed the decoder, or needs too much memory.
            MediaError: The video cannot be used.
            OSError: The frame cache or thumbnail cannot be written; the video is not the cause.
            DecoderUnavailable: The decoder does not start, or dies on every video.
        """
        if frames < 1 or min(frame_shape(size)) < 1:
            raise ValueError(f"frames and size must be at least 1, not {frames} and {size}")
        name = name or path.name
        request = {
            **self._decode_request(path, name, frames, size),
            "thumbnail": str(thumbnail.absolute()) if thumbnail else None,
            "cache": str(cache.absolute()) if cache else None,
            "pictures": pictures,
        }
        return VideoInfo(**self._request(request, name)["info"])

    def _decode_request(self, path: Path, name: str, frames: int, size: FrameSize) -> dict[str, Any]:
        """Describe a video to decode without writing a file; the child has another working directory."""
        shape = {"frames": frames, "size": size, "thumbnail": None, "cache": None, "pictures": False}
        return {"path": str(path.absolute()), "name": name, **shape, "limits": asdict(self.limits)}

    def sample(
        self, path: Path, *, times: Sequence[float], size: FrameSize, into: Path, name: str | None = None
    ) -> None:
        """Decode the frames on display at given times into a ``.npy`` file, ``uint8 [len(times), H, W, 3]``.

        Frames are resized as in :meth:`decode`, and never in memory all at once. If the container supports seeking,
        frames before the first and after the last time are not read. The timeout is extended by the time between the
        first and the last frame, up to eight minutes.

        Args:
            times: Ascending times in seconds since the first frame.
            size: As in :meth:`decode`.

        Raises:
            UndecidedVideo, MediaError, DecoderUnavailable: As in :meth:`decode`.
            OSError: The file cannot be written; the video is not the cause.
        """
        name = name or path.name
        timeout = self.limits.timeout_seconds + min(times[-1] - times[0], _MAX_EXTRA_SECONDS)
        request = {
            "path": str(path.absolute()),
            "name": name,
            "times": list(times),
            "size": size,
            "into": str(into.absolute()),
            "limits": {**asdict(self.limits), "timeout_seconds": timeout},
        }
        self._request(request, name)

    def close(self) -> None:
        """End the child process."""
        self._end()

    def _request(self, request: dict[str, Any], name: str) -> dict[str, Any]:
        warm = self._child is not None and self._child.poll() is None
        child = self._child if warm and self._child else self._start()
        seconds = request["limits"]["timeout_seconds"]
        try:
            response = _exchange(child, request, seconds)
        except _ChildHangs as error:
            self._end(request)
            raise UndecidedVideo(
                f"{name} took longer than {seconds:g} s to decode; shorten it or scale it down"
            ) from error
        except _ChildDied as error:
            status = self._end(request, _GRACE_SECONDS)
            if warm:  # a previous video may be the cause: try once more in a new child
                return self._request(request, name)
            if not self._is_working():
                raise DecoderUnavailable(
                    f"the decoder process dies on every video ({_format_status(status)}); "
                    "check this machine's memory and resource limits"
                ) from error
            raise UndecidedVideo(
                f"{name} crashed the decoder ({_format_status(status)}); it is damaged or hostile; "
                "export it again, or leave it out"
            ) from error
        if "stored" in response:
            raise OSError(response["reason"])
        if "reason" in response:
            raise (UndecidedVideo if response["undecided"] else MediaError)(response["reason"])
        return response

    def _is_working(self) -> bool:
        """Check whether a new child decodes a picture of one pixel; raise DecoderUnavailable if it does not start."""
        with tempfile.NamedTemporaryFile(suffix=".gif") as picture:
            picture.write(_PIXEL)
            picture.flush()
            request = self._decode_request(Path(picture.name), "test picture", 1, 8)
            try:
                return "info" in _exchange(self._start(), request, self.limits.timeout_seconds)
            except (_ChildDied, _ChildHangs):
                self._end()
                return False

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        inherited = {key: os.environ[key] for key in _INHERITED_VARIABLES if key in os.environ}
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", "media.decoder_process"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env={**inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            # Ctrl-C reaches only the parent, which ends the child. A new session would do that too, but Linux's
            # autogroup scheduling would then ignore the worker's priority.
            process_group=0,
        )
        try:
            _exchange(child, None, _START_SECONDS)
        except (_ChildDied, _ChildHangs) as error:
            status = self._end(grace=_GRACE_SECONDS)
            raise DecoderUnavailable(
                f"the decoder process does not start ({_format_status(status)}); "
                "run `python -m media.decoder_process` to see why"
            ) from error
        return child

    def _end(self, unfinished: dict[str, Any] | None = None, grace: float = 0.0) -> int | None:
        """End the child, and remove its unfinished files.

        Args:
            grace: Seconds to wait for a child that is exiting by itself, to get its own status.

        Returns:
            The exit status; None if there was no child.
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
            _remove_staged_files(unfinished, child.pid)
        return status


def _exchange(
    child: subprocess.Popen[bytes], request: dict[str, Any] | None, seconds: float
) -> dict[str, Any]:
    """Send a request, if any, and wait for the response line."""
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
    response: dict[str, Any] = json.loads(received)
    return response


def _remove_staged_files(request: dict[str, Any], pid: int) -> None:
    """Remove the files that a child had begun to write for a request."""
    targets = [Path(request[key]) for key in ("thumbnail", "into") if request.get(key)]
    if request.get("cache"):
        targets.append(frame_cache_path(Path(request["cache"]), request["frames"], request["size"], ""))
    for target in targets:
        for staged in staged_files(pid, target.parent):
            staged.unlink(missing_ok=True)


def _format_status(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
