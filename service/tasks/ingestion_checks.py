"""Validate a task's specification beyond its schema. Every error names the field and gives a hint.

Methods and settings are checked against the task's backbone without loading either.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from sqlalchemy import select

from cinestrata_schemas.tasks import AppendSpec, TaskSpec, VideoSpec
from cinestrata_schemas.videos import MAX_CUES, Cue
from media import MediaError
from models.backbones import TRANSFORMERS_PREFIX, has_open_blocks
from models.errors import ModelError
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.catalog.video_texts import SourcedText
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput
from service.core.settings import METHOD_NAMES
from service.core.text_rules import UNSTORABLE
from service.storage.library_backbone import default_method, library_backbone
from service.storage.library_files import check_video_uri, normalize_uri

_MAX_ERRORS = 20  # enough to start correcting a file; nobody reads 100,000 errors
_MAX_DEPTH = 16

Spec = TypeVar("Spec", TaskSpec, AppendSpec)


def make_spec(kind: type[Spec], **fields: Any) -> Spec:
    """Make a task or an append from its fields; raise InvalidInput."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInput.from_pydantic(error.errors()) from None


def validate_spec(spec: Spec) -> Spec:
    """Validate a task or an append against the limits and the files that it names.

    Returns it with its method, settings and backbone, and with normalized URIs and captions. Raises InvalidInput, which
    lists up to 20 fields.
    """
    fields: dict[str, Any] = {}
    errors = _videos_errors(spec.videos)
    if isinstance(spec, TaskSpec):
        fields = task_fields(spec.method, spec.settings, spec.backbone)
        message, hint = "Only an appended video replaces another.", "Append it to a domain."
        replacing = [number for number, video in enumerate(spec.videos) if video.replaces is not None]
        refused = (FieldError(f"videos[{number}].replaces", message, hint) for number in replacing)
        errors = chain(task_errors(**fields), refused, errors)
    raise_first(errors)
    fields["videos"] = [
        video.model_copy(
            update={
                "uri": normalize_uri(video.uri),
                "captions": [normalize_caption(caption) for caption in video.captions],
            }
        )
        for video in spec.videos
    ]
    return spec.model_copy(update=fields)


def validate_edit(
    captions: Sequence[str], metadata: dict[str, Any], transcript: Sequence[Cue] = ()
) -> tuple[list[str], list[SourcedText]]:
    """Validate a video's new content, and return its captions and transcript as they are stored; raise InvalidInput."""
    raise_first(
        chain(
            _captions_errors("captions", captions),
            _json_errors("metadata", metadata, request_limits.MAX_METADATA_BYTES),
            _transcript_errors("transcript", transcript),
        )
    )
    return [normalize_caption(caption) for caption in captions], normalize_transcript(transcript)


def raise_first(errors: Iterable[FieldError]) -> None:
    first = list(islice(errors, _MAX_ERRORS))
    if first:
        raise InvalidInput.of(first)


def normalize_caption(caption: str) -> str:
    """Normalize a caption for storage: composed characters (NFC) and single spaces, otherwise unchanged."""
    return " ".join(unicodedata.normalize("NFC", caption).split())


def normalize_transcript(cues: Sequence[Cue]) -> list[SourcedText]:
    """Normalize a transcript for storage: ordered by time, with texts normalized like captions."""
    texts = (SourcedText(cue.start, cue.end, normalize_caption(cue.text), cue.source) for cue in cues)
    return sorted(texts, key=lambda text: text[:3])


def task_fields(method: str | None, settings: dict[str, Any] | None, backbone: str | None) -> dict[str, Any]:
    """Complete a task's method, settings and backbone with their defaults."""
    backbone = backbone or library_backbone()
    return {"method": method or default_method(), "settings": settings or {}, "backbone": backbone}


def task_errors(method: str, settings: dict[str, Any], backbone: str) -> Iterator[FieldError]:
    """Find the errors in a task's method, settings and backbone."""
    if error := _find_backbone_error(backbone) or find_method_error(method, backbone):
        yield error
    if method in METHOD_NAMES:
        yield from settings_errors(method, settings)
    yield from _json_errors("settings", settings, request_limits.MAX_SETTINGS_BYTES)


