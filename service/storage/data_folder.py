"""Write access to the data folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from service.core.errors import DataFolderNotWritable
from service.core.settings import Settings

__all__ = ["check_data_folder", "require_writable"]


def require_writable(*folders: Path) -> None:
    """Create each folder if it does not exist, and create and remove a file in it.

    Raises:
        DataFolderNotWritable: a folder cannot be written; the error names it.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-check-") as file:
                file.write(b"\0")
                file.flush()
        except OSError as error:
            raise DataFolderNotWritable(folder, error) from error


def check_data_folder(configured: Settings) -> str:
    """Return ``ok``, or the reason why the data folder cannot be written."""
    try:
        require_writable(configured.data_dir)
    except DataFolderNotWritable as error:
        return f"{error.detail} {error.hint}"
    return "ok"
