"""Videos of the demo by domain: rendered ones, or those of the user's folders with captions."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from cinestrata_schemas.tasks import TaskDetails, TaskSpec, VideoSpec
from cli.commands.video_sources import default_name, fail_if_missing, pack_videos, read_videos
from cli.console import console, fail, progress_bar
from cli.service_client import ServiceClient
from index.words.text_analysis import COMPOUND, split_words
from media.scenes.scene_domains import SCENE_DOMAINS, make_scenes
from media.scenes.scene_files import manifest_line, write_scenes
from service.core.text_rules import name_key, unused_slug
from service.tasks.manifests.caption_tables import find_tables
from service.tasks.manifests.folder_videos import find_manifest
from service.tasks.manifests.side_files import SideFileNames, find_omission


class SampleSearch(NamedTuple):
    """A word, a sentence or a query that nothing matches, and the IDs of the right videos."""

    kind: Literal["word", "sentence", "nothing"]
    text: str
    videos: frozenset[str] = frozenset()


_FOLDER = "demo"  # of rendered videos, below the media root
_VALIDATION_VIDEOS = 5  # per domain
_WORD = "dog"  # of street captions
_UNKNOWN = "an astronaut repairs a satellite"


class RenderedVideos:
    """The first domains of rendered videos, with so many training and test videos each.

    ``videos`` are by domain name; each has an ID, and its path is relative to the media root.
    """

    def __init__(self, domains: int, train: int, test: int) -> None:
        self._scenes = {
            name: make_scenes(name, train=train, val=_VALIDATION_VIDEOS, test=test)
            for name in list(SCENE_DOMAINS)[:domains]
        }
        self.videos: Mapping[str, Sequence[VideoSpec]] = {
            name: [
                VideoSpec.model_validate_json(manifest_line(scene)).model_copy(
                    update={"uri": f"{_FOLDER}/{name}/{scene.file_name}"}
                )
                for scene in scenes
            ]
            for name, scenes in self._scenes.items()
        }

    def prepare(self, media_root: Path) -> None:
        """Render the video files that do not exist yet."""
        count = sum(map(len, self._scenes.values()))
        with progress_bar("videos") as bar:
            if not console.is_terminal:
                console.say(f"Rendering {count} videos to {media_root} …")
            progress = bar.add_task("Rendering videos", total=count)
            write_scenes(
                media_root / _FOLDER,
                self._scenes,
                workers=min(os.cpu_count() or 1, 8),
                progress=lambda done, total: bar.update(progress, completed=done, total=total),
            )

    def create_task(self, client: ServiceClient, domain: str) -> TaskDetails:
        """Create a domain's task; a repeated demo creates no second one for equal videos."""
        spec = TaskSpec(name=domain, videos=list(self.videos[domain]))
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]
        return client.create_task(spec, idempotency_key=f"demo-{domain}-{digest}")

    def sample_searches(self, client: ServiceClient) -> list[SampleSearch]:
        """Return a search of each kind; the sentence is the first caption of the last domain's first held-out video."""
        named = {
            str(video.id)
            for videos in self.videos.values()
            for video in videos
            if any(term == _WORD for term, *_ in split_words("\n".join(video.captions)))
        }
        described = next(video for video in list(self.videos.values())[-1] if video.split == "test")
        return [
            SampleSearch("word", _WORD, frozenset(named)),
            SampleSearch("sentence", described.captions[0], frozenset({str(described.id)})),
            SampleSearch("nothing", _UNKNOWN),
        ]


_CAPTIONS_HINT = (
    "Write captions.csv (columns file and caption, one line per video), manifest.jsonl as for "
    "`cinestrata ingest`, or a text file NAME.txt per video."
)
_MIN_CAPTIONED = 2
_NAMED = range(2, 11)  # number of videos with the sample word, if there is one
_MEASURED = ("test", "fold")  # splits whose captions measure recall
_NO_WORDS = "qwvzx jkfptr"  # letters that form no word in any library


