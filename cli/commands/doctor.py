"""``cinestrata doctor``: everything that the product stands on, checked for real, whether it runs or not."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.console import console, warnings
from cli.embedded.data_folder_lock import data_folder_settings, running
from cli.embedded.private_broker import redis_argv

if TYPE_CHECKING:
    from index.files.manifest_format import AnnStructure
    from service.core.settings import Settings

__all__ = ["run_doctor"]

_DECODERS = ("h264", "hevc", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg")
_LEAST_FREE_GIB = 2.0


class _Trouble(Exception):
    """A check failed; the message says what to do."""


def run_doctor(data: Path | None, as_json: bool) -> None:
    """Tell what each check found, in lines or as one JSON document; leave with status 1 when any failed."""
    settings = data_folder_settings(data)
    checks: tuple[tuple[str, Callable[[Settings], str]], ...] = (
        ("software", _software),
        ("data folder", _data_folder),
        ("catalog", _catalog),
        ("broker", _broker),
        ("index", _index),
        ("backbone", _backbone),
        ("decoders", _decoders),
    )
    told: list[dict[str, str | bool]] = []
    for name, check in checks:
        with warnings.status(f"Checking {name} …"):
            try:
                ok, said = True, check(settings)
            except Exception as error:
                ok, said = False, str(error) or type(error).__name__
        told.append({"check": name, "ok": ok, "said": said})
        if not as_json:
            mark = "[green]ok     [/green]" if ok else "[red]trouble[/red]"
            console.print(f"{mark}  {name:<12} ", end="")
            console.print(said, markup=False, soft_wrap=True)
    well = all(entry["ok"] for entry in told)
    if as_json:
        print(json.dumps({"ok": well, "checks": told}, ensure_ascii=False, indent=1))
    if not well:
        raise typer.Exit(1)


def _software(_: Settings) -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    ours = version("cinestrata")
    return f"Python {platform.python_version()}, cinestrata {ours}, torch {torch.__version__}, {device}"


def _data_folder(settings: Settings) -> str:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(dir=settings.data_dir) as probe:
            os.fsync(probe.fileno())
    except OSError as error:
        raise _Trouble(
            f"{settings.data_dir} cannot be written: {error.strerror}. Give this user the right to."
        ) from error
    free = shutil.disk_usage(settings.data_dir).free / 1024**3
    if free < _LEAST_FREE_GIB:
        raise _Trouble(
            f"Only {free:.1f} GiB are free on {settings.data_dir}. Make room, or move CINESTRATA_DATA_DIR."
        )
    return f"{settings.data_dir}, {free:.0f} GiB free"


def _catalog(settings: Settings) -> str:
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from service.catalog.database import engine, ping, sqlite_path
    from service.catalog.migrations import config

    file = sqlite_path(settings.database_url)
    if file and not file.exists():
        return "not made yet; the first start makes it"
    ping()
    with engine(settings).connect() as connection:
        at = MigrationContext.configure(connection).get_current_revision()
    newest = ScriptDirectory.from_config(config()).get_current_head()
    if at != newest:
        raise _Trouble(
            f"Its schema is at {at or 'nothing'}, this version needs {newest}. Run: cinestrata migrate"
        )
    return f"{engine(settings).url.render_as_string(hide_password=True)}, schema {at}"


def _broker(settings: Settings) -> str:
    import redis

    from service.tasks.broker import is_reachable

    if is_reachable():
        server = redis.Redis.from_url(settings.redis_client_url)
        policy = dict(server.config_get("maxmemory-policy")).get("maxmemory-policy", "unknown")
        if policy not in ("noeviction", "unknown"):
            raise _Trouble(f"Redis may drop messages (maxmemory-policy {policy}). Set it to noeviction.")
        return f"answers, maxmemory-policy {policy}"
    if "CINESTRATA_REDIS_URL" in os.environ or running(settings.run_dir):
        raise _Trouble("Redis does not answer. Check that it runs, and CINESTRATA_REDIS_URL.")
    with tempfile.TemporaryDirectory() as folder:
        return (
            f"not started; `cinestrata up` starts {redis_argv(Path(folder), Path(folder) / 'redis.sock')[0]}"
        )


def _index(settings: Settings) -> str:
    from cli.commands.library_checks import check_catalog, check_releases
    from index.integrity_audit import audit
    from service.storage.vector_store_selection import library_store

    if not settings.index_dir.exists():
        return "empty"
    found = audit(library_store(settings))
    wrong = [*found.problems, *check_releases(settings, found), *check_catalog(settings, found)]
    if wrong:
        raise _Trouble("\n".join([*wrong, "What is not named here is served."]))
    manifest = found.manifest
    kinds = [part.structure for task in manifest.shards for part in manifest.segments(task) if part.structure]
    large = f"; {len(kinds)} large ones, searched by {_searched(kinds)}" if kinds else ""
    left = f"; {len(found.leftovers)} folders are not in use (yet)" if found.leftovers else ""
    return (
        f"generation {manifest.generation}, {len(manifest.shards)} shards, {len(manifest.releases)} releases, "
        f"every checksum right, as the catalog says{large}{left}"
    )


def _searched(measured: list[AnnStructure]) -> str:
    """How shards are searched that are large enough to have been measured for a structure."""
    return ", ".join(
        "every vector (no structure passed)"
        if one.kind == "flat"
        else f"{one.kind} (recall {one.recall:.3f})"
        for one in measured
    )


def _backbone(settings: Settings) -> str:
    from models.backbones.backbone_loading import load_backbone

    backbone = load_backbone(settings.backbone)
    spec = backbone.spec
    return f"{backbone.name}, {backbone.dim} dimensions, {spec.frames} frames of {spec.size} px"


def _decoders(_: Settings) -> str:
    import av

    missing = [name for name in _DECODERS if name not in av.codecs_available]
    if missing:
        raise _Trouble(
            f"This FFmpeg cannot decode {', '.join(missing)}. Install PyAV from its wheel: pip install av"
        )
    return f"FFmpeg decodes {', '.join(_DECODERS)}"
