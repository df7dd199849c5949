"""The child process: reads one JSON request a line, answers one JSON line, and may die without harm.

Decoders are large, written in C, and fed with what strangers send; so they run here, with little memory, a bound on CPU
time, and nothing to lose.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from media.decode import decode, square
from media.errors import MediaError
from media.facts import Limits
from media.paths import frame_cache_path

__all__ = ["main"]

_THUMBNAIL = 320  # pixels wide, at most


def main() -> None:
    """Serve requests until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing a library prints may look like an answer
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"info": _examine(request)}
        except MediaError as error:
            answer = {"reason": error.reason}
        except MemoryError:
            answer = {"reason": f"{request['name']} needs too much memory to decode; scale it down"}
        except OSError as error:  # reading is done by now, so this is about our own folders
            words = error.strerror or type(error).__name__
            answer = {
                "reason": f"what was made of {request['name']} cannot be stored ({words}); "
                "check space and rights of the data folder"
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _examine(request: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    name, path = request["name"], Path(request["path"])
    _bound(limits)
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes:
                raise MediaError(f"{name} is empty (0 bytes); copy it again")
            if size_bytes > limits.max_bytes:
                raise MediaError(
                    f"{name} is {size_bytes} bytes; at most {limits.max_bytes} are accepted; shorten it"
                )
            content = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            info, images = decode(
                file,
                name=name,
                content_hash=content,
                size_bytes=size_bytes,
                frames=request["frames"],
                limits=limits,
            )
    except OSError as error:
        raise MediaError(f"{name} cannot be read ({error.strerror}); check that the file is there") from error
    if request["cache"]:
        stack = np.stack([square(image, request["size"]) for image in images])
        target = frame_cache_path(Path(request["cache"]), request["frames"], request["size"], content)
        _replace(target, lambda staged: np.save(staged, stack, allow_pickle=False), ".npy")
    if request["thumbnail"]:
        middle = images[len(images) // 2].copy()
        middle.thumbnail((_THUMBNAIL, _THUMBNAIL * 4))
        _replace(
            Path(request["thumbnail"]),
            lambda staged: middle.save(staged, "JPEG", quality=85, optimize=True),
            ".jpg",
        )
    return asdict(info)


def _bound(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, resource.RLIM_INFINITY))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.timeout_seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _replace(path: Path, write: Any, suffix: str) -> None:
    """Write beside the target, sync, rename: readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.stem}.{os.getpid()}{suffix}")
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
    main()
