"""The interface between the demo and the videos it learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from cinestrata_schemas.tasks import TaskDetails
    from cli.service_client import ServiceClient


class SampleSearch(NamedTuple):
    """A word, a sentence or a query that nothing matches, and the IDs of the right videos."""

    kind: Literal["word", "sentence", "nothing"]
    text: str
    videos: frozenset[str] = frozenset()


class DemoVideos(Protocol):
    """Domains of videos with captions."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Domain names, in learning order."""

    def prepare(self, media_root: Path) -> None:
        """Write missing video files."""

    def create_task(self, client: ServiceClient, media_root: Path, domain: str) -> TaskDetails:
        """Create a domain's task."""

    def video_count(self, media_root: Path, domain: str) -> int:
        """Count the videos of a domain."""

    def sample_searches(self, client: ServiceClient, media_root: Path) -> list[SampleSearch]:
        """Return a search of each kind; the sentence is a held-out video's first caption, if it describes no other."""
