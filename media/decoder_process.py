"""The decoder process: reads one JSON request per line, writes one JSON response per line, and may crash.

Decoders are large C libraries that read untrusted files. Here they run with limits on memory, CPU time and file size,
and see none of the service's secrets.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from media.child_process import Respond, limit_process, serve_requests
from media.errors import MediaError, UndecidedVideo
from media.media_paths import append_checksum, frame_cache_path, frame_shape, staged_path
from media.pyav_decoding import decode, fit_picture
from media.video_limits import VideoLimits, sample_times

_THUMBNAIL_WIDTH = 320  # pixels, at most
_OTHER_FILE_BYTES = 64 * 1024**2  # that a written file may have beyond its frames


def _answer(request: dict[str, Any], _respond: Respond) -> dict[str, Any]:
    try:
        if "times" in request:
            _sample_frames(request)
            return {}
        return {"info": decode_video(request)}
    except MediaError as error:
        return {"reason": error.reason, "undecided": isinstance(error, UndecidedVideo)}
    except MemoryError:  # the machine may have little
        reason = f"{request['name']} needs too much memory; scale it down, or export it again"
        return {"reason": reason, "undecided": True}
    except OSError as error:  # reading the video raises MediaError, so this is about writing
        cause = error.strerror or type(error).__name__
        reason = (
            f"the frames of {request['name']} cannot be stored ({cause}); "
            "check the data folder's free space and permissions"
        )
        return {"reason": reason, "stored": False}


def decode_video(request: dict[str, Any]) -> dict[str, Any]:
    """Decode a video, write its frame cache and thumbnail, and return the fields of its ``VideoInfo``."""
    limits = VideoLimits(**request["limits"])
    name, path, frames, size = request["name"], Path(request["path"]), request["frames"], request["size"]
    _limit(limits, frames * math.prod(frame_shape(size)) * 3)
    pictures: list[npt.NDArray[np.uint8]] = []
    thumbnails: list[Image.Image] = []

    def receive(image: Image.Image) -> None:
        if len(pictures) == frames // 2:
            thumbnails.append(image.copy())
            thumbnails[0].thumbnail((_THUMBNAIL_WIDTH, _THUMBNAIL_WIDTH * 4))
        pictures.append(fit_picture(image, size))

    try:
        size_bytes = limits.check_file(path, name)
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
            info = decode(
                file,
                name=name,
                content_hash=content,
                size_bytes=size_bytes,
                times=lambda duration: sample_times(duration, frames),
                limits=limits,
                receive=receive,
                pictures=request["pictures"],
            )
    except OSError as error:
        raise _unreadable(name, error) from error
    if request["cache"]:
        target = frame_cache_path(Path(request["cache"]), frames, size, content)
        _replace(target, lambda staged: np.save(staged, np.stack(pictures), allow_pickle=False))
    if request["thumbnail"]:
        _replace(Path(request["thumbnail"]), lambda staged: _save_thumbnail(thumbnails[0], staged))
    return asdict(info)


def _save_thumbnail(thumbnail: Image.Image, path: Path) -> None:
    thumbnail.save(path, "JPEG", quality=85, optimize=True)
    append_checksum(path)


def _sample_frames(request: dict[str, Any]) -> None:
    """Write the frames at given times to a file, one at a time since there may be many."""
    limits = VideoLimits(**request["limits"])
    name, path, times, size = request["name"], Path(request["path"]), request["times"], request["size"]
    _limit(limits, len(times) * math.prod(frame_shape(size)) * 3)

    def write(staged: Path) -> None:
        def receive(image: Image.Image) -> None:
            file_of_frames.write(fit_picture(image, size).tobytes())

        with staged.open("wb") as file_of_frames:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(times), *frame_shape(size), 3)}
            np.lib.format.write_array_header_1_0(file_of_frames, header)
            try:
                size_bytes = limits.check_file(path, name)
                file = path.open("rb")
            except OSError as error:
                raise _unreadable(name, error) from error
            with file:
                decode(
                    file,
                    name=name,
                    content_hash="",
                    size_bytes=size_bytes,
                    times=lambda _: times,
                    limits=limits,
                    receive=receive,
                )

    _replace(Path(request["into"]), write)


def _unreadable(name: str, error: OSError) -> UndecidedVideo:
    return UndecidedVideo(f"{name} cannot be read ({error.strerror}); check that the file is there")


def _limit(limits: VideoLimits, frame_bytes: int) -> None:
    limit_process(limits.memory_bytes, limits.timeout_seconds, frame_bytes + _OTHER_FILE_BYTES)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file next to its target and rename it, so that readers see all of it or nothing.

    It is not synced, which would take longer than decoding a short video. Files that a power cut truncates are decoded
    again (frames) or count as missing (thumbnails).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = staged_path(path, os.getpid())
    try:
        write(staged)
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


if __name__ == "__main__":
    # No image files are opened here, so Pillow needs only its basic plug-ins, which write JPEG.
    Image.preinit()
    gc.freeze()  # later collections skip the imported modules
    serve_requests(_answer)
