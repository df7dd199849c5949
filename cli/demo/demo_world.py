"""The demo's videos: real mp4 files below the media root, and the tasks that bring them."""

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

__all__ = ["DemoWorld"]

# Per kind of thing: enough to learn from in well under a minute on two cores, and enough to measure with.
TRAIN = 16
VAL = 4
TEST = 40
CATEGORIES = 3
SEED = 7


@dataclass(frozen=True)
class DemoWorld:
    """Which videos the demo is about. Counts are per category."""

    domains: tuple[str, ...] = DEMO_DOMAINS
    train: int = TRAIN
    val: int = VAL
    test: int = TEST
    categories: int = CATEGORIES
    seed: int = SEED
    epochs: int | None = None  # default: the method's

    def resized(self, **sizes: int | None) -> Self:
        """The same world with other counts (those that are not None); ``domains`` is how many."""
        given = {name: size for name, size in sizes.items() if size is not None}
        domains = self.domains[: given.pop("domains", None)]
        return replace(self, domains=domains, **given)

    @property
    def videos(self) -> int:
        """How many there are in all."""
        return len(self.domains) * self.categories * (self.train + self.val + self.test)

    def render(self, media_root: Path) -> None:
        """Write the files that are not there yet."""
        with _children_spared_ctrl_c(), progress_bar("videos") as bar:
            if not console.is_terminal:
                console.print(f"Rendering {self.videos} videos to {media_root} …", soft_wrap=True)
            rendering = bar.add_task("Rendering videos", total=self.videos)
            write_world(
                media_root / "world",
                domains=self.domains,
                seed=self.seed,
                train=self.train,
                val=self.val,
                test=self.test,
                categories=self.categories,
                workers=min(os.cpu_count() or 1, 8),
                progress=lambda done, total: bar.update(rendering, completed=done, total=total),
            )

    def spec(self, media_root: Path, domain: str) -> TaskSpec:
        """The task that brings a domain, as ``POST /tasks`` takes it."""
        shorter = {} if self.epochs is None else {"settings": {"epochs": self.epochs}}
        return TaskSpec.model_validate(
            {"name": domain, "videos": self._videos(media_root, domain), **shorter}
        )

    def sought(self, media_root: Path, domain: str) -> VideoSpec:
        """The video that the sample search of a domain looks for, by its first caption: the first held-out one."""
        return next(video for video in self._videos(media_root, domain) if video.split == "test")

    @staticmethod
    def key(spec: TaskSpec) -> str:
        """An Idempotency-Key: the same videos again are the same task, not a second one."""
        return f"demo-{spec.name}-{hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]}"

    @staticmethod
    def _videos(media_root: Path, domain: str) -> list[VideoSpec]:
        lines = (media_root / "world" / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        videos = [VideoSpec.model_validate(json.loads(line)) for line in lines]
        return [video.model_copy(update={"uri": f"world/{domain}/{video.uri}"}) for video in videos]


@contextmanager
def _children_spared_ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts this process alone; the renderers, which inherit the blocked signal, end in peace.

    It arrives as SIGTERM, which must interrupt like it does.
    """
    main, done = threading.main_thread().ident, threading.Event()

    def listen() -> None:
        while not done.is_set():
            if signal.sigtimedwait({signal.SIGINT}, 0.2) is not None and main is not None:
                # A real signal, or a blocked main thread would not wake.
                signal.pthread_kill(main, signal.SIGTERM)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        done.set()
        listener.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
