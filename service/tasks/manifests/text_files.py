"""Decode and parse users' texts and JSON within limits, and take captions and metadata from them."""

from __future__ import annotations

import codecs
import io
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from charset_normalizer import from_bytes

from service.core import request_limits
from service.core.errors import InvalidInput
from service.core.text_rules import UNSTORABLE

MAX_LINE_BYTES = 4 * 1024**2  # a video with as many and as long captions as allowed, escaped

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Python also registers codecs for host names, escapes and mail as encodings. They decode ASCII to other characters,
# take quadratic time, or raise other errors.
_PROBE = "".join(map(chr, range(32, 127))) + "\\u0041\t\r\n"

# Encodings of texts before Unicode; the detector knows many others, which it takes short texts for.
_CODE_PAGES = [
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874", "koi8_r"),
    *("gb18030", "big5", "cp932", "euc_jp", "cp949"),
]
_PIECE = 1 << 20  # bytes of UTF-16 that are converted at a time
_NOT_UTF8_HINT = "Save it as UTF-8, or read it as Windows text: cinestrata ingest --encoding cp1252."
_SEPARATOR = re.compile(rb'"?sep=\W*', re.IGNORECASE)


def is_blank(line: bytes) -> bool:
    """Check whether a line before a table's header is blank, or names the delimiter for Excel (``sep=;``)."""
    text = line.removeprefix(codecs.BOM_UTF8).strip()
    return not text or _SEPARATOR.fullmatch(text) is not None


def read_text(stream: BinaryIO, name: str) -> bytes:
    """Read a table, or one byte more than it may have, which :func:`read_lines` refuses. UTF-16 becomes UTF-8."""
    limit = request_limits.MAX_TABLE_BYTES
    raw = stream.read(limit + 1)
    if not raw.startswith(UTF16_MARKS):
        return raw
    if len(raw) > limit:
        raise _too_large(name)
    return _convert_utf16(raw, name)


def _convert_utf16(raw: bytes, name: str) -> bytes:
    """Convert UTF-16 with a byte order mark to UTF-8 with one."""
    decoder = codecs.getincrementaldecoder("utf-16")()
    converted = io.BytesIO()
    converted.write(codecs.BOM_UTF8)
    try:
        for start in range(0, len(raw), _PIECE):
            converted.write(decoder.decode(raw[start : start + _PIECE], start + _PIECE >= len(raw)).encode())
        return converted.getvalue()
    except UnicodeDecodeError:
        message = "The file begins with a UTF-16 byte order mark but is not UTF-16."
        raise InvalidInput.at(name, message, "Save it as UTF-8.") from None


def _too_large(location: str) -> InvalidInput:
    message = f"The file is larger than {request_limits.MAX_TABLE_BYTES} bytes."
    return InvalidInput.at(location, message, "Split it, and append the parts to the domain.")


def peek_line(text: bytes, name: str) -> bytes:
    """Find the first line that is neither blank nor ``sep=``, or its first bytes, or nothing; raise InvalidInput."""
    stream = io.BytesIO(text)
    number = 0
    while (line := stream.readline(MAX_LINE_BYTES + 1)) and is_blank(line):
        number += 1
        check_line_number(number, name)
    return line.removeprefix(codecs.BOM_UTF8)


def read_lines(text: bytes, name: str, encoding: str = "utf-8") -> Iterator[str]:
    """Iterate over a text's lines with their ends; raise InvalidInput, which names the line, and for too much text.

    A byte order mark is removed, and overrides the encoding, which is a superset of ASCII.
    """
    stream = io.BytesIO(text)
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        location = f"{name}:{number}"
        check_line_number(number, name)
        if stream.tell() > request_limits.MAX_TABLE_BYTES:
            raise _too_large(location)
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw, encoding = raw[len(codecs.BOM_UTF8) :], "utf-8"
        if len(raw) > MAX_LINE_BYTES:
            raise InvalidInput.at(
                location, f"The line is longer than {MAX_LINE_BYTES} bytes.", "Break the line."
            )
        if b"\0" in raw:
            raise InvalidInput.at(location, "The line contains a NUL byte.", "Save the file as text.")
        try:
            yield raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise _not_decoded(location, error.start + 1, encoding) from None


def is_binary(raw: bytes) -> bool:
    """Check whether a file is no text: it has NUL bytes, and is neither UTF-8 nor begins like UTF-16."""
    with suppress(UnicodeDecodeError):
        raw.decode()
        return False
    return b"\0" in raw and not raw.startswith(UTF16_MARKS)


