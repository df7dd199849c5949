"""Find the files that belong to a video by their names.

A side file's name begins with that of its video, with or without the ending. A file that fits several videos belongs to
the longest name: ``clip.2.srt`` is for ``clip.2.mp4`` rather than ``clip.mp4``. Endings may have any case.

Subtitles may have a language and kinds, as in ``clip.pt_BR.sdh.srt``. Google Takeout has
``clip.mp4.supplemental-metadata.json``, also shortened, and ``clip.mp4.supplemental-metadata(1).json`` for
``clip(1).mp4``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from service.tasks.manifests.video_files import find_omission, is_video_name

SUBTITLES = ".srt"  # read under this name, whatever their format
SIDECAR_SUFFIXES = (".txt", ".json", ".info.json", ".description", ".tsv", SUBTITLES)
SUBTITLE_SUFFIXES = (SUBTITLES, ".vtt", ".ass", ".ssa", ".ttml", ".sub")
_MAX_PARTS = 8  # after the name of a video
_KINDS = frozenset(("a", "cc", "default", "forced", "hi", "sdh"))
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][\w-]*)?|[^\W\d_]{4,}")  # a code, or a name
_TAKEOUT = ".supplemental-metadata"
_COUNTED = re.compile(r"(.+?)(\.[^./]+?)(\.s[a-z-]*)?(\(\d+\))\.json", re.DOTALL)


def sidecar_stem(path: str) -> str:
    """Strip the extension from a video's path, to which those of its side files are added."""
    pure = PurePosixPath(path)
    return str(pure).removesuffix(pure.suffix)


def side_file_names(uri: str) -> list[str]:
    """List the names under which a video's side files are read."""
    return [*(f"{sidecar_stem(uri)}{suffix}" for suffix in SIDECAR_SUFFIXES), f"{uri}.json"]


class SideFileNames:
    """The side files among the files of a folder.

    Args:
        paths: Paths of all files, also of the videos. Those that are not part of the folder are no side files.

    Attributes:
        side_files: Files that belong to a video. JSON files that do are no caption tables, whatever they contain.
        unused: Subtitle files that belong to no video.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        found = {path for path in paths if find_omission(path) is None}
        self._paths = found - {
            f"{path[:-4]}.sub" for path in found if path.endswith(".idx")
        }  # pictures of DVDs
        self._videos = set(filter(is_video_name, found))
        self._stems = {path: sidecar_stem(path) for path in self._videos}
        self._stems |= {stem: stem for stem in self._stems.values()}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        self.side_files: set[str] = set()
        self.unused: list[str] = []
        for *_, path, name in sorted(self._rank(path) for path in self._paths - self._videos):
            if name:
                self._by_name[name].append(path)
                self.side_files.add(path)
            elif path.lower().endswith(SUBTITLE_SUFFIXES):
                self.unused.append(path)
            elif path.lower().endswith(".json") and self._owner(path):
                self.side_files.add(path)

    def find(self, name: str) -> Sequence[str]:
        """Find the files to read for one of the :func:`side_file_names`, best first."""
        return self._by_name.get(name) or ([name] if name in self._paths else [])

    def _owner(self, path: str) -> str:
        """Find the name of a video that a path begins with; empty if there is none."""
        name = path
        for _ in range(_MAX_PARTS):
            name = name.rpartition(".")[0]
            if name in self._stems:
                return name
        return ""

    def _rank(self, path: str) -> tuple[Any, ...]:
        """Return a path's rank among files for the same name, the path, and that name; empty if it is not read."""
        owner = self._owner(path)
        stem, rest = self._stems.get(owner, ""), path[len(owner) :].lower()
        order, suffix = next(
            ((n, each) for n, each in enumerate(SUBTITLE_SUFFIXES) if rest.endswith(each)), (0, "")
        )
        tags = [tag for tag in re.split(r"[.\s()\[\]]+", rest.removesuffix(suffix)) if tag]
        languages = [tag for tag in tags if tag not in _KINDS]
        name = ""
        counted = _COUNTED.fullmatch(path) if rest.endswith(").json") else None
        if counted and (video := f"{counted[1]}{counted[4]}{counted[2]}") in self._videos:
            name = f"{video}.json"
        elif owner in self._videos and rest.endswith(".json") and _TAKEOUT.startswith(rest[:-5]):
            name = f"{owner}.json"
        elif owner and suffix and len(languages) < 2 and all(map(_LANGUAGE.fullmatch, languages)):
            name = f"{stem}{SUBTITLES}"
        elif owner and rest in SIDECAR_SUFFIXES:
            name = f"{stem}{rest}"
        is_foreign = bool(tags) and not any(tag.startswith("en") for tag in languages)
        kinds = len(tags) - len(languages)
        return "forced" in tags, is_foreign, kinds, order, tags, path != name, path, name
