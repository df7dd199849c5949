"""Interface between the demo and the videos that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from cinestrata_schemas.tasks import TaskDetails
    from cli.service_client import ServiceClient


class SampleSearch(NamedTuple):
    """A word, a sentence, or a text that nothing matches, and the IDs of the videos that are right for it."""

    kind: Literal["word", "sentence", "nothing"]
    text: str
    videos: frozenset[str] = frozenset()


class DemoVideos(Protocol):
    """Domains of videos with captions."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains in the order in which they are learned."""

    def prepare(self, media_root: Path) -> None:
        """Write the video files that are needed and do not exist yet."""

    def create_task(self, client: ServiceClient, media_root: Path, domain: str) -> TaskDetails:
        """Create the task of a domain."""

    def video_count(self, media_root: Path, domain: str) -> int:
        """Number of videos of a domain."""

    def sample_searches(self, client: ServiceClient, media_root: Path) -> list[SampleSearch]:
        """A search of each kind; the sentence is the first caption of a held-out video, if one describes it alone."""