class OwnVideos:
    """The user's domains, checked before anything is learned.

    ``videos`` are by domain name, sorted; each has an ID, and its path is relative to the domain's folder.
    """

    def __init__(self, root: Path) -> None:
        """Read the captions of all domains. Exits with status 1 and names the file if a folder cannot be learned."""
        if not root.is_dir():
            problem = "is not a folder" if root.exists() else "does not exist"
            fail(f"--videos: {root} {problem}.", "Name a folder with one subfolder of videos per domain.")
        subfolders = (path for path in root.iterdir() if path.is_dir() and not find_omission(f"{path.name}/"))
        folders = [root] if _has_captions(root) else sorted(subfolders)
        if not folders:
            fail(
                f"--videos: {root} has neither captions nor subfolders.",
                f"Put the videos of each domain in a subfolder. {_CAPTIONS_HINT}",
            )
        self._folders: dict[str, Path] = {}
        same: dict[str, Path] = {}  # folder by name key
        slugs: dict[str, str] = {}  # domain name by slug
        for folder in folders:
            name = default_name(folder)
            other = same.setdefault(name_key(name), folder)
            if other != folder:
                fail(f"{folder} and {other} both give the domain name {name!r}.", "Rename one folder.")
            self._folders[name] = folder
            slugs[unused_slug(name, slugs.__contains__)] = name
        self.videos: Mapping[str, Sequence[VideoSpec]] = {
            name: _read_domain(slug, self._folders[name]) for slug, name in slugs.items()
        }

    def prepare(self, media_root: Path) -> None:
        """Do nothing: the service stores the videos when a task is created."""

    def create_task(self, client: ServiceClient, domain: str) -> TaskDetails:
        """Send a domain's videos to the service and create its task."""
        folder, videos = self._folders[domain], self.videos[domain]
        with tempfile.TemporaryFile() as archive:
            pack_videos(archive, videos, {video.uri: (folder / video.uri).resolve() for video in videos})
            archive.seek(0)
            with console.status(f"Sending the videos of {domain} …"):
                return client.create_task_from_archive(archive, domain, filename=f"{domain}.tar")

    def sample_searches(self, client: ServiceClient) -> list[SampleSearch]:
        """Return a search of each kind for which the videos have a word or a caption."""
        named: dict[str, set[str]] = defaultdict(set)
        for video in (video for videos in self.videos.values() for video in videos):
            for term, *_ in split_words("\n".join(video.captions)):
                if not term.startswith(COMPOUND):  # its parts are words, too
                    named[term].add(str(video.id))
        # A long word in few videos is rarely one like "with".
        chosen = max(named, key=lambda term: (len(named[term]) in _NAMED, len(term), term), default="")
        searches = [SampleSearch("word", chosen, frozenset(named[chosen]))] if chosen else []
        described = self._find_described(client)
        if described is not None:
            caption, video_id = described
            searches.append(SampleSearch("sentence", caption, frozenset({video_id})))
        return [*searches, SampleSearch("nothing", _NO_WORDS)]

    def _find_described(self, client: ServiceClient) -> tuple[str, str] | None:
        """Find a measured video whose first caption no other video has; return the caption and the video's ID."""
        captioned = [video for videos in self.videos.values() for video in videos if video.captions]
        uses = Counter(caption for video in captioned for caption in set(video.captions))
        for video in captioned:
            # Without given splits, the service has chosen the videos that measure recall.
            if uses[video.captions[0]] == 1 and client.get_video(str(video.id)).effective_split in _MEASURED:
                return video.captions[0], str(video.id)
        return None


def _has_captions(folder: Path) -> bool:
    """Return whether a folder itself contains captions of videos."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    return bool(find_tables(names) or SideFileNames(names).side_files)


def _read_domain(slug: str, folder: Path) -> Sequence[VideoSpec]:
    listing = read_videos(folder)
    listing.require_all()
    videos = listing.videos
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
