"""The parent's side of reading: one warm child process, replaced after some videos, a crash or a hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cinestrata_schemas.choice_types import TextSource
from media.child_process import (
    LOWEST_PRIORITY,
    ChildDied,
    ChildHangs,
    ChildOwner,
    ChildProcess,
    format_status,
)
from media.errors import UndecidedVideo
from media.timed_texts import TimedText
from media.video_limits import VideoLimits

_MAX_VIDEOS = 50  # per child
_GRACE_SECONDS = 1.0
_TICK_SECONDS = 2.0
_SILENCE_SECONDS = 600.0  # without a sign of progress; the lowest priority waits long on a busy machine
# Where models that are not packaged are kept, and whether they may be downloaded.
_HUB_VARIABLES = ("HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "XDG_CACHE_HOME")


class SourceReading(NamedTuple):
    """What one source of a video says."""

    texts: list[TimedText]
    model: str = ""  # what read it: package, version and model; empty if nothing did
    note: str | None = None  # what was not read, and why; None if all was
    failed: bool = False  # whether another attempt may succeed, since the reader crashed or took too long


VideoReading = dict[TextSource, SourceReading]


class VideoReader(ChildOwner):
    """Reader of speech and text in videos, one by one, in a child process; its memory limit is for packaged models."""

    def __init__(self, limits: VideoLimits | None = None) -> None:
        self.limits = limits or VideoLimits()
        super().__init__(
            ChildProcess("media.reading.reader_process", "reader", _HUB_VARIABLES, LOWEST_PRIORITY)
        )
        self._videos = 0  # read by the child

    def read(
        self,
        path: Path,
        sources: Iterable[TextSource] = ("speech", "screen"),
        *,
        speech_model: str | None = None,
        name: str | None = None,
        progress: Callable[[], None] | None = None,
    ) -> VideoReading:
        """Read a video. What cannot be read is stated in a note.

        Args:
            speech_model: Name of a model of faster-whisper, or folder of one; None: the packaged model.
            progress: Called every few seconds, for example to renew a lease. What it raises ends the reading.

        Returns:
            The reading of each source.

        Raises:
            UndecidedVideo: The file is gone.
            DecoderUnavailable: The reader does not start.
        """
        name = name or path.name
        request = {
            "path": str(path.absolute()),
            "name": name,
            "speech_model": speech_model,
            "limits": asdict(self.limits),
        }
        if self._videos >= _MAX_VIDEOS:
            self.close()
            self._videos = 0
        self._videos += 1
        return {source: self._read(request | {"source": source}, progress) for source in sources}

    def _read(self, request: dict[str, Any], progress: Callable[[], None] | None) -> SourceReading:
        is_warm = self._child.is_running
        if not is_warm:
            self._child.start()
        try:
            self._child.send(request)
            response = self._receive(progress)
        except ChildHangs:
            self._child.end()
            return SourceReading([], note="the reader took too long", failed=True)
        except ChildDied:
            status = format_status(self._child.end(_GRACE_SECONDS))
            if is_warm:  # a previous video may be the cause: try once more in a new child
                return self._read(request, progress)
            return SourceReading([], note=f"the video crashed the reader ({status})", failed=True)
        except BaseException:
            self._child.end()
            raise
        if "gone" in response:
            raise UndecidedVideo(response["gone"])
        texts = [TimedText(*fields) for fields in response.pop("texts")]
        return SourceReading(texts, **response)

    def _receive(self, progress: Callable[[], None] | None) -> dict[str, Any]:
        """Wait for the response; raise ChildDied, or ChildHangs after a long time without a sign of progress."""
        silence = 0.0
        while True:
            try:
                response = self._child.receive(_TICK_SECONDS)
            except ChildHangs:
                silence += _TICK_SECONDS
                if silence >= _SILENCE_SECONDS:
                    raise
            else:
                if "progress" not in response:
                    return response
                silence = 0.0
            if progress:
                progress()
