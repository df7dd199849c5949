"""The caption formats (``FORMATS``): which keys identify each, and how its content becomes videos.

A format yields the fields of a video as in ``POST /tasks``; times of dense captions become the ``transcript``. The
``uri`` is a path or an ID, that is, the file name's stem. Timed texts never become captions of the whole video.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from service.core.errors import InvalidInput
from service.tasks.manifests.text_files import plain_fields, shorten_caption
from service.tasks.manifests.video_tables import SPLITS, file_columns, object_fields

Rows = Iterator[tuple[str, Any]]  # location and fields of each video

_SHORTEST = 1.0  # seconds, for a timed text that does not end after its start
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
_TABLE_KEYS = ("file", "file_name", "video")  # no description of a data set has them
_MAX_KEYS = 12  # in an error


@dataclass(frozen=True)
class CaptionFormat:
    """A caption format.

    Attributes:
        layout: ``document``: an object with ``keys``. ``objects``: a list, or JSON lines, of objects with ``keys``.
            ``mapping``: an object of objects with ``keys``, by video ID.
        keys: Keys that together identify this format.
        read: Yields the videos of a document, or of ``(location, object)`` pairs in the other layouts. None: the file
            describes a data set and has no videos.
        is_partial: Whether such files often list videos that are missing from the folder, as data sets do.
    """

    name: str
    layout: Literal["document", "objects", "mapping"]
    keys: frozenset[str]
    read: Callable[[Any, str], Rows] | None
    is_partial: bool = True


def recognize(value: Any, location: str) -> CaptionFormat:
    """Recognize the format of a JSON document, or of the first object in JSON lines; raise InvalidInput."""
    if value == {}:
        return _EMPTY
    layouts = _keys_by_layout(value)
    for known in FORMATS:
        keys = layouts.get(known.layout, frozenset())
        if known.keys <= keys and (known.read or keys.isdisjoint(_TABLE_KEYS)):
            return known
    first = (
        next((item for item in value if isinstance(item, dict)), None) if isinstance(value, list) else value
    )
    if isinstance(first, dict) and any(isinstance(first[key], str | int) for key in file_columns(first)):
        return VIDEO_OBJECTS
    if isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()):
        layouts = {"mapping": frozenset(chain.from_iterable(value.values()))}  # its own keys are IDs
    raise InvalidInput.at(location, *_not_understood(layouts))


def read_document_rows(known: CaptionFormat, value: Any, name: str) -> Rows:
    """Read the location and fields of each video in a JSON document; raise InvalidInput."""
    if known.read is None:
        return iter(())
    if known.layout == "document":
        return known.read(value, name)
    if isinstance(value, list):
        return known.read(((f"{name}:[{number}]", item) for number, item in enumerate(value)), name)
    if known.layout == "objects":
        return known.read([(name, value)], name)
    items = ({**_typed(item, dict, f"{name}:{key[:80]}"), "video_id": key} for key, item in value.items())
    return known.read(((f"{name}:{item['video_id'][:80]}", item) for item in items), name)


def _keys_by_layout(value: Any) -> dict[str, frozenset[str]]:
    if isinstance(value, list):
        first = next((item for item in value if isinstance(item, dict)), None)
        return {} if first is None else {"objects": frozenset(first)}
    if not isinstance(value, dict):
        return {}
    inner = next(iter(value.values()), None)
    layouts = {"document": frozenset(value), "objects": frozenset(value)}
    return layouts | ({"mapping": frozenset(inner)} if isinstance(inner, dict) else {})


def _not_understood(layouts: Mapping[str, frozenset[str]]) -> tuple[str, str]:
    if not layouts:
        return (
            "The file has no objects for videos.",
            "Write one JSON object per line, with the keys 'file' and 'caption'.",
        )
    keys = sorted({*chain.from_iterable(layouts.values())})
    shown = ", ".join(repr(key[:40]) for key in keys[:_MAX_KEYS])
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    return (
        f"The keys {shown}{more} match no known caption format.",
        "Correct the file, move it out of the folder, or list the videos in manifest.jsonl.",
    )


def _typed(value: Any, kind: type, location: str) -> Any:
    if not isinstance(value, kind):
        name = _KINDS[kind]
        raise InvalidInput.at(location, f"The value is not {name}.", "Export the file again.")
    return value


def _list(record: Mapping[str, Any], key: str, location: str) -> list[Any]:
    return [] if record.get(key) is None else _typed(record[key], list, f"{location}.{key}")


def _objects(record: Mapping[str, Any], key: str, location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, item in enumerate(_list(record, key, location)):
        place = f"{location}:{key}[{number}]"
        yield place, _typed(item, dict, place)


def _key(record: Mapping[str, Any], key: str, location: str) -> str:
    """Read an ID, which is a number in some files."""
    value = record.get(key)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidInput.at(f"{location}.{key}", "The ID is neither a string nor a number.", "Correct it.")
    return str(value)


def _captions(values: Iterable[Any]) -> list[str]:
    return list(filter(None, (shorten_caption(value) for value in values if isinstance(value, str))))


def _video(
    uri: str,
    *,
    captions: Iterable[Any] = (),
    transcript: list[dict[str, Any]] | None = None,
    split: Any = None,
    metadata: Mapping[str, Any] | None = None,
    omitted: Iterable[str] = (),
) -> dict[str, Any]:
    fields: dict[str, Any] = {"uri": uri, "captions": _captions(captions)}
    if transcript:
        fields["transcript"] = transcript
    if isinstance(split, str) and split.lower() in SPLITS:
        fields["split"] = SPLITS[split.lower()]
    if plain := plain_fields(metadata or {}, frozenset(omitted)):
        fields["metadata"] = plain
    return fields


def _cue(times: Any, text: Any, location: str) -> dict[str, Any]:
    """Build a timed text; some data sets have spans that end before they start."""
    is_span = isinstance(times, list) and len(times) == 2
    if not is_span or not all(isinstance(t, int | float) and not isinstance(t, bool) for t in times):
        raise InvalidInput.at(location, "The times are not a list of start and end.", "Give both in seconds.")
    start, end = sorted(times)
    if not (start >= 0 and end < 2**53):  # also false for NaN
        raise InvalidInput.at(
            location, f"{start} and {end} are not valid times in a video.", "Give seconds from its start."
        )
    end = end if end > start else start + _SHORTEST
    return {"start": float(start), "end": float(end), "text": shorten_caption(_typed(text, str, location))}


def _transcript(record: Mapping[str, Any], times: str, texts: str, location: str) -> list[dict[str, Any]]:
    spans, sentences = _list(record, times, location), _list(record, texts, location)
    if len(spans) != len(sentences):
        message = f"There are {len(spans)} times and {len(sentences)} texts."
        hint = f"Give one item of {times!r} for each of {texts!r}."
        raise InvalidInput.at(f"{location}.{times}", message, hint)
    pairs = enumerate(zip(spans, sentences, strict=True))
    cues = [_cue(span, text, f"{location}.{times}[{number}]") for number, (span, text) in pairs]
    return [cue for cue in cues if cue["text"]]


def _read_objects(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        yield location, object_fields(item, location)


def _read_msr_vtt(document: dict[str, Any], name: str) -> Rows:
    captions: dict[str, list[Any]] = defaultdict(list)
    for location, sentence in _objects(document, "sentences", name):
        captions[_key(sentence, "video_id", location)].append(sentence.get("caption"))
    for location, video in _objects(document, "videos", name):
        uri = _key(video, "video_id", location)
        fields = _video(
            uri,
            captions=captions.pop(uri, ()),
            split=video.get("split"),
            metadata=video,
            omitted=("video_id", "id", "split"),
        )
        yield location, fields
    yield from ((f"{name}:sentences", _video(uri, captions=texts)) for uri, texts in captions.items())


def _read_vatex(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        item = _typed(item, dict, location)
        captions = _list(item, "enCap", location)
        fields = _video(
            _key(item, "videoID", location), captions=captions, metadata=item, omitted=("videoID", "enCap")
        )
        yield location, fields


def _read_coco(document: dict[str, Any], name: str) -> Rows:
    of = "videos" if "videos" in document else "images"
    captions: dict[str, list[Any]] = defaultdict(list)
    for location, annotation in _objects(document, "annotations", name):
        if not isinstance(annotation.get("caption"), str):
            keys = ", ".join(repr(key[:40]) for key in islice(annotation, _MAX_KEYS))
            raise InvalidInput.at(
                location, f"It has no 'caption'; its keys are {keys}.", "Export captions, not boxes."
            )
        key = "video_id" if "video_id" in annotation else "image_id"
        captions[_key(annotation, key, location)].append(annotation["caption"])
    for location, video in _objects(document, of, name):
        columns = file_columns(video)
        if not columns:
            raise InvalidInput.at(location, "It has no 'file_name'.", "Name the file of each video.")
        uri = _key(video, columns[0], location)
        texts = captions.pop(_key(video, "id", location), ())
        fields = _video(
            uri, captions=texts, split=video.get("split"), metadata=video, omitted=(*columns, "id", "split")
        )
        yield location, fields
    # A cut file may keep all annotations. Their IDs are named so that they match no file.
    yield from (
        (f"{name}:annotations", _video(f"{of}.id={uri}", captions=texts)) for uri, texts in captions.items()
    )


def _read_dense(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        item = _typed(item, dict, location)
        columns = file_columns(item)
        if not columns:
            raise InvalidInput.at(location, "It has no 'video_id'.", "Name the video of each object.")
        fields = _video(
            _key(item, columns[0], location),
            transcript=_transcript(item, "timestamps", "sentences", location),
            split=item.get("split"),
            metadata=item,
            omitted=(*columns, "sentences", "timestamps", "split"),
        )
        yield location, fields


def _format(
    name: str,
    layout: Literal["document", "objects", "mapping"],
    keys: str,
    read: Callable[[Any, str], Rows] | None,
) -> CaptionFormat:
    return CaptionFormat(name, layout, frozenset(keys.split()), read)


VIDEO_OBJECTS = CaptionFormat("videos", "objects", frozenset(("file", "caption")), _read_objects, False)
_EMPTY = CaptionFormat("empty", "document", frozenset(), None)
FORMATS = (
    _format("MSR-VTT", "document", "videos sentences", _read_msr_vtt),
    _format("COCO captions", "document", "images annotations", _read_coco),
    _format("COCO captions", "document", "videos annotations", _read_coco),
    _format("ActivityNet Captions", "mapping", "timestamps sentences", _read_dense),
    _format("dense captions", "objects", "timestamps sentences", _read_dense),
    _format("VATEX", "objects", "videoID enCap", _read_vatex),
    _format("description of a Hugging Face data set", "document", "features splits", None),
    _format("state of a Hugging Face data set", "document", "_data_files", None),
    _format("description of a yt-dlp playlist", "document", "extractor webpage_url", None),
    _format("description of a yt-dlp playlist", "document", "_type entries", None),
    _format("live chat of yt-dlp", "objects", "replayChatItemAction", None),
    _format("metadata of Google Takeout", "document", "photoTakenTime", None),
    _format("album of Google Takeout", "document", "title access date", None),
    _format("recognized speech", "document", "segments language", None),
    _format("recognized speech", "document", "transcription", None),
    _format("recognized speech", "document", "chunks text", None),
    _format("statistics of video2dataset", "document", "successes failed_to_download", None),
)
