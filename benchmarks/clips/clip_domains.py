"""Domains in a user's folder: each subfolder with a manifest is one, with a fixed split."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.data.folder_manifest import ManifestEntry, read_manifest
from benchmarks.data.protocol_sources import read_folder_task
from benchmarks.data.source_tasks import SourceTask
from benchmarks.errors import ProtocolError
from service.tasks.manifests.folder_videos import find_manifest

_HELD_OUT_FRACTION = 5  # one in this many clips is held out
_MIN_HELD_OUT = 2


def read_clip_domains(folder: Path) -> list[SourceTask]:
    """Read a folder's domains, in order of their names.

    Args:
        folder: Folder with one subfolder per domain, each with a ``manifest.jsonl`` or ``manifest.csv``.

    Raises:
        ProtocolError: No subfolder has a manifest, or a domain has no training clip or no test clip with a caption.
    """
    manifests = [(path, manifest) for path in sorted(folder.glob("*/")) if (manifest := find_manifest(path))]
    if not manifests:
        raise ProtocolError(
            f"no subfolder of {folder} has a manifest.jsonl or manifest.csv; each subfolder with a manifest is a domain"
        )
    return [_read_domain(path, manifest) for path, manifest in manifests]


def select_held_out(uris: Sequence[str]) -> set[str]:
    """Select the test clips of a manifest without splits: the first fifth in SHA-1 order, at least 2, by URI.

    The selection depends only on the URIs, so it is the same in every tool.
    """
    ranked = sorted(uris, key=lambda uri: hashlib.sha1(uri.encode(), usedforsecurity=False).hexdigest())
    return set(ranked[: max(_MIN_HELD_OUT, len(uris) // _HELD_OUT_FRACTION)])


def _read_domain(folder: Path, manifest: Path) -> SourceTask:
    entries = read_manifest(manifest)
    domain = read_folder_task(folder, folder.name, folder.name)
    if not any(entry.split for entry in entries):
        domain = _split_domain(domain, entries)
    for split, name in (("train", "training"), ("test", "test")):
        if not any(video.split == split and video.captions for video in domain.videos):
            raise ProtocolError(
                f'{manifest} has no {name} clip with a caption; set "split" to "train" or "test" for each clip, or '
                f"list at least {_MIN_HELD_OUT + 1} clips without any split"
            )
    return domain


def _split_domain(domain: SourceTask, entries: Sequence[ManifestEntry]) -> SourceTask:
    held_out = select_held_out([entry.uri for entry in entries])
    names = {entry.name for entry in entries if entry.uri in held_out}
    return replace(
        domain, videos=tuple(replace(v, split="test") if v.id in names else v for v in domain.videos)
    )
