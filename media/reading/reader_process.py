"""The reader process: reads one JSON request per line, writes lines of progress and one of the response.

It decodes untrusted files, so it runs with limits on memory and CPU time, and sees none of the service's secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av

from media.child_process import Respond, limit_process, serve_requests
from media.errors import MediaError
from media.pyav_decoding import open_video
from media.video_limits import VideoLimits

if TYPE_CHECKING:  # each takes a second to import
    from media.reading.screen import ScreenReader
    from media.reading.speech import SpeechReader

_PROGRESS_SECONDS = 2.0  # between two lines
_FILE_BYTES = 64 * 1024**2  # nothing is written, except by libraries
_ANY_BYTES = 1 << 40
# CPU time, as multiples of the duration: of the packaged models, and of others.
_PACE, _OTHER_PACE = 4.0, 60.0


def _answer(request: dict[str, Any], respond: Respond) -> dict[str, Any]:
    last = 0.0

    def progress() -> None:
        nonlocal last
        if time.monotonic() - last > _PROGRESS_SECONDS:
            last = time.monotonic()
            respond({"progress": True})

    return _read(request, progress)


def _read(request: dict[str, Any], progress: Callable[[], None]) -> dict[str, Any]:
    limits, name, path = VideoLimits(**request["limits"]), request["name"], Path(request["path"])
    model = request["speech_model"] if request["source"] == "speech" else None
    if model is None:
        memory, pace, file_bytes = limits.memory_bytes, _PACE, _FILE_BYTES
    else:
        memory, pace, file_bytes = _ANY_BYTES, _OTHER_PACE, _ANY_BYTES
    try:
        size_bytes = limits.check_file(path, name)
        limit_process(memory, limits.timeout_seconds, file_bytes)
        with path.open("rb") as file, ExitStack() as stack:
            video = open_video(stack, file, size_bytes, name, limits)
            seconds = max(video.extent.duration, (video.container.duration or 0) / av.time_base)
            seconds = limits.timeout_seconds + pace * min(seconds, limits.max_seconds)
            limit_process(memory, seconds, file_bytes)
            return _load_reader(request["source"], model).read(video, progress)._asdict()
    except MediaError as error:
        return {"texts": [], "note": error.reason}
    except av.FFmpegError as error:
        return {"texts": [], "note": f"{name} cannot be decoded ({type(error).__name__}); it is damaged"}
    except MemoryError:
        return {"texts": [], "note": f"reading {name} needs too much memory", "failed": True}
    except (ImportError, RuntimeError, ValueError) as error:
        # A library of the machine is missing, or a model is damaged.
        note = f"the reader fails ({type(error).__name__}: {error})"[:300]
        return {"texts": [], "note": note, "failed": True}
    except OSError as error:
        return {"gone": f"{name} cannot be read ({error.strerror}); check that the file is there"}


@cache
def _load_reader(source: str, model: str | None) -> SpeechReader | ScreenReader:
    """Load the models of a source, which stay in memory."""
    if source == "speech":
        from media.reading.speech import SpeechReader

        return SpeechReader(model)
    if source != "screen":
        raise ValueError(f"no reader for {source!r}")
    from media.reading.screen import ScreenReader

    return ScreenReader()


if __name__ == "__main__":
    serve_requests(_answer)