def _videos_errors(videos: list[VideoSpec]) -> Iterator[FieldError]:
    limit = request_limits.MAX_VIDEOS_PER_TASK
    if error := _count_error("videos", len(videos), limit, "videos are more than a task may have"):
        yield error
        return
    yield from duplicate_ids(videos)
    for number, video in enumerate(videos):
        field = f"videos[{number}]"
        if video.id in (".", ".."):
            message = "An ID cannot be '.' or '..': it is part of URLs."
            yield FieldError(f"{field}.id", message, "Choose another.")
        yield from uri_errors(f"{field}.uri", video.uri)
        yield from content_errors(field, video)


def duplicate_ids(videos: Sequence[VideoSpec]) -> Iterator[FieldError]:
    """Find the videos that repeat an ID."""
    first: dict[str, int] = {}
    for number, video in enumerate(videos):
        if video.id is not None and first.setdefault(video.id, number) != number:
            message = f"videos[{first[video.id]}].id is the same."
            yield FieldError(f"videos[{number}].id", message, "Give every video its own ID, or omit the IDs.")


def content_errors(field: str, video: VideoSpec) -> Iterator[FieldError]:
    """Find the errors in a video's captions, transcript and metadata."""
    yield from _captions_errors(f"{field}.captions", video.captions)
    yield from _transcript_errors(f"{field}.transcript", video.transcript)
    yield from _json_errors(f"{field}.metadata", video.metadata or {}, request_limits.MAX_METADATA_BYTES)


def _count_error(field: str, count: int, limit: int, problem: str) -> FieldError | None:
    return FieldError(field, f"{count} {problem}.", f"Keep at most {limit}.") if count > limit else None


def _captions_errors(field: str, captions: Sequence[str]) -> Iterator[FieldError]:
    problem = "captions are more than a video may have"
    if error := _count_error(field, len(captions), request_limits.MAX_CAPTIONS, problem):
        yield error
        return
    for number, caption in enumerate(captions):
        yield from _text_errors(f"{field}[{number}]", "caption", caption, request_limits.MAX_CAPTION_CHARS)


def _transcript_errors(field: str, cues: Sequence[Cue]) -> Iterator[FieldError]:
    chars = sum(len(cue.text) for cue in cues)
    error = _count_error(field, len(cues), MAX_CUES, "texts are more than the transcript of a video may have")
    limit = request_limits.MAX_TRANSCRIPT_CHARS
    if error := error or _count_error(field, chars, limit, "characters are more than a transcript may have"):
        yield error
        return
    for number, cue in enumerate(cues):
        if not cue.start < cue.end:
            message = f"The text ends at {cue.end:g} s and starts at {cue.start:g} s."
            yield FieldError(f"{field}[{number}].end", message, "Give an end after the start.")
        yield from _text_errors(f"{field}[{number}].text", "text", cue.text, request_limits.MAX_CUE_CHARS)


def uri_errors(field: str, uri: str) -> Iterator[FieldError]:
    """Find the errors in a video's URI."""
    if any(unicodedata.category(c) == "Cc" for c in uri):
        yield FieldError(field, "The path contains a control character.", "Remove it.")
        return
    try:
        check_video_uri(uri)
    except MediaError as error:
        yield FieldError(field, f"{error.reason}.")
    except (OSError, ValueError):
        yield FieldError(field, "The path cannot be read.", "Name a file below the media root.")


def _text_errors(field: str, kind: str, text: str, max_chars: int) -> Iterator[FieldError]:
    if len(text) > max_chars:
        yield FieldError(
            field, f"The {kind} has {len(text)} characters.", f"Shorten it to at most {max_chars}."
        )
    elif not text.strip():
        yield FieldError(field, f"The {kind} is blank.", f"Describe the video, or omit the {kind}.")
    elif any(unicodedata.category(c) in ("Cc", "Cs") and not c.isspace() for c in text):
        yield FieldError(field, f"The {kind} contains a control character.", "Remove it.")


def _json_errors(field: str, value: dict[str, Any], max_bytes: int) -> Iterator[FieldError]:
    problem = storage_problem(value)
    if problem:
        yield FieldError(field, problem, "Use plain JSON values only.")
        return
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > max_bytes:
        yield FieldError(field, f"It takes {size} bytes.", f"Keep it below {max_bytes} bytes as JSON.")