def decode_text(raw: bytes, name: str, encoding: str | None = None) -> tuple[str, str | None]:
    """Decode a text, and return the encoding if it had to be detected; raise InvalidInput.

    The encoding is that of its byte order mark, UTF-8, the given one, or else the detected one.
    """
    if raw.startswith(UTF16_MARKS):
        raw = _convert_utf16(raw, name)
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        raise InvalidInput.at(f"{name}:{line}", "The line contains a NUL byte.", "Save the file as text.")
    with suppress(UnicodeDecodeError):
        return raw.decode("utf-8-sig"), None
    if encoding is not None:
        check_encoding(encoding)
        return _decode(raw, name, encoding), None
    text = raw.decode(errors="replace")
    if len(text) - len(text.encode("ascii", "ignore")) > 5 * text.count("\ufffd"):
        return text.replace("\ufffd", ""), "damaged UTF-8"
    telling = b"\n".join(line for line in raw.splitlines() if not line.isascii())
    best = from_bytes(telling, cp_isolation=_CODE_PAGES).best()
    if best is None:
        problem = "The file is not UTF-8, and fits no other encoding."
        raise InvalidInput.at(name, problem, _NOT_UTF8_HINT)
    encoding = "cp1252" if "cp1252" in best.could_be_from_charset else best.encoding
    return raw.decode(encoding, "replace"), encoding


def _decode(raw: bytes, name: str, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise _not_decoded(f"{name}:{line}", column, encoding) from None


def _not_decoded(location: str, column: int, encoding: str) -> InvalidInput:
    message = f"Byte {column} of the line is not {encoding.upper()}."
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    hint = _NOT_UTF8_HINT if is_utf8 else "Save it as UTF-8, or choose another encoding."
    return InvalidInput.at(location, message, hint)


def check_line_number(number: int, name: str) -> None:
    """Limit the lines: 128 MB may have a hundred million, at a few microseconds each; raise InvalidInput."""
    if number > request_limits.MAX_TEXT_LINES:
        message = f"The file has more than {request_limits.MAX_TEXT_LINES} lines."
        raise InvalidInput.at(name, message, "Put all captions of a video on one line, or split the file.")


def check_encoding(encoding: str) -> None:
    """Raise InvalidInput for an encoding that is not a superset of ASCII."""
    try:
        raw = _PROBE.encode("ascii")
        is_supported = _PROBE.encode(encoding) == raw and raw.decode(encoding) == _PROBE
    except (LookupError, UnicodeError, ValueError):
        is_supported = False
    if not is_supported:
        message = f"{encoding[:50]!r} is not supported."
        raise InvalidInput.at("encoding", message, "Use utf-8, cp1252 or another superset of ASCII.")


def parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Parse a JSON value, which may be on one ``line`` of a file; raise InvalidInput."""
    kind = "file" if line is None else "line"
    location = name if line is None else f"{name}:{line}"

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise InvalidInput.at(
                location, f"An object has the key {twice[:80]!r} twice.", "Keep one of them."
            )
        return fields

    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except json.JSONDecodeError as error:
        at = f"{name}:{line or error.lineno}"
        message = f"The {kind} is not JSON ({error.msg.lower()} at character {error.colno})."
        raise InvalidInput.at(at, message, "Correct it, or write one object per line.") from None
    except RecursionError:
        raise InvalidInput.at(location, f"The {kind} is nested too deeply.", "Write a flat table.") from None
    except ValueError:  # a number with thousands of digits
        message = f"The {kind} has a number with too many digits."
        raise InvalidInput.at(location, message, "Shorten it.") from None


def read_document(raw: bytes, name: str, encoding: str = "utf-8") -> Any:
    """Parse a file that is one JSON value; raise InvalidInput, also if the file is too large."""
    limit = request_limits.MAX_DOCUMENT_BYTES
    hint = "Split it, or write JSON lines: one object per line and video."
    if len(raw) > limit:
        raise InvalidInput.at(name, f"The JSON document is larger than {limit} bytes.", hint)
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > request_limits.MAX_DOCUMENT_VALUES:
        message = f"The JSON document has more than {request_limits.MAX_DOCUMENT_VALUES} values."
        raise InvalidInput.at(name, message, hint)
    if raw.startswith(codecs.BOM_UTF8):
        raw, encoding = raw[len(codecs.BOM_UTF8) :], "utf-8"
    return parse_json(_decode(raw, name, encoding), name)


MAX_METADATA_CHARS = 1000  # per text; longer ones are prose or signed addresses
# Local paths, and download addresses, which may contain credentials.
_PRIVATE_FIELDS = frozenset(("filename", "url", "manifest_url", "fragment_base_url", "cookies"))


def plain_fields(fields: Mapping[str, Any], omitted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Keep strings, numbers, booleans and string lists that are not omitted, in order and within the metadata limit."""
    plain: dict[str, Any] = {}
    size = 2
    for key, value in fields.items():
        is_private = key in _PRIVATE_FIELDS or key.startswith("_")
        if key in omitted or is_private or not _is_plain(value) or not _is_plain(key):
            continue
        size += len(json.dumps({key: value}, ensure_ascii=False).encode())
        if size > request_limits.MAX_METADATA_BYTES:
            break
        plain[key] = value
    return plain


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_METADATA_CHARS and not UNSTORABLE.search(value)
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and _is_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < 2**63


def shorten_caption(value: Any) -> str:
    """Shorten a text to one line within the caption limit, without control characters."""
    text = "".join(
        c
        for c in str(value)[: 4 * request_limits.MAX_CAPTION_CHARS]
        if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs")
    )
    text = " ".join(text.split())
    part = text[: request_limits.MAX_CAPTION_CHARS]
    return text if part == text else part.rpartition(" ")[0] or part
