"""The caption formats (``FORMATS``): which keys identify each, and how its content becomes videos.

A format yields the fields of a video as in ``POST /tasks``; times of dense captions become the ``transcript``. The
``uri`` is a path or an ID, that is, the file name's stem. Timed texts never become captions of the whole video.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, islice, product
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from media.video_limits import VIDEO_SUFFIXES
from service.core.errors import InvalidInput
from service.tasks.manifests.text_files import plain_fields, shorten_caption
from service.tasks.manifests.video_tables import (
    PLAIN_KEYS,
    SPLITS,
    TELLING_COLUMNS,
    UnknownTable,
    file_columns,
    object_fields,
)

Rows = Iterator[tuple[str, Any]]  # location and fields of each video
Layout = Literal["document", "objects", "mapping"]

_SHORTEST = 1.0  # seconds, for a timed text that does not end after its start
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
_TABLE_KEYS = ("file", "file_name", "video")  # no description of a data set has them
_MAX_KEYS = 12  # in an error


@dataclass(frozen=True)
class CaptionFormat:
    """A caption format."""

    name: str
    # document: an object with ``keys``; objects: a list, or JSON lines, of these; mapping: these by video ID
    layout: Layout
    keys: frozenset[str]  # together identify this format
    # Yields the videos of a document, or of ``(location, object)`` pairs. None: the file only describes a data set.
    read: Callable[[Any, str], Rows] | None
    is_partial: bool = True  # whether such files often list videos that are missing, as data sets do


def recognize(value: Any, location: str) -> CaptionFormat:
    """Recognize the format of a JSON document, or of the first object in JSON lines; raise InvalidInput."""
    if value == {}:
        return _EMPTY
    layouts = _keys_by_layout(value)
    for candidate in FORMATS:
        keys = layouts.get(candidate.layout, frozenset())
        if candidate.keys <= keys and (candidate.read or keys.isdisjoint(_TABLE_KEYS)):
            return candidate
    first = (
        next((item for item in value if isinstance(item, dict)), None) if isinstance(value, list) else value
    )
    if isinstance(first, dict) and any(isinstance(first[key], str | int) for key in file_columns(first)):
        return VIDEO_OBJECTS
    if isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()):
        layouts = {"mapping": frozenset(chain.from_iterable(value.values()))}  # its own keys are IDs
    is_meant = any(key.lower() in TELLING_COLUMNS for key in chain(*layouts.values()))
    raise (InvalidInput if is_meant else UnknownTable).at(location, *_not_understood(layouts))


def read_document_rows(caption_format: CaptionFormat, value: Any, name: str) -> Rows:
    """Read the location and fields of each video in a JSON document; raise InvalidInput."""
    if caption_format.read is None:
        return iter(())
    if caption_format.layout == "document":
        return caption_format.read(value, name)
    if isinstance(value, list):
        return caption_format.read(((f"{name}:[{number}]", item) for number, item in enumerate(value)), name)
    if caption_format.layout == "objects":
        return caption_format.read([(name, value)], name)
    items = ({**_typed(item, dict, f"{name}:{key[:80]}"), "video_id": key} for key, item in value.items())
    return caption_format.read(((f"{name}:{item['video_id'][:80]}", item) for item in items), name)


def nearest_format(keys: Iterable[str]) -> str:
    """Name the most similar format and its keys, as part of a sentence."""
    given = [key[:80].lower() for key in islice(keys, 100)]

    def similarity(candidate: CaptionFormat) -> float:
        spellings = PLAIN_KEYS if candidate is VIDEO_OBJECTS else [(key.lower(),) for key in candidate.keys]
        pairs = (product(keys, given) for keys in spellings)
        ratios = (max((SequenceMatcher(None, *pair).ratio() for pair in each), default=0) for each in pairs)
        return sum(ratios) / len(spellings)

    nearest = max((candidate for candidate in (*FORMATS, VIDEO_OBJECTS) if candidate.read), key=similarity)
    return f"{nearest.name}, with {' and '.join(sorted(map(repr, nearest.keys)))}"


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
        f"The nearest format is {nearest_format(keys)}. "
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


def _video(
    uri: str,
    *,
    captions: Iterable[Any] = (),
    transcript: Iterable[dict[str, Any]] = (),
    split: Any = None,
    metadata: Mapping[str, Any] | None = None,
    omitted: Iterable[str] = (),
) -> dict[str, Any]:
    texts = (shorten_caption(value) for value in captions if isinstance(value, str))
    fields: dict[str, Any] = {"uri": uri, "captions": list(filter(None, texts))}
    if spoken := [cue for cue in transcript if cue["text"]]:
        fields["transcript"] = spoken
    if isinstance(split, str) and split.lower() in SPLITS:
        fields["split"] = SPLITS[split.lower()]
    if plain := plain_fields(metadata or {}, frozenset(omitted)):
        fields["metadata"] = plain
    return fields


def _described(uri: str, record: Mapping[str, Any], omitted: Iterable[str], **texts: Any) -> dict[str, Any]:
    """Build the fields of a video whose record has its split, and else metadata."""
    return _video(uri, split=record.get("split"), metadata=record, omitted=(*omitted, "split"), **texts)


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


def _transcript(record: Mapping[str, Any], location: str) -> list[dict[str, Any]]:
    spans, sentences = _list(record, "timestamps", location), _list(record, "sentences", location)
    if len(spans) != len(sentences):
        message = f"There are {len(spans)} times and {len(sentences)} texts."
        hint = "Give one item of 'timestamps' for each of 'sentences'."
        raise InvalidInput.at(f"{location}.timestamps", message, hint)
    pairs = enumerate(zip(spans, sentences, strict=True))
    return [_cue(span, text, f"{location}.timestamps[{number}]") for number, (span, text) in pairs]


def _read_objects(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        yield location, object_fields(item, location)


def _read_msr_vtt(document: dict[str, Any], name: str) -> Rows:
    captions: dict[str, list[Any]] = defaultdict(list)
    for location, sentence in _objects(document, "sentences", name):
        captions[_key(sentence, "video_id", location)].append(sentence.get("caption"))
    for location, video in _objects(document, "videos", name):
        uri = _key(video, "video_id", location)
        texts = captions.pop(uri, ())
        yield location, _described(uri, video, captions=texts, omitted=("video_id", "id"))
    yield from ((f"{name}:sentences", _video(uri, captions=texts)) for uri, texts in captions.items())


def _read_vatex(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        item = _typed(item, dict, location)
        uri, captions = _key(item, "videoID", location), _list(item, "enCap", location)
        yield location, _video(uri, captions=captions, metadata=item, omitted=("videoID", "enCap"))


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
        yield location, _described(uri, video, captions=texts, omitted=(*columns, "id"))
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
        uri, transcript = _key(item, columns[0], location), _transcript(item, location)
        yield location, _described(uri, item, transcript=transcript, omitted=(*columns, "sentences"))


def _read_youcook(document: dict[str, Any], name: str) -> Rows:
    for uri, item in _typed(document["database"], dict, f"{name}:database").items():
        location = f"{name}:database.{uri[:80]}"
        item = _typed(item, dict, location)
        parts = list(_objects(item, "annotations", location))
        cues = [_cue(part.get("segment"), part.get("sentence", ""), place) for place, part in parts]
        yield (
            location,
            _video(uri, transcript=cues, split=item.get("subset"), metadata=item, omitted=("subset",)),
        )


def _read_label_studio(items: Iterable[tuple[str, Any]], name: str) -> Rows:
    for location, item in items:
        item = _typed(item, dict, location)
        data = _typed(item.get("data"), dict, f"{location}.data")
        texts = {key: value for key, value in data.items() if isinstance(value, str)}
        paths = {key: _label_studio_path(value) for key, value in texts.items()}
        key = next((key for key, path in paths.items() if path.lower().endswith(tuple(VIDEO_SUFFIXES))), None)
        if key is None:
            raise InvalidInput.at(
                f"{location}.data", "The task has no video field.", "Export it with its data."
            )
        captions: list[Any] = []
        cues: list[dict[str, Any]] = []
        choices: dict[str, dict[str, None]] = {}
        metadata: dict[str, Any] = {other: value for other, value in data.items() if other != key}
        annotated = "annotations" if "annotations" in item else "completions"
        for place, annotation in _objects(item, annotated, location):
            if annotation.get("was_cancelled"):
                continue
            for where, result in _objects(annotation, "result", place):
                value = _typed(result.get("value"), dict, f"{where}.value")
                if isinstance(written := value.get("text"), str | list):
                    given = [written] if isinstance(written, str) else written
                    if "start" in value and "end" in value:
                        cues += [_cue([value["start"], value["end"]], text, where) for text in given]
                    else:
                        captions += given
                for kind in ("choices", "labels", "timelinelabels", "taxonomy"):
                    chosen = value.get(kind)
                    if isinstance(chosen, list) and isinstance(result.get("from_name"), str):
                        names = choices.setdefault(result["from_name"], {})
                        names.update(dict.fromkeys(name for name in chosen if isinstance(name, str)))
        for field, names in choices.items():
            given = metadata.get(field, [])
            metadata[field] = list(dict.fromkeys([*(given if isinstance(given, list) else [given]), *names]))
        yield location, _video(paths[key], captions=captions, transcript=cues, metadata=metadata)


def _label_studio_path(value: str) -> str:
    """Extract the path of a file served by Label Studio; for uploads, without the server's folder."""
    try:
        parts = urlsplit(value)
        if parts.path.startswith("/data/local-files"):
            return unquote(parse_qs(parts.query)["d"][0])
        return unquote(parts.path).rpartition("/")[2] if parts.path.startswith("/data/") else value
    except (ValueError, KeyError):
        return value