def storage_problem(value: Any, depth: int = 0) -> str | None:
    """Explain why a value would not survive storage in either database; None if it would."""
    if depth > _MAX_DEPTH:
        return f"It is nested more than {_MAX_DEPTH} levels deep."
    if isinstance(value, str):
        return "A string contains a NUL or a lone surrogate." if UNSTORABLE.search(value) else None
    if isinstance(value, float) and not math.isfinite(value):
        return "A number is not finite."
    if isinstance(value, int) and abs(value) >= 2**63:
        return "A number does not fit into 64 bits."
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        parts = value
    else:
        return None
    return next((p for part in parts if (p := storage_problem(part, depth + 1))), None)


_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "null": "null",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}


def find_method_error(method: str, backbone: str) -> FieldError | None:
    """Explain why a method cannot run; None if it can."""
    if method not in METHOD_NAMES:
        return FieldError("method", "The method does not exist.", f"Choose one of {', '.join(METHOD_NAMES)}.")
    if has_open_blocks(backbone):
        return None
    if not _recipe(method).get("needs_open_blocks"):
        return None
    others = ", ".join(name for name in METHOD_NAMES if not _recipe(name).get("needs_open_blocks"))
    return FieldError(
        "method",
        f"Method {method!r} changes the backbone's towers, but backbone {backbone!r} is a frozen encoder.",
        f"Choose one of {others}; or use backbone 'small', or a plain CLIP such as 'open_clip:ViT-B-32/openai'.",
    )


def _find_backbone_error(name: str) -> FieldError | None:
    """Explain why a backbone cannot be used; None if it can. The workers report if its weights are missing."""
    with session_scope() as session:
        used = session.scalar(select(Task.id).where(Task.backbone == name).limit(1))
    if used is not None or name == library_backbone():
        return None
    source = name.partition("/")[2]
    if name.startswith(TRANSFORMERS_PREFIX) or "/" in source or (source and Path(source).exists()):
        # The worker would read any file or repository.
        message = "Only the server's configuration can name a model by its folder, file or repository."
        return FieldError("backbone", message, "Set CINESTRATA_BACKBONE to it, and leave the field out.")
    # Imported here: command-line clients do not need the library of backbones.
    from models.backbones.backbone_loading import frame_spec

    try:
        frame_spec(name)
    except ModelError as error:
        return FieldError("backbone", f"{error}.")
    return None


def settings_errors(method: str, settings: Mapping[str, Any]) -> Iterator[FieldError]:
    """Find unknown settings and values out of range."""
    from jsonschema import Draft202012Validator

    schemas = _setting_schemas().get(method, {})
    for name, value in settings.items():
        field = f"settings.{name}"
        if name in schemas:
            if error := next(Draft202012Validator(schemas[name]).iter_errors(value), None):
                yield FieldError(field, f"{error.message[:200]}.", _describe(schemas[name]))
        else:
            closest = get_close_matches(name, schemas, n=1)
            hint = f"Did you mean {closest[0]!r}? " if closest else ""
            yield FieldError(
                field,
                f"Method {method!r} has no setting {name!r}.",
                f"{hint}Its settings are {', '.join(sorted(schemas))}.",
            )
    if settings.get("last_epoch") == "all" and settings.get("epochs") == 1:
        yield FieldError(
            "settings.last_epoch",
            "A single epoch leaves no earlier state to measure recall with.",
            "Send at least 2 epochs.",
        )


def learns_all_captions(method: str, settings: Mapping[str, Any]) -> bool:
    """Check whether a method learns captions that no user held out, and measures them by a solution without them."""
    is_closed_form = method in METHOD_NAMES and bool(_recipe(method).get("closed_form"))
    return is_closed_form or settings.get("last_epoch") == "all"


def _describe(schema: Mapping[str, Any]) -> str:
    """Describe what to send for a setting."""
    if "const" in schema:
        return f"Send {schema['const']}, or leave it out."
    if "enum" in schema:
        return f"Send one of {', '.join(map(str, schema['enum']))}."
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    bounds = [f" {words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
    return f"Send {' or '.join(_TYPES[kind] for kind in types)}{' and'.join(bounds)}."


@cache
def _recipe(method: str) -> Mapping[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load(_read_config(f"{method}.yaml"))
    return recipe


@cache
def _setting_schemas() -> Mapping[str, Any]:
    """Read the JSON Schema of the settings of each method."""
    schemas: dict[str, Any] = json.loads(_read_config("setting_schemas.json"))
    return schemas


def _read_config(name: str) -> str:
    return (resources.files("trainer") / "methods" / "configs" / name).read_text(encoding="utf-8")
