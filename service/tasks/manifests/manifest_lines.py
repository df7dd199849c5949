"""Bounded decoding of text files that a user wrote, line by line."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from service.core import request_limits
from service.core.errors import InvalidInput

MAX_LINE_BYTES = 4 * 1024**2  # a video with all captions of the maximum length, escaped

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Python also names codecs of host names, escapes and mail as encodings; they decode ASCII to other characters, take
# quadratic time, or raise errors of other types.
_PROBE = "".join(map(chr, range(32, 127))) + "\\u0041\t\r\n"


def read_lines(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text with their ends. A byte order mark of UTF-8 is removed and overrides the encoding.

    Args:
        stream: Content of the file.
        name: Name of the file in errors.
        encoding: Encoding of the text; ASCII characters must have their ASCII codes.

    Raises:
        InvalidInput: a line is too long, contains a NUL or cannot be decoded, or the encoding is not supported; the
            error names the line. Or the text has too many lines.
    """
    _check_encoding(encoding)
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        check_line_number(number, name)
        if number == 1 and raw.startswith(_UTF16_MARKS):
            raise InvalidInput.at(f"{name}:1", "The file is UTF-16.", "Save it as UTF-8.")
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw, encoding = raw[len(codecs.BOM_UTF8) :], "utf-8"
        if len(raw) > MAX_LINE_BYTES:
            raise InvalidInput.at(
                f"{name}:{number}", f"The line is longer than {MAX_LINE_BYTES} bytes.", "Break the line."
            )
        if b"\0" in raw:
            raise InvalidInput.at(
                f"{name}:{number}", "The line contains a NUL byte.", "Save the file as text."
            )
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise InvalidInput.at(
                f"{name}:{number}",
                f"Byte {error.start + 1} of the line is not {encoding.upper()}.",
                _encoding_hint(encoding),
            ) from None
        yield text


def check_line_number(number: int, name: str) -> None:
    """Bound the time that a text takes: a body of 128 MB may have a hundred million lines, of some microseconds each.

    Args:
        name: Name of the file in errors.

    Raises:
        InvalidInput: the line is beyond the maximum number.
    """
    if number > request_limits.MAX_TEXT_LINES:
        raise InvalidInput.at(
            name,
            f"The file has more than {request_limits.MAX_TEXT_LINES} lines.",
            "Write all captions of a video into one line, or split the file.",
        )


def _check_encoding(encoding: str) -> None:
    try:
        raw = _PROBE.encode("ascii")
        is_supported = _PROBE.encode(encoding) == raw and raw.decode(encoding) == _PROBE
    except (LookupError, UnicodeError, ValueError):
        is_supported = False
    if not is_supported:
        raise InvalidInput.at(
            "encoding",
            f"{encoding[:50]!r} is not supported.",
            "Name utf-8, cp1252 or another superset of ASCII.",
        )


def _encoding_hint(encoding: str) -> str:
    if codecs.lookup(encoding).name == "utf-8":
        return "Save it as UTF-8, or read it as Windows text: cinestrata ingest --encoding cp1252."
    return "Save it as UTF-8, or name another encoding."
