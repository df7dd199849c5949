"""Folders of published files that this process has compared with their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from index.files.durable_files import hash_files

_State = dict[str, tuple[int, int, int]]  # inode, bytes and time of change in nanoseconds, by file name


class VerifiedFolders:
    """Compares folders with checksums, and each folder again only after a file of it has changed.

    A change is another inode, size or time of modification. A change of the medium that keeps all three is not noticed
    until the process ends; ``cinestrata doctor`` reads every byte.
    """

    def __init__(self) -> None:
        self._verified: dict[Path, tuple[_State, dict[str, str]]] = {}
        self._lock = Lock()

    def is_intact(self, folder: Path, files: Mapping[str, str]) -> bool:
        """Whether a folder contains exactly the given files.

        Args:
            folder: Folder to compare.
            files: Name → SHA-256 of each file.
        """
        if not folder.is_dir():
            with self._lock:
                self._verified.pop(folder, None)
            return False
        # The state precedes the checksums, so a change while they are computed is noticed by the next call.
        state = _file_states(folder)
        with self._lock:
            known = self._verified.get(folder)
        digests = known[1] if known is not None and known[0] == state else hash_files(folder)
        with self._lock:
            self._verified[folder] = state, digests
        return digests == files


def _file_states(folder: Path) -> _State:
    states = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states.items()}
