"""The demo's videos: rendered mp4 files below the media root, and a task for each domain."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Self

from cinestrata_schemas.tasks import TaskDetails, TaskSpec, VideoSpec
from cli.console import console, progress_bar
from cli.service_client import ServiceClient
from index.words.text_analysis import split_words
from media.scenes.scene_domains import SCENE_DOMAINS, make_scenes
from media.scenes.scene_files import write_scenes

_FOLDER = "demo"  # below the media root
_WORD = "dog"  # of street captions
_UNKNOWN = "an astronaut repairs a satellite"


class SampleSearch(NamedTuple):
    """A word, a sentence or a query that nothing matches, and the IDs of the right videos."""

    kind: Literal["word", "sentence", "nothing"]
    text: str
    videos: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DemoWorld:
    """The demo's domains and their sizes."""

    domains: tuple[str, ...] = tuple(SCENE_DOMAINS)
    train: int = 45
    val: int = 5
    test: int = 30

    def resized(self, **sizes: int | None) -> Self:
        """Return a copy with other sizes; None values are ignored, and ``domains`` is the number of domains."""
        changes = {name: size for name, size in sizes.items() if size is not None}
        domains = self.domains[: changes.pop("domains", None)]
        return replace(self, domains=domains, **changes)

    def video_count(self, media_root: Path, domain: str) -> int:
        """Count the videos of a domain."""
        return self.train + self.val + self.test

    def prepare(self, media_root: Path) -> None:
        """Render the video files that do not exist yet."""
        scenes = {
            name: make_scenes(name, train=self.train, val=self.val, test=self.test) for name in self.domains
        }
        count = sum(map(len, scenes.values()))
        with progress_bar("videos") as bar:
            if not console.is_terminal:
                console.say(f"Rendering {count} videos to {media_root} …")
            progress = bar.add_task("Rendering videos", total=count)
            write_scenes(
                media_root / _FOLDER,
                scenes,
                workers=min(os.cpu_count() or 1, 8),
                progress=lambda done, total: bar.update(progress, completed=done, total=total),
            )

    def create_task(self, client: ServiceClient, media_root: Path, domain: str) -> TaskDetails:
        """Create a domain's task."""
        spec = TaskSpec(name=domain, videos=self._videos(media_root, domain))
        return client.create_task(spec, idempotency_key=self.idempotency_key(spec))

    def sample_searches(self, client: ServiceClient, media_root: Path) -> list[SampleSearch]:
        """Return a search of each kind; the sentence is the first caption of the last domain's first held-out video."""
        videos = [video for domain in self.domains for video in self._videos(media_root, domain)]
        last = self._videos(media_root, self.domains[-1])
        described = next(video for video in last if video.split == "test")
        named = {str(video.id) for video in videos if _names(video, _WORD)}
        return [
            SampleSearch("word", _WORD, frozenset(named)),
            SampleSearch("sentence", described.captions[0], frozenset({str(described.id)})),
            SampleSearch("nothing", _UNKNOWN),
        ]

    @staticmethod
    def idempotency_key(spec: TaskSpec) -> str:
        """Return a key that is equal for equal videos, so that a repeated demo creates no second task."""
        return f"demo-{spec.name}-{hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]}"

    @staticmethod
    def _videos(media_root: Path, domain: str) -> list[VideoSpec]:
        lines = (media_root / _FOLDER / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        videos = [VideoSpec.model_validate(json.loads(line)) for line in lines]
        return [video.model_copy(update={"uri": f"{_FOLDER}/{domain}/{video.uri}"}) for video in videos]


def _names(video: VideoSpec, word: str) -> bool:
    return any(found.term == word for found in split_words("\n".join(video.captions)))
