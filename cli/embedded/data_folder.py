"""Settings of a command that works on one data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cli.embedded.data_folder_lock import read_lock_holder

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["data_folder_settings"]


def data_folder_settings(data: Path | None, *, uses_running_broker: bool = True) -> Settings:
    """Load the settings for a data folder, in this process and its children.

    Args:
        data: Data folder; None takes it from the environment.
        uses_running_broker: Whether the broker of an embedded service that runs on the folder is used. A new service
            starts its own: while the processes of a killed one end, their record still names its broker.
    """
    from service.core.settings import settings

    if data is not None:
        os.environ["CINESTRATA_DATA_DIR"] = str(data)
    settings.cache_clear()
    if uses_running_broker and "CINESTRATA_REDIS_URL" not in os.environ:
        holder = read_lock_holder(settings().run_dir)
        if holder and "redis_url" in holder:
            os.environ["CINESTRATA_REDIS_URL"] = holder["redis_url"]
            settings.cache_clear()
    return settings()
