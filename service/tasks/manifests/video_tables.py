"""Read tables of videos: which columns are which video fields.

Files are in a column ``uri``, ``file``, ``file_name``, ``filename``, ``path`` or ``video``; captions in ``captions``,
``caption``, ``text`` or ``description``. Data set tables without these may have a column of IDs, such as
``video_id``, and one of sentences. ``id``, ``split``, ``metadata`` and ``transcript`` are video fields; all other
columns are metadata. Names are not case-sensitive. LSMDC tables have no header.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from cinestrata_schemas.tasks import VideoSpec
from service.core.errors import InvalidInput
from service.tasks.manifests.text_files import check_line_number, is_blank, parse_json

FILE_COLUMNS = ("file", "file_name", "filename", "path", "video", "uri")

_ID_COLUMNS = ("video_id", "videoid", "clip_id", "clip_name", "video_name", "filepath", "video_path")
_CAPTION_COLUMNS = ("caption", "captions", "text", "description")
_SENTENCE_COLUMNS = ("sentence", "sentences", "encap")
PLAIN_KEYS = ((*FILE_COLUMNS, *_ID_COLUMNS), _CAPTION_COLUMNS)  # for a file and its captions
# Columns that nothing else than a table of videos has; descriptions are also those of albums and other things.
TELLING_COLUMNS = frozenset((*PLAIN_KEYS[0], *_CAPTION_COLUMNS[:2], *_SENTENCE_COLUMNS))
_FIELDS = {
    **dict.fromkeys(FILE_COLUMNS, "uri"),
    **dict.fromkeys(_CAPTION_COLUMNS, "captions"),
    **{field: field for field in ("id", "split", "metadata", "transcript")},
}
SPLITS = {  # a data set's name for a split → the split of a video
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_TEXT = r"""(?:'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")"""
_PYTHON_TEXT = re.compile(_TEXT)
_PYTHON_LIST = re.compile(
    rf"(?:array\()?([\[(]\s*)++(?:(?:{_TEXT}|None|nan)[\s,]*+)*+[\])]+(?:, dtype=\w+\))?"
)
_JSON_FIELDS = ("captions", "metadata", "transcript")  # whose cells may be JSON

# LSMDC: clip, aligned and extracted start and end, and sentence. A clip's name ends with its times in the movie.
_LSMDC_FIELDS = ("uri", "start_aligned", "end_aligned", "start_extracted", "end_extracted", "captions")
_LSMDC_CLIP = re.compile(r".*_\d\d\.\d\d\.\d\d\.\d+-\d\d\.\d\d\.\d\d\.\d+")


class UnknownTable(InvalidInput):
    """A file has none of the columns or keys of a table of videos."""


def file_columns(names: Iterable[str]) -> list[str]:
    """Find the columns that name a row's file: the file columns, or else the first ID column."""
    by_key = {name.strip().lower(): name for name in names}
    files = [by_key[key] for key in FILE_COLUMNS if key in by_key]
    return files or [by_key[key] for key in _ID_COLUMNS if key in by_key][:1]


def has_files(names: Iterable[str]) -> bool:
    """Check whether a column names files. Data set IDs often include videos that are missing from the folder."""
    return not {name.strip().lower() for name in names}.isdisjoint(FILE_COLUMNS)


def map_columns(names: Sequence[str], location: str) -> list[str]:
    """Map columns to fields. Metadata columns keep their names; unnamed columns are empty; raise InvalidInput."""
    keys = [name.strip().lower() for name in names]
    meanings = dict(_FIELDS)
    for columns, others, field in (
        (FILE_COLUMNS, _ID_COLUMNS, "uri"),
        (_CAPTION_COLUMNS, _SENTENCE_COLUMNS, "captions"),
    ):
        if not set(columns) & set(keys):
            meanings |= dict.fromkeys([key for key in others if key in keys][:1], field)
    fields = [meanings.get(key, name.strip()) for key, name in zip(keys, names, strict=True)]
    first: dict[str, str] = {}
    for name, field in zip(names, fields, strict=True):
        if field and field in first:
            message = f"The columns {first[field].strip()!r} and {name.strip()!r} have the same meaning."
            raise InvalidInput.at(location, message, "Remove or rename one of them.")
        first[field] = name
    if "uri" not in first:
        shown = ", ".join(repr(name.strip()[:40]) for name in names[:12])
        is_meant = not {*_CAPTION_COLUMNS, *_SENTENCE_COLUMNS}.isdisjoint(keys)
        raise (InvalidInput if is_meant else UnknownTable).at(
            location,
            f"There is no column {', '.join(map(repr, FILE_COLUMNS[:-1]))} or {FILE_COLUMNS[-1]!r} of files, and none "
            f"of IDs such as {_ID_COLUMNS[0]!r}; the columns are {shown}{' and more' if len(names) > 12 else ''}.",
            "Name the columns in the first line, as in: file_name,text.",
        )
    return fields


def object_fields(fields: Any, location: str) -> Any:
    """Read a JSON object's video fields; without ``uri``, its keys mean the same as columns."""
    if not isinstance(fields, dict):
        return fields  # refused by the validation
    if "uri" not in fields and file_columns(fields):
        fields = dict(zip(map_columns(list(fields), location), fields.values(), strict=True))
        if isinstance(split := fields.get("split"), str):
            fields["split"] = SPLITS.get(split.lower(), split)
        captions = fields.get("captions", [])
        if isinstance(captions, str):
            listed = _python_list(captions.strip())
            captions = [captions] if listed is None else listed
        fields["captions"] = captions or []
    metadata = fields.get("metadata") or {}
    unknown = {key: value for key, value in fields.items() if key not in VideoSpec.model_fields}
    if not unknown or not isinstance(metadata, dict):
        return fields
    video_fields = {key: value for key, value in fields.items() if key not in unknown}
    return video_fields | {"metadata": unknown | metadata}


def row_fields(fields: Sequence[str], cells: Sequence[str], location: str) -> dict[str, Any]:
    """Read a row's fields as in ``POST /tasks``; captions are separated by ``|``; {} if empty; raise InvalidInput."""
    values: dict[str, Any] = {
        field: value
        for field, cell in zip((*fields, *[""] * (len(cells) - len(fields))), cells, strict=False)
        if (value := cell.strip())
    }
    if "" in values:
        raise InvalidInput.at(
            location, "There are more cells than columns.", "Quote cells that contain the delimiter."
        )
    if not values:
        return {}
    json_fields = [field for field in _JSON_FIELDS if field in values]
    parsed = {field: _parse_cell(values.pop(field), f"{location}.{field}") for field in json_fields}
    video: dict[str, Any] = {"uri": values.pop("uri", ""), "captions": _captions(parsed.pop("captions", ""))}
    video |= {field: values.pop(field) for field in ("id", "split") if field in values}
    if "split" in video:
        video["split"] = SPLITS.get(video["split"].lower(), video["split"])
    metadata = parsed.pop("metadata", {})
    metadata = values | (metadata if isinstance(metadata, dict) else {"metadata": metadata})
    return video | parsed | ({"metadata": metadata} if metadata else {})


def _parse_cell(cell: str, location: str) -> Any:
    """Parse a cell that is a JSON list or object, as in exports; other cells stay unchanged."""
    is_json = (cell[0], cell[-1]) in (("[", "]"), ("{", "}"))
    try:
        return parse_json(cell, location) if is_json else cell
    except InvalidInput:
        return cell  # a text in brackets


def _captions(cell: Any) -> list[str]:
    if isinstance(cell, str):
        listed = _python_list(cell)
        cell = cell.split("|") if listed is None else listed
    texts = cell if isinstance(cell, list) else [cell]
    return [text for text in map(str, texts) if text.strip()]


def _python_list(text: str) -> list[str] | None:
    """Parse a list of texts as Python, NumPy (without commas) or pandas print it; None for other texts."""
    if not _PYTHON_LIST.fullmatch(text):
        return None
    with suppress(SyntaxError, ValueError):  # an invalid escape
        texts = (ast.literal_eval(each) for each in _PYTHON_TEXT.findall(text))
        return [each for each in texts if each.strip()]
    return None


_DELIMITERS = (",", ";", "\t", "|")


def read_delimited_table(lines: Iterable[str], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the location and video fields of each row. The header determines the delimiter; raise InvalidInput."""
    lines = _limit(chain.from_iterable(map(_split_returns, lines)), name)
    blank = 0
    header = ""
    for header in lines:
        if not is_blank(header.encode()):
            break
        blank += 1
    if is_blank(header.encode()):
        return
    # A quoted cell that never ends is refused at the reader's field limit (131,072 characters).
    fields: list[str] = []
    if is_headless := is_lsmdc(header):
        fields = [*_LSMDC_FIELDS]
        reader = csv.reader(chain([header], lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(chain([header], lines), delimiter=find_delimiter(header), strict=True)
    number = blank + 1
    try:
        for cells in reader:
            location = f"{name}:{number}"
            if is_headless:
                # As JSON: the sentence may contain the caption separator.
                cells = [*cells[:-1], json.dumps(cells[-1:])]
            if not fields:
                fields = map_columns(cells, location)
            elif video := row_fields(fields, cells, location):
                yield location, video
            number = blank + reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput.at(
            f"{name}:{number}", f"The row that begins here is not a table row: {error}.", "Check its quotes."
        ) from None


def is_lsmdc(line: str) -> bool:
    """Check whether a line is a row of an LSMDC table, which has no header."""
    cells = line.split("\t")
    return len(cells) == len(_LSMDC_FIELDS) and _LSMDC_CLIP.fullmatch(cells[0]) is not None


def find_delimiter(header: str) -> str:
    """Choose the delimiter that yields the most known columns, the first one on a tie."""
    columns = {*_FIELDS, *_ID_COLUMNS, *_SENTENCE_COLUMNS}

    def count_known(delimiter: str) -> int:
        return sum(name.strip().lower() in columns for name in split_header(header, delimiter))

    return max(_DELIMITERS, key=count_known)


def split_header(header: str, delimiter: str) -> list[str]:
    """Split a header into columns; empty if it is not a table row."""
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return []


def _limit(lines: Iterable[str], name: str) -> Iterator[str]:
    """Stop at the maximum number of lines; a single line in the file may contain millions."""
    for number, line in enumerate(lines, 1):
        check_line_number(number, name)
        yield line


def _split_returns(line: str) -> Iterable[str]:
    """Split a line at carriage returns, which end the lines of some spreadsheets."""
    return io.StringIO(line, newline="") if "\r" in line[:-2] else (line,)


TYPED_SUFFIXES = (".parquet", ".xlsx", ".xls", ".ods")
