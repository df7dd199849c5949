"""The child process: reads one JSON request a line, answers one JSON line, and may die without harm.

Decoders are large, written in C, and fed with what strangers send; so they run here, with bounds on memory, CPU time
and what is written, without the parent's environment, and with nothing to lose.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from media.errors import MediaError
from media.frame_images import crop_square
from media.media_paths import frame_cache_path, staged_path
from media.pyav_decoding import decode
from media.video_limits import VideoLimits, sample_times

__all__ = ["main"]

_THUMBNAIL = 320  # pixels wide, at most
_BESIDES_FRAMES = 64 * 1024**2  # bytes that a file may have, however few frames are wanted


def main() -> None:
    """Say ``{"ready": true}``, then serve requests until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing a library prints may look like an answer
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "times" in request:
                _sample(request)
                answer = {}
            else:
                answer = {"info": _examine(request)}
        except MediaError as error:
            answer = {"reason": error.reason}
        except MemoryError:
            answer = {"reason": f"{request['name']} needs too much memory; scale it down, or export it again"}
        except OSError as error:  # reading is done by now, so this is about our own folders
            words = error.strerror or type(error).__name__
            answer = {
                "reason": f"what was made of {request['name']} cannot be stored ({words}); "
                "check space and rights of the data folder",
                "stored": False,
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        gc.collect()  # a few frames hang in cycles, and they are large


def _examine(request: dict[str, Any]) -> dict[str, Any]:
    limits = VideoLimits(**request["limits"])
    name, path, frames, size = request["name"], Path(request["path"]), request["frames"], request["size"]
    _bound(limits, frames * size * size * 3)
    squares: list[npt.NDArray[np.uint8]] = []
    middle: list[Image.Image] = []

    def receive(image: Image.Image) -> None:
        if len(squares) == frames // 2:
            middle.append(image.copy())
            middle[0].thumbnail((_THUMBNAIL, _THUMBNAIL * 4))
        squares.append(crop_square(image, size))

    try:
        size_bytes = limits.admit(path, name)
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
        _replace(target, lambda staged: np.save(staged, np.stack(squares), allow_pickle=False))
    if request["thumbnail"]:
        _replace(
            Path(request["thumbnail"]),
            lambda staged: middle[0].save(staged, "JPEG", quality=85, optimize=True),
        )
    return asdict(info)


def _sample(request: dict[str, Any]) -> None:
    """Squares at given times, one after the other into a file: they may be many."""
    limits = VideoLimits(**request["limits"])
    name, path, times, size = request["name"], Path(request["path"]), request["times"], request["size"]
    _bound(limits, len(times) * size * size * 3)

    def write(staged: Path) -> None:
        def receive(image: Image.Image) -> None:
            squares.write(crop_square(image, size).tobytes())

        with staged.open("wb") as squares:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(times), size, size, 3)}
            np.lib.format.write_array_header_1_0(squares, header)
            try:
                size_bytes = limits.admit(path, name)
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


def _unreadable(name: str, error: OSError) -> MediaError:
    return MediaError(f"{name} cannot be read ({error.strerror}); check that the file is there")


def _bound(limits: VideoLimits, frame_bytes: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.timeout_seconds) + 2
    for what, bound in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (
            resource.RLIMIT_CPU,
            seconds,
        ),  # the parent's clock is first; this ends a child whose parent has gone
        (resource.RLIMIT_FSIZE, frame_bytes + _BESIDES_FRAMES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target, sync, rename: readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = staged_path(path, os.getpid())
    try:
        write(staged)
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


if __name__ == "__main__":
    # Image files are never opened here, so Pillow needs none of its plug-ins but the one that writes JPEG.
    Image.preinit()
    gc.freeze()  # what was imported stays: collections then take no time
    main()
