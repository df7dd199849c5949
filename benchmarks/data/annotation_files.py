"""Read the files of published image-text data sets: validated JSON, and images found by name."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from benchmarks.data.source_tasks import abbreviate
from benchmarks.errors import ProtocolError

Content = TypeVar("Content")
_SUFFIXES = (".json", ".jpg")
_CHUNK = 1 << 20  # characters
_HINT = "download the file again, or restore its published form"


class DataFolder:
    """JSON files and JPEG images anywhere below a folder, by name.

    Names in annotations are looked up, never joined to a path, so no annotation reaches outside the folder.

    Args:
        folder: Folder of the data set; None if the command has no ``--videos``.
        needs: Description of the required files, for errors.

    Raises:
        ProtocolError: No folder is set, or it does not exist.
    """

    def __init__(self, folder: Path | None, needs: str) -> None:
        if folder is None:
            raise ProtocolError(
                f"this protocol needs files; set their folder with --videos. It must contain, at any depth, {needs}"
            )
        if not folder.is_dir():
            raise ProtocolError(f"{folder} is not a folder; set the folder of the data set with --videos")
        self._folder, self._needs = folder, needs
        self._places: dict[str, str] = {}
        for place, _, names in sorted(os.walk(folder)):
            self._places |= dict.fromkeys((name for name in names if name.endswith(_SUFFIXES)), place)

    def annotations(self, pattern: str) -> list[Path]:
        """Find the annotation files with a name or a pattern such as ``captions_*.json``, in order of their names.

        Raises:
            ProtocolError: The folder lacks the file.
        """
        names = sorted(fnmatch.filter(self._places, pattern))
        if not names:
            raise ProtocolError(
                f"{self._folder} lacks {pattern}. It must contain, at any depth, {self._needs}"
            )
        return [Path(self._places[name], name) for name in names]

    def images(self, names: Iterable[str]) -> dict[str, Path]:
        """Find each image's path by name.

        Raises:
            ProtocolError: Images are missing; the message names the first.
        """
        required = list(names)
        missing = [name for name in required if name not in self._places]
        if missing:
            raise ProtocolError(
                f"{self._folder} lacks {len(missing)} of {len(required)} images: {abbreviate(missing)}. It must "
                f"contain, at any depth, {self._needs}"
            )
        return {name: Path(self._places[name], name) for name in required}


def read_annotations(path: Path, content: TypeAdapter[Content]) -> Content:
    """Read a JSON file; fields that the type lacks are ignored.

    Raises:
        ProtocolError: The file cannot be read or has another form; the message names the file and the field.
    """
    try:
        return content.validate_json(path.read_bytes())
    except OSError as error:
        raise ProtocolError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    except ValidationError as error:
        raise _invalid(path, error) from error


def stream_annotations(path: Path, content: TypeAdapter[Content]) -> Iterator[Content]:
    """Read a JSON list element by element: the largest files exceed the memory of most machines.

    Raises:
        ProtocolError: The file cannot be read or has another form; the message names the file and the field.
    """
    try:
        for index, element in enumerate(_elements(path)):
            try:
                yield content.validate_python(element)
            except ValidationError as error:
                raise _invalid(path, error, str(index)) from error
    except OSError as error:
        raise ProtocolError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"{path} is not a JSON list ({error}); {_HINT}") from error


def _elements(path: Path) -> Iterator[Any]:
    """Iterate over the elements of a JSON list.

    Raises:
        ValueError: The file is not a JSON list in UTF-8.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as file:
        text, position, size = file.read(_CHUNK).lstrip(), 1, _CHUNK
        if not text.startswith("["):
            raise ValueError("it does not begin with a bracket")
        expects_comma = False
        while True:
            while position < len(text) and (
                text[position].isspace() or (expects_comma and text[position] == ",")
            ):
                expects_comma &= text[position] != ","
                position += 1
            if position < len(text) and text[position] == "]":
                return
            try:
                element, end = decoder.raw_decode(text, position)
                if end == len(text):  # a number may continue in the next chunk
                    raise ValueError("it ends within an element")
            except ValueError:
                more = file.read(size)
                if not more:
                    raise
                # A long element is decoded again after each chunk, so chunks grow with it.
                text, position = text[position:] + more, 0
                size = max(_CHUNK, len(text))
                continue
            if expects_comma:
                raise ValueError(f"element {element!r:.40} follows without a comma")
            yield element
            position, expects_comma = end, True


def _invalid(path: Path, error: ValidationError, *above: str) -> ProtocolError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join([*above, *map(str, first["loc"])])
    return ProtocolError(f"{path}: {field or 'the file'}: {first['msg']}; {_HINT}")