def _read_fiftyone_samples(document: dict[str, Any], name: str) -> Rows:
    for location, sample in _objects(document, "samples", name):
        uri = _typed(sample.get("filepath"), str, f"{location}.filepath")
        metadata: dict[str, Any] = {}
        captions: list[Any] = []
        tags = [tag for tag in _list(sample, "tags", location) if isinstance(tag, str)]
        for key, value in sample.items():
            label = value.get("label") if isinstance(value, dict) else None
            if key.lower() in ("caption", "captions", "text", "description") and label is None:
                captions += value if isinstance(value, list) else [value]
            elif key not in ("filepath", "tags", "metadata"):
                metadata[key] = label if isinstance(label, str) else _fiftyone_labels(value)
        split = next((tag for tag in tags if tag.lower() in SPLITS), None)
        metadata["tags"] = [tag for tag in tags if tag != split]
        yield location, _video(uri, captions=captions, split=split, metadata=metadata)


def _fiftyone_labels(value: Any) -> Any:
    """Collect the labels of classifications or temporal detections; other values stay unchanged."""
    if not isinstance(value, dict):
        return value
    parts = value.get("classifications", value.get("detections"))
    labels = (
        (part.get("label") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    )
    return list(dict.fromkeys(label for label in labels if isinstance(label, str)))


def _read_fiftyone_labels(document: dict[str, Any], name: str) -> Rows:
    classes = _list(document, "classes", f"{name}:classes")

    def text_of(label: Any, location: str) -> str:
        if isinstance(label, int) and 0 <= label < len(classes):
            label = classes[label]
        return str(_typed(label, str, location))

    for uri, label in _typed(document["labels"], dict, f"{name}:labels").items():
        location = f"{name}:labels.{uri[:80]}"
        if isinstance(label, list):  # temporal detections
            parts = [_typed(part, dict, location) for part in label]
            cues = [_cue(p.get("timestamps"), text_of(p.get("label"), location), location) for p in parts]
            yield location, _video(uri, transcript=cues)
        elif label is not None:
            yield location, _video(uri, metadata={"label": text_of(label, location)})


def _format(
    name: str, layout: Layout, keys: str, read: Callable[[Any, str], Rows] | None = None
) -> CaptionFormat:
    return CaptionFormat(name, layout, frozenset(keys.split()), read)


VIDEO_OBJECTS = CaptionFormat("videos", "objects", frozenset(("file", "caption")), _read_objects, False)
_EMPTY = CaptionFormat("empty", "document", frozenset(), None)
FORMATS = (
    _format("MSR-VTT", "document", "videos sentences", _read_msr_vtt),
    _format("COCO captions", "document", "images annotations", _read_coco),
    _format("COCO captions", "document", "videos annotations", _read_coco),
    _format("YouCook2", "document", "database", _read_youcook),
    _format("FiftyOne samples", "document", "samples", _read_fiftyone_samples),
    _format("FiftyOne labels", "document", "classes labels", _read_fiftyone_labels),
    _format("ActivityNet Captions", "mapping", "timestamps sentences", _read_dense),
    _format("dense captions", "objects", "timestamps sentences", _read_dense),
    _format("VATEX", "objects", "videoID enCap", _read_vatex),
    _format("Label Studio", "objects", "data annotations", _read_label_studio),
    _format("Label Studio", "objects", "data completions", _read_label_studio),
    _format("description of a FiftyOne data set", "document", "sample_fields"),
    _format("description of a FiftyOne data set", "document", "media_type"),
    _format("description of a Hugging Face data set", "document", "features splits"),
    _format("state of a Hugging Face data set", "document", "_data_files"),
    _format("description of a yt-dlp playlist", "document", "extractor webpage_url"),
    _format("description of a yt-dlp playlist", "document", "_type entries"),
    _format("live chat of yt-dlp", "objects", "replayChatItemAction"),
    _format("metadata of Google Takeout", "document", "photoTakenTime"),
    _format("album of Google Takeout", "document", "title access date"),
    _format("recognized speech", "document", "segments language"),
    _format("recognized speech", "document", "transcription"),
    _format("recognized speech", "document", "chunks text"),
    _format("statistics of video2dataset", "document", "successes failed_to_download"),
)
