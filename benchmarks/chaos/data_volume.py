"""A volume for a data folder: a small tmpfs that can be filled up or made read-only.

Both need the right to mount. Without it, the volume is a plain folder whose disk cannot be filled, and read-only means
files and folders without write permission.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE = "384m"
_BLOCK = b"\0" * 65_536


class DataVolume:
    """A volume for a data folder.

    Attributes:
        path: Path of the volume.
        is_limited: Whether it is a tmpfs of limited size.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.is_limited = _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(path))

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fill the volume to its last byte during the ``with`` block."""
        filler = self.path / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for block in (_BLOCK, b"\0" * 512, b"\0"):
                    try:
                        while file.write(block):
                            pass
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                yield
        finally:
            filler.unlink(missing_ok=True)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse to create files or open them for writing during the ``with`` block.

        Files that a process already has open stay writable, as on a volume whose permissions change.
        """
        target = str(self.path)
        if _mount("--bind", target, target):
            _mount("-o", "remount,bind,ro", target)
            try:
                yield
            finally:
                # Files opened meanwhile belong to this mount, and must become writable again.
                _mount("-o", "remount,bind,rw", target)
                subprocess.run(["umount", "--lazy", target], check=True)
            return
        modes: dict[Path, int] = {}
        try:
            for path in [self.path, *self.path.rglob("*")]:
                with contextlib.suppress(FileNotFoundError):
                    mode = path.stat().st_mode
                    path.chmod(mode & ~0o222)
                    modes[path] = mode
            yield
        finally:
            for path, mode in modes.items():
                with contextlib.suppress(FileNotFoundError):
                    path.chmod(mode)

    def close(self) -> None:
        """Release the volume. A tmpfs loses its content."""
        if self.is_limited:
            subprocess.run(["umount", "--lazy", str(self.path)], check=False)


def _mount(*arguments: str) -> bool:
    """Run mount. False if this process has no right to."""
    try:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
