"""The parent's side of decoding: one warm child process, replaced whenever it dies or hangs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from media.child_process import ChildDied, ChildHangs, ChildOwner, ChildProcess, format_status
from media.errors import DecoderUnavailable, MediaError, UndecidedVideo
from media.media_paths import FrameSize, frame_cache_path, frame_shape, staged_files
from media.timed_texts import FileTexts
from media.video_limits import VideoInfo, VideoLimits

_GRACE_SECONDS = 1.0
_MAX_EXTRA_SECONDS = 480.0  # for a long sample, beyond the usual timeout
# A GIF of one black pixel.
_PIXEL = bytes.fromhex(
    "47494638396101000100800000000000ffffff21f90400000000002c00000000010001000002024401003b"
)


class VideoDecoder(ChildOwner):
    """Decoder of videos, one by one, in a child process.

    ``nice`` is added to the priority's number of the child.
    """

    def __init__(self, limits: VideoLimits | None = None, *, nice: int = 0) -> None:
        self.limits = limits or VideoLimits()
        super().__init__(ChildProcess("media.decoder_process", "decoder", nice=nice))

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
        info = self._request(request, name)["info"]
        texts = info.pop("texts")
        return VideoInfo(**info, texts=FileTexts(**texts) if texts else None)

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

    def _request(self, request: dict[str, Any], name: str) -> dict[str, Any]:
        child = self._child
        warm = child.is_running
        if not warm:
            child.start()
        pid = child.pid
        seconds = request["limits"]["timeout_seconds"]
        try:
            child.send(request)
            response = child.receive(seconds)
        except ChildHangs as error:
            child.end()
            _remove_staged_files(request, pid)
            raise UndecidedVideo(
                f"{name} took longer than {seconds:g} s to decode; shorten it or scale it down"
            ) from error
        except ChildDied as error:
            status = child.end(_GRACE_SECONDS)
            _remove_staged_files(request, pid)
            if warm:  # a previous video may be the cause: try once more in a new child
                return self._request(request, name)
            if not self._is_working():
                raise DecoderUnavailable(
                    f"the decoder process dies on every video ({format_status(status)}); "
                    "check this machine's memory and resource limits"
                ) from error
            raise UndecidedVideo(
                f"{name} crashed the decoder ({format_status(status)}); it is damaged or hostile; "
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
            self._child.start()
            try:
                self._child.send(self._decode_request(Path(picture.name), "test picture", 1, 8))
                return "info" in self._child.receive(self.limits.timeout_seconds)
            except (ChildDied, ChildHangs):
                self._child.end()
                return False


def _remove_staged_files(request: dict[str, Any], pid: int | None) -> None:
    """Remove the files that a child had begun to write for a request."""
    targets = [Path(request[key]) for key in ("thumbnail", "into") if request.get(key)]
    if request.get("cache"):
        targets.append(frame_cache_path(Path(request["cache"]), request["frames"], request["size"], ""))
    for target in targets:
        for staged in staged_files(pid or 0, target.parent):
            staged.unlink(missing_ok=True)
