"""Parse a manifest's videos directly, without looking for their files."""

from __future__ import annotations

from typing import BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from service.tasks.manifests.caption_tables import ManifestEntries, read_rows


def parse_manifest(stream: BinaryIO, name: str, encoding: str = "utf-8") -> list[VideoSpec]:
    """Merge all rows of a manifest."""
    entries = ManifestEntries()
    for location, fields in read_rows(stream, name, encoding).rows:
        entries.add(location, fields)
    return entries.videos()
