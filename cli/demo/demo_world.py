"""The videos of the demo: rendered mp4 files below the media root, and the task of each domain."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchmarks.data.world import DEMO_DOMAINS, write_world
from cli.console import console, progress_bar
from service.core.schemas import TaskSpec, VideoSpec

__all__ = ["DemoWorld", "interrupt_parent_only"]

# Per category: enough for a useful recall matrix, and trained in less than a minute on two cores.
TRAIN = 16
VAL = 4
TEST = 40
CATEGORIES = 3
SEED = 7


@dataclass(frozen=True)
class DemoWorld:
    """Domains of the demo and their sizes.

    Attributes:
        domains: Names of the domains.
        train: Training videos per category.
        val: Validation videos per category.
        test: Test videos per category.
        categories: Categories per domain.
        seed: Seed of the renderer.
        epochs: Training epochs; None takes the method's default.
    """

    domains: tuple[str, ...] = DEMO_DOMAINS
    train: int = TRAIN
    val: int = VAL
    test: int = TEST
    categories: int = CATEGORIES
    seed: int = SEED
    epochs: int | None = None

    def resized(self, **sizes: int | None) -> Self:
        """A copy with other sizes; values of None are ignored, and ``domains`` is the number of domains."""
        changes = {name: size for name, size in sizes.items() if size is not None}
        domains = self.domains[: changes.pop("domains", None)]
        return replace(self, domains=domains, **changes)

    @property
    def video_count(self) -> int:
        """Number of videos in all domains."""
        return len(self.domains) * self.categories * (self.train + self.val + self.test)

    def render(self, media_root: Path) -> None:
        """Write the video files that do not exist yet."""
        with interrupt_parent_only(), progress_bar("videos") as bar:
            if not console.is_terminal:
                console.print(f"Rendering {self.video_count} videos to {media_root} …", soft_wrap=True)
            progress = bar.add_task("Rendering videos", total=self.video_count)
            write_world(
                media_root / "world",
                domains=self.domains,
                seed=self.seed,
                train=self.train,
                val=self.val,
                test=self.test,
                categories=self.categories,
                workers=min(os.cpu_count() or 1, 8),
                progress=lambda done, total: bar.update(progress, completed=done, total=total),
            )

    def spec(self, media_root: Path, domain: str) -> TaskSpec:
        """The task of a domain, as ``POST /tasks`` accepts it."""
        settings = {} if self.epochs is None else {"settings": {"epochs": self.epochs}}
        return TaskSpec.model_validate(
            {"name": domain, "videos": self._videos(media_root, domain), **settings}
        )

    def sample_video(self, media_root: Path, domain: str) -> VideoSpec:
        """The video whose first caption is the sample query of a domain: its first test video."""
        return next(video for video in self._videos(media_root, domain) if video.split == "test")

    @staticmethod
    def idempotency_key(spec: TaskSpec) -> str:
        """A key that is equal for equal videos, so that a repeated demo does not create a second task."""
        return f"demo-{spec.name}-{hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]}"

    @staticmethod
    def _videos(media_root: Path, domain: str) -> list[VideoSpec]:
        lines = (media_root / "world" / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        videos = [VideoSpec.model_validate(json.loads(line)) for line in lines]
        return [video.model_copy(update={"uri": f"world/{domain}/{video.uri}"}) for video in videos]


@contextmanager
def interrupt_parent_only() -> Iterator[None]:
    """Deliver Ctrl-C to this process only, as SIGTERM; child processes inherit the blocked SIGINT and end normally.

    SIGTERM must raise KeyboardInterrupt here, as inside :func:`cli.demo.demo_service.interruptible`.
    """
    main, done = threading.main_thread().ident, threading.Event()

    def forward() -> None:
        while not done.is_set():
            if signal.sigtimedwait({signal.SIGINT}, 0.2) is not None and main is not None:
                # Only a real signal wakes a blocked main thread.
                signal.pthread_kill(main, signal.SIGTERM)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    forwarder = threading.Thread(target=forward, daemon=True)
    forwarder.start()
    try:
        yield
    finally:
        done.set()
        forwarder.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
