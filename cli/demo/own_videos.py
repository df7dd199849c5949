"""The user's own folders as demo videos: each subfolder with captions is a domain."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cinestrata_schemas.tasks import TaskDetails, VideoSpec
from cli.commands.video_sources import default_name, fail_if_missing, pack_videos, read_videos
from cli.console import console, fail
from cli.demo.demo_world import SampleSearch
from cli.service_client import ServiceClient
from index.words.text_analysis import COMPOUND, split_words
from service.core.text_rules import name_key, unused_slug
from service.tasks.manifests.caption_tables import find_tables
from service.tasks.manifests.folder_videos import find_manifest
from service.tasks.manifests.side_files import SideFileNames
from service.tasks.manifests.video_files import find_omission

_CAPTIONS_HINT = (
    "Write captions.csv (columns file and caption, one line per video), manifest.jsonl as for "
    "`cinestrata ingest`, or a text file NAME.txt per video."
)
_MIN_CAPTIONED = 2
_NAMED = range(2, 11)  # number of videos with the sample word, if there is one
_MEASURED = ("test", "fold")  # splits whose captions measure recall
_UNKNOWN = "qwvzx jkfptr"  # letters that form no word in any library


@dataclass(frozen=True)
class OwnVideos:
    """The user's domains, checked before anything is learned.

    Attributes:
        folders: Folders by domain name.
        videos: Videos by domain name; every video has an ID, and paths are relative to the folder.
    """

    folders: dict[str, Path]
    videos: dict[str, Sequence[VideoSpec]]

    @classmethod
    def read(cls, root: Path) -> OwnVideos:
        """Read the captions of all domains. Exits with status 1 and names the file if a folder cannot be learned."""
        if not root.is_dir():
            problem = "is not a folder" if root.exists() else "does not exist"
            fail(f"--videos: {root} {problem}.", "Name a folder with one subfolder of videos per domain.")
        folders = [root] if _has_captions(root) else _subfolders(root)
        if not folders:
            fail(
                f"--videos: {root} has neither captions nor subfolders.",
                f"Put the videos of each domain in a subfolder. {_CAPTIONS_HINT}",
            )
        domains: dict[str, Path] = {}
        same: dict[str, Path] = {}  # folder by name key
        slugs: dict[str, str] = {}  # domain name by slug
        for folder in folders:
            name = default_name(folder)
            other = same.setdefault(name_key(name), folder)
            if other != folder:
                fail(f"{folder} and {other} both give the domain name {name!r}.", "Rename one folder.")
            domains[name] = folder
            slugs[unused_slug(name, slugs.__contains__)] = name
        return cls(domains, {name: _read_domain(slug, domains[name]) for slug, name in slugs.items()})

    @property
    def domains(self) -> tuple[str, ...]:
        """Domain names, sorted."""
        return tuple(self.folders)

    def prepare(self, media_root: Path) -> None:
        """Do nothing: the service stores the videos when a task is created."""

    def create_task(self, client: ServiceClient, media_root: Path, domain: str) -> TaskDetails:
        """Send a domain's videos to the service and create its task."""
        folder, videos = self.folders[domain], self.videos[domain]
        with tempfile.TemporaryFile() as archive:
            pack_videos(archive, videos, {video.uri: (folder / video.uri).resolve() for video in videos})
            archive.seek(0)
            with console.status(f"Sending the videos of {domain} …"):
                return client.create_task_from_archive(archive, domain, filename=f"{domain}.tar")

    def video_count(self, media_root: Path, domain: str) -> int:
        """Count the videos of a domain."""
        return len(self.videos[domain])

    def sample_searches(self, client: ServiceClient, media_root: Path) -> list[SampleSearch]:
        """Return a search of each kind; without a sentence if no such caption describes a video alone."""
        named: dict[str, set[str]] = defaultdict(set)
        for video in (video for videos in self.videos.values() for video in videos):
            for word in split_words("\n".join(video.captions)):
                if not word.term.startswith(COMPOUND):  # its parts are words, too
                    named[word.term].add(str(video.id))
        # A long word in few videos is rarely one like "with".
        chosen = max(named, key=lambda term: (len(named[term]) in _NAMED, len(term), term), default="")
        searches = [SampleSearch("word", chosen, frozenset(named[chosen]))] if chosen else []
        described = self._find_described(client)
        if described is not None:
            caption, video_id = described
            searches.append(SampleSearch("sentence", caption, frozenset({video_id})))
        return [*searches, SampleSearch("nothing", _UNKNOWN)]

    def _find_described(self, client: ServiceClient) -> tuple[str, str] | None:
        """Find a measured video whose first caption no other video has; return the caption and the video's ID."""
        captioned = [video for videos in self.videos.values() for video in videos if video.captions]
        uses = Counter(caption for video in captioned for caption in set(video.captions))
        for video in captioned:
            # Without given splits, the service has chosen the videos that measure recall.
            if uses[video.captions[0]] == 1 and client.get_video(str(video.id)).effective_split in _MEASURED:
                return video.captions[0], str(video.id)
        return None


def _subfolders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and find_omission(f"{path.name}/") is None)


def _has_captions(folder: Path) -> bool:
    """Return whether a folder itself contains captions of videos."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    return bool(find_tables(names) or SideFileNames(names).side_files)


def _read_domain(slug: str, folder: Path) -> Sequence[VideoSpec]:
    _, videos = read_videos(folder)
    manifest = find_manifest(folder) or folder
    if manifest == folder and not any(video.captions for video in videos):
        fail(f"{folder} has no captions.", _CAPTIONS_HINT)
    fail_if_missing(folder, videos)
    captioned = sum(bool(video.captions) for video in videos)
    if captioned < _MIN_CAPTIONED:
        fail(
            f"{manifest} has {captioned} {'video' if captioned == 1 else 'videos'} with captions.",
            "A domain needs at least 2 of them: a training video and a held-out video.",
        )
    return [
        video.model_copy(update={"id": video.id or f"{slug}-{number:05d}"})
        for number, video in enumerate(videos, 1)
    ]
