"""``cinestrata doctor``: check software, storage, services and library, whether or not the service runs."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress

import redis

from cinestrata_schemas import __version__
from cli.commands import library_checks
from cli.embedded.data_folder import read_lock_holder, redis_executable
from media.reading import available_sources
from service.catalog.database import engine, ping, sqlite_path
from service.catalog.migrations import require_newest_schema
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings
from service.tasks.broker import is_reachable

_DECODERS = ("h264", "hevc", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg")
_MIN_FREE_GIB = 2.0
_MAX_NAMED = 10  # missing videos
_RESTORE_HINT = "To restore damaged files: cinestrata doctor --restore-from BACKUP"


class CheckFailed(Exception):
    """A failed check. The message names the fault and how to correct it."""


def check_software(_: Settings) -> str:
    """Report the versions of Python, the package and torch, and the GPU."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = f"Python {platform.python_version()}, cinestrata {__version__}, torch {torch.__version__}"
    return f"{versions}, {device}"


def check_data_folder(settings: Settings) -> str:
    """Check that the data folder is writable, has free space and contains a library."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(dir=settings.data_dir) as probe:
            os.fsync(probe.fileno())
    except OSError as error:
        raise CheckFailed(
            f"{settings.data_dir} is not writable: {error.strerror}. Give this user write permission."
        ) from error
    free = shutil.disk_usage(settings.data_dir).free / 1024**3
    if free < _MIN_FREE_GIB:
        raise CheckFailed(
            f"{settings.data_dir} has only {free:.1f} GiB free. Free space, or set CINESTRATA_DATA_DIR to another disk."
        )
    catalog = sqlite_path(settings.database_url)
    is_empty = catalog is not None and not catalog.exists() and not settings.index_dir.exists()
    return (
        f"{settings.data_dir.resolve()}, {free:.0f} GiB free"
        + ("; it contains no library (name another folder with --data)" if is_empty else "")
        + ("; the service of CINESTRATA_URL is not checked" if "CINESTRATA_URL" in os.environ else "")
    )


def check_catalog(settings: Settings) -> str:
    """Check the catalog's connection and schema, its JSON values and its edit counter."""
    file = sqlite_path(settings.database_url)
    if file and not file.exists():
        return "not created yet; the first start creates it"
    if file and (faults := library_checks.check_catalog_file(file)):
        hint = "Restore a backup of catalog and index into a new data folder: cinestrata restore BACKUP --data DIR"
        raise CheckFailed("\n".join([f"The catalog is damaged: {faults[0]}", *faults[1:], hint]))
    ping()
    try:
        with engine(settings).connect() as connection:
            current = require_newest_schema(connection)
    except Conflict as error:
        raise CheckFailed(error.detail) from error
    if faults := library_checks.check_edit_counter():
        hint = "Correct these values, or restore the catalog from a backup."
        raise CheckFailed("\n".join([*faults, hint]))
    return f"{engine(settings).url.render_as_string(hide_password=True)}, schema {current}"


def check_broker(settings: Settings) -> str:
    """Check the broker's connection and eviction policy."""
    if is_reachable():
        server = redis.Redis.from_url(settings.redis_client_url)
        policy = dict(server.config_get("maxmemory-policy")).get("maxmemory-policy", "unknown")
        if policy not in ("noeviction", "unknown"):
            raise CheckFailed(f"Redis may drop messages (maxmemory-policy {policy}). Set noeviction.")
        return f"answers, maxmemory-policy {policy}"
    if "CINESTRATA_REDIS_URL" in os.environ or read_lock_holder(settings.run_dir):
        raise CheckFailed("Redis doesn't answer. Check that it runs, and CINESTRATA_REDIS_URL.")
    return f"not started; `cinestrata up` starts {redis_executable()}"


