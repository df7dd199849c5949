"""Interface between the demo and the videos that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cinestrata_schemas.tasks import TaskDetails
    from cli.service_client import ServiceClient


SAMPLE_SEARCHES = 3


class SampleQuery(NamedTuple):
    """A caption as a query, and the video that it describes."""

    text: str
    video_id: str


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

    def sample_queries(self, client: ServiceClient, media_root: Path) -> list[SampleQuery]:
        """First captions of held-out videos, of different domains as far as possible."""
