"""The sample domain: drawn videos with captions, for a first search without your own videos."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from service.core.errors import Unavailable
from service.tasks import commands
from service.tasks.idempotency import CreateOutcome

SAMPLE_DOMAIN = "street"
_TRAIN, _TEST = 24, 8
SAMPLE_VIDEOS = _TRAIN + _TEST


def create_sample_task(*, caller: str = "") -> CreateOutcome:
    """Draw the sample domain's videos, which takes a few seconds, and create its task.

    The service owns the files: they are stored like an archive's, and deleted with the domain.

    Raises:
        Conflict: The name, or an ID of a video, belongs to another task.
        Unavailable: The disk is full, or the catalog is unreachable; nothing was stored.
        InDoubt: The task may be stored.
    """
    commands.check_destination(SAMPLE_DOMAIN, None, [])  # before the videos are drawn
    with tempfile.TemporaryFile() as archive:
        try:
            _write_archive(archive)
        except OSError as error:
            raise Unavailable(f"The sample videos can't be written: {error.strerror}.", 60) from error
        return commands.create_task_from_archive(archive, "samples.tar", name=SAMPLE_DOMAIN, caller=caller)


def _write_archive(archive: IO[bytes]) -> None:
    # Drawing and encoding needs libraries that search processes do not.
    from media.scenes.scene_domains import make_scenes
    from media.scenes.scene_files import manifest_line, write_scene

    scenes = make_scenes(SAMPLE_DOMAIN, train=_TRAIN, val=0, test=_TEST)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        for scene in scenes:
            path = write_scene(Path(folder), scene)
            tar.add(path, path.name)
            path.unlink()
        manifest = "".join(map(manifest_line, scenes)).encode()
        entry = tarfile.TarInfo("manifest.jsonl")
        entry.size = len(manifest)
        tar.addfile(entry, io.BytesIO(manifest))