def check_index(settings: Settings) -> str:
    """Verify the index checksums, and that releases, shards and catalog are consistent."""
    from index.integrity_audit import audit
    from service.search.library_words import word_files
    from service.storage.index_manifest import library_store

    if not settings.index_dir.exists():
        return "empty: no domain has been learned"
    result = audit(library_store(settings))
    faults = [
        *result.problems,
        *library_checks.check_releases(settings, result),
        *library_checks.check_catalog(settings, result),
    ]
    if faults:
        raise CheckFailed("\n".join([*faults, f"All other shards are searchable. {_RESTORE_HINT}"]))
    manifest = result.manifest
    damage = word_files(settings).find_damage()
    words = f"; {damage}, so a worker writes the word index again" if damage else ""
    leftovers = f"; {len(result.leftovers)} folders are not in use (yet)" if result.leftovers else ""
    return (
        f"generation {manifest.generation}, {len(manifest.shards)} shards, {len(manifest.releases)} releases, "
        f"all checksums correct, consistent with the catalog{leftovers}{words}"
    )


def check_stored_files(settings: Settings) -> str:
    """Verify the checksums of videos in the data folder, thumbnails and checkpoints; name missing uploads."""
    report = library_checks.check_files(settings)
    if report.missing:
        if (more := len(report.missing) - _MAX_NAMED) > 0:
            report.missing[_MAX_NAMED:] = [f"{more} more uploaded videos are missing."]
        report.missing.append(
            "Missing videos can be searched but not played. Copy media/uploads from the previous data folder, or the "
            "files from where they came; backups don't contain them."
        )
    if report.faults or report.missing:
        raise CheckFailed("\n".join([*report.faults, *report.missing]))
    notes = {
        "previews are missing (doctor --restore-from BACKUP recreates them)": len(report.previews),
        "previews are missing and can't be recreated, because their videos are missing": report.impossible_previews,
    }
    counted = "".join(f"; {count} {note}" for note, count in notes.items() if count)
    return f"{report.verified} files with correct checksums{counted}"


def check_backbone(_: Settings) -> str:
    """Load the backbones of new and of learned domains, and report their engines."""
    from models.backbones.backbone_loading import load_backbone
    from models.backbones.query_backbone import set_torch_threads
    from service.storage.library_backbone import library_backbone, used_backbones

    set_torch_threads(1)  # several threads would wait for one another where other processes use the cores
    names, described = [library_backbone()], list[str]()
    with suppress(Unavailable):  # the check of the catalog reports it
        names += used_backbones()
    for name in dict.fromkeys(names):
        backbone = load_backbone(name)
        spec = backbone.spec
        height, width = spec.shape
        size = height if height == width else f"{height}x{width}"
        described.append(
            f"{backbone.name}, {backbone.dim} dimensions, {spec.frames} frames of {size} px, in {backbone.engine}"
        )
    return "; ".join(described)


def check_decoders(_: Settings) -> str:
    """Check that the installed FFmpeg has the required video decoders."""
    import av

    missing = [name for name in _DECODERS if name not in av.codecs_available]
    if missing:
        raise CheckFailed(f"This FFmpeg cannot decode {', '.join(missing)}. Install PyAV: pip install av")
    return f"FFmpeg decodes {', '.join(_DECODERS)}"


def check_reading(settings: Settings) -> str:
    """Report what is read from videos, and why something is not."""
    reasons = available_sources(settings.speech_model)
    off = [
        f"{source} is off: {reason}"
        for source, reason in reasons.items()
        if reason and source in settings.read
    ]
    speech = f"; speech model {settings.speech_model}" if settings.speech_model else ""
    return "; ".join([f"reads {settings.read}{speech}", *off])


# A check returns a description of its result, or raises CheckFailed or another exception.
CHECKS: dict[str, Callable[[Settings], str]] = {
    "software": check_software,
    "data folder": check_data_folder,
    "catalog": check_catalog,
    "broker": check_broker,
    "index": check_index,
    "files": check_stored_files,
    "backbone": check_backbone,
    "decoders": check_decoders,
    "reading": check_reading,
}
