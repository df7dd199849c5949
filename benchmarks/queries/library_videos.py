"""Combine the domains in several folders into one library: which videos are hidden, which captions are stored."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.data.clip_folders import find_domains, read_manifest
from benchmarks.errors import ProtocolError
from media import content_hash

_MIN_LEARNED = 2  # videos in a domain that keep their captions; rivals are tuned on them
_LEFT_OUT_SHARE = 4  # one in this many domains is left out


@dataclass(frozen=True)
class LibraryVideo:
    """A video in the library: its folder of domains (group), path below the media root (uri), and stored captions."""

    id: str
    domain: str
    group: str
    file: Path
    uri: str
    captions: tuple[str, ...]
    metadata: dict[str, Any]
    stored: tuple[str, ...] = ()
    is_hidden: bool = False
    timed: tuple[tuple[str, str], ...] = ()  # source and words of each timed text that a service has

    @property
    def name(self) -> str:
        """File name without its extension; the library searches its words."""
        return Path(self.uri).stem


Library = dict[str, list[LibraryVideo]]  # videos by domain, in the order of learning


def read_domains(
    folders: Sequence[Path],
    media: Path,
    *,
    names: bool = False,
    only: Collection[str] = (),
    excluded: Collection[str] = (),
) -> Library:
    """Read the domains in all folders, and link their videos below one media root.

    Copies of a video in a domain are left out, because the service rejects them. Without ``names``, videos keep neither
    their file name nor metadata, and hidden ones have no text at all.
    """
    library: Library = {}
    domains = [domain for folder in folders for domain in find_domains(folder)]
    names_of_all = {path.name for path, _ in domains}
    if unknown := {*only, *excluded} - names_of_all:
        listed = ", ".join(sorted(names_of_all)) or "none"
        raise ProtocolError(f"there is no domain {', '.join(sorted(unknown))}; known: {listed}")
    for path, manifest in domains:
        if (only and path.name not in only) or path.name in excluded:
            continue
        if path.name in library:
            raise ProtocolError(f"two folders have a domain {path.name!r}; rename one of them")
        videos: dict[str, LibraryVideo] = {}
        for number, entry in enumerate(read_manifest(manifest)):
            file = path / entry.uri
            if not file.is_file():
                raise ProtocolError(f"{manifest} names the missing file {entry.uri}")
            stem = f"v{number:05d}"
            uri = f"{path.name}/{stem}/{file.name}" if names else f"{path.name}/{stem}{file.suffix}"
            _link(file, media / uri)
            metadata = (entry.metadata if names else None) or {}
            video = LibraryVideo(
                f"{path.name}.{stem}", path.name, path.parent.name, file, uri, entry.captions, metadata
            )
            videos.setdefault(content_hash(file), video)
        library[path.name] = list(videos.values())
        if sum(bool(video.captions) for video in videos.values()) < 3:
            raise ProtocolError(f"{manifest} has fewer than 3 videos with captions")
    if len(library) < 2:
        raise ProtocolError(
            f"the library needs at least two domains; each subfolder of {', '.join(map(str, folders))} with a "
            "manifest.jsonl or manifest.csv is a domain"
        )
    return library


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def hide_videos(library: Library, seed: int, share: float = 0.2, fold: int = 0) -> Library:
    """Hide the captions of a share of the videos, and shuffle the domains. Seed 0 keeps them in order of name.

    Hidden are the videos whose file name has a SHA-256 that modulo 100 is less than 100 times the share; for a fifth,
    one that is a multiple of 5. Another fold hides others: its number is subtracted first. The same videos are hidden
    in every seed, and two keep their captions in any case.
    """
    modulus = 5 if share == 0.2 else 100
    rng = random.Random(seed)
    order = sorted(library)
    if seed:
        rng.shuffle(order)
    hidden: Library = {}
    for name in order:
        videos = library[name]
        places = {
            video.id: (int(hashlib.sha256(video.file.name.encode()).hexdigest(), 16) - fold) % modulus
            for video in videos
            if video.captions
        }
        captioned = sorted(places, key=places.__getitem__)
        chosen = {video for video in captioned[:-_MIN_LEARNED] if places[video] < round(share * modulus)}
        hidden[name] = [
            replace(video, is_hidden=True) if video.id in chosen else replace(video, stored=video.captions)
            for video in videos
        ]
    return hidden


def keep_first_captions(library: Library) -> Library:
    """Keep only the first caption of each learned video."""
    return {name: [replace(v, stored=v.stored[:1]) for v in videos] for name, videos in library.items()}


def leave_out(library: Library, seed: int) -> tuple[Library, Library]:
    """Split the domains at random: the library without a quarter of them, at least one, and that quarter."""
    names = random.Random(f"left out {seed}").sample(sorted(library), max(1, len(library) // _LEFT_OUT_SHARE))
    rest = {name: videos for name, videos in library.items() if name not in names}
    return rest, {name: library[name] for name in names}
