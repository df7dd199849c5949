"""Captions, transcript and metadata of a video from the sidecar files of downloaders, editors and datasets.

For a video ``clip.mp4`` they are ``clip.txt`` (every line is a caption), ``clip.info.json`` (``title`` and
``description`` are captions, other plain fields are metadata), and ``clip.srt`` or else ``clip.vtt`` (the transcript),
also with a language code, as in ``clip.en.vtt``.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_lines import read_lines
from service.tasks.manifests.subtitle_files import read_subtitles

SIDECAR_SUFFIXES = (".txt", ".info.json", ".srt", ".vtt")

# Downloaders name the subtitles of clip.mp4 clip.en.vtt, clip.pt-BR.srt or clip.en-orig.vtt.
_LANGUAGE_SUBTITLES = re.compile(
    r"(?P<stem>.*[^/])\.(?P<code>[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)\.(?P<kind>srt|vtt)", re.DOTALL
)

OpenSidecar = Callable[[str], BinaryIO | None]

_MAX_INFO_BYTES = 8 * 1024**2  # parsed JSON takes up to 20 times as much memory
_MAX_METADATA_CHARS = 1000  # of one text; longer ones are prose or signed addresses
# Local paths and addresses of a download, which may contain credentials.
_PRIVATE_FIELDS = frozenset(("filename", "url", "manifest_url", "fragment_base_url", "cookies"))


def read_sidecars(uri: str, open_sidecar: OpenSidecar, encoding: str = "utf-8") -> VideoSpec:
    """Return a video with the captions, the transcript and the metadata of its sidecar files.

    Lines of a ``.txt`` are kept as they are. Other captions are shortened to their maximum length.

    Args:
        open_sidecar: Opens the file of a path for reading; None if there is none.

    Raises:
        InvalidInput: a sidecar file is invalid; the error names the file, and the line of a text.
    """
    stem = str(PurePosixPath(uri).with_suffix(""))
    captions: dict[str, None] = {}
    metadata: dict[str, Any] = {}
    for line in _read(f"{stem}.txt", open_sidecar, encoding, read_lines):
        if text := line.strip():
            captions[text] = None
    for info in _read(f"{stem}.info.json", open_sidecar, encoding, _read_info):
        captions |= dict.fromkeys(_shorten(info[key]) for key in ("title", "description") if info.get(key))
        metadata = _plain_fields(info)
    subtitles = (
        _read(f"{stem}{suffix}", open_sidecar, encoding, read_subtitles) for suffix in (".srt", ".vtt")
    )
    transcript = next(filter(None, map(list, subtitles)), [])
    captions.pop("", None)
    if len(captions) > request_limits.MAX_CAPTIONS:
        raise InvalidInput.at(
            f"{stem}.txt",
            f"The sidecar files have {len(captions)} captions of one video.",
            f"Keep at most {request_limits.MAX_CAPTIONS}.",
        )
    return VideoSpec(uri=uri, captions=list(captions), transcript=transcript, metadata=metadata or None)


def subtitle_aliases(paths: Iterable[str]) -> dict[str, str]:
    """Return the subtitle files with a language code by the path without it: ``clip.vtt`` → ``clip.en.vtt``.

    Of several languages English comes first, then the order of the codes.
    """
    found = (_LANGUAGE_SUBTITLES.fullmatch(path) for path in paths)
    ordered = sorted(
        (match for match in found if match),
        key=lambda match: (match["code"][:2].lower() != "en", match["code"]),
    )
    aliases: dict[str, str] = {}
    for match in ordered:
        aliases.setdefault(f"{match['stem']}.{match['kind']}", match[0])
    return aliases


def is_hidden(path: str) -> bool:
    """Whether a path is that of a hidden file, such as those that systems add to folders and archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def add_caption_from_name(video: VideoSpec) -> VideoSpec:
    """Return a video without captions with its file name as the caption, if the name has a word."""
    text = " ".join(re.sub(r"[\W_]+", " ", PurePosixPath(video.uri).stem).split())
    if video.captions or not re.search(r"[^\W\d_]{2}", text):
        return video
    return video.model_copy(update={"captions": [text[: request_limits.MAX_CAPTION_CHARS]]})


def _read(
    name: str,
    open_sidecar: OpenSidecar,
    encoding: str,
    read: Callable[[BinaryIO, str, str], Iterator[Any]],
) -> Iterator[Any]:
    stream = open_sidecar(name)
    if stream is not None:
        with stream:
            yield from read(stream, name, encoding)


def _read_info(stream: BinaryIO, name: str, encoding: str) -> Iterator[dict[str, Any]]:
    raw = stream.read(_MAX_INFO_BYTES + 1)
    if len(raw) > _MAX_INFO_BYTES:
        raise InvalidInput.at(
            name, f"The file is larger than {_MAX_INFO_BYTES} bytes.", "Remove its comments."
        )
    try:
        info = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidInput.at(name, "The file is not JSON.", "Correct or remove it.") from None
    if not isinstance(info, dict):
        raise InvalidInput.at(name, "The file is not a JSON object.", "Correct or remove it.")
    yield info


def _plain_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Texts, numbers, booleans and lists of texts, in order and within the limit of metadata."""
    fields: dict[str, Any] = {}
    size = 2
    for key, value in info.items():
        if key in ("title", "description") or key in _PRIVATE_FIELDS or not _is_plain(value):
            continue
        if key.startswith("_") or not _is_plain(key):
            continue
        size += len(json.dumps({key: value}, ensure_ascii=False).encode())
        if size > request_limits.MAX_METADATA_BYTES:
            break
        fields[key] = value
    return fields


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        is_storable = not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
        return is_storable and 0 < len(value) <= _MAX_METADATA_CHARS
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and _is_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < 2**63


def _shorten(value: Any) -> str:
    """Return a text as one line within the limit of a caption, without control characters."""
    text = "".join(
        c
        for c in str(value)[: 4 * request_limits.MAX_CAPTION_CHARS]
        if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs")
    )
    text = " ".join(text.split())
    if len(text) > request_limits.MAX_CAPTION_CHARS:
        text = (
            text[: request_limits.MAX_CAPTION_CHARS].rpartition(" ")[0]
            or text[: request_limits.MAX_CAPTION_CHARS]
        )
    return text
