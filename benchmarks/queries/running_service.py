"""Search a running service over HTTP with all kinds of queries to its library, beside BM25 over the same captions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.errors import ProtocolError
from benchmarks.queries.library_videos import Library, read_domains
from benchmarks.queries.query_comparison import QueryResults, plan_libraries
from benchmarks.queries.served_library import DEPTH, to_answer
from cinestrata_client.client import Client
from media import content_hash


def compare_service(
    url: str,
    folders: Sequence[Path],
    *,
    seeds: int,
    queries: int,
    names: bool,
    only: Collection[str] = (),
    excluded: Collection[str] = (),
    report: Callable[[str], None] = lambda line: None,
) -> QueryResults:
    """Search a service's library, and BM25 over the captions that it stores.

    Videos whose captions are in the folders, but not in the library, are hidden. Captions in new wording and domains
    left out need other libraries, so they are not measured. Arguments are those of
    :func:`~benchmarks.queries.query_comparison.compare_on_queries`.

    Args:
        url: Base URL of the service; the API key is that of the environment.

    Raises:
        ProtocolError: A folder cannot be used, or the service lacks one of its domains.
    """
    with tempfile.TemporaryDirectory() as media, Client(url) as client:
        domains = read_domains(folders, Path(media), names=names, only=only, excluded=excluded)
        library = _match_videos(client, domains)
        results = QueryResults.empty(library, seeds, names=names)
        for seed in range(seeds):
            plan, *_ = plan_libraries(library, seed, queries)
            answers = [
                to_answer(client.search(text, k=DEPTH, task=domain and [domain], moments=0))
                for text, domain in plan.questions
            ]
            results.add(plan, answers, {})
            report(f"{plan.name}: {sum(results.videos.values())} videos, {len(plan.questions)} searches")
        return results


def _match_videos(client: Client, domains: Library) -> Library:
    """Replace the videos' IDs and stored captions by those of the service; videos that it lacks are left out."""
    library = {}
    for name, videos in domains.items():
        stored = {video.content_hash: video for video in client.iter_videos(task=name, status="accepted")}
        known = [(video, stored.get(content_hash(video.file))) for video in videos]
        library[name] = [
            replace(
                video, id=own.id, stored=(*own.captions,), is_hidden=bool(video.captions) > bool(own.captions)
            )
            for video, own in known
            if own
        ]
        if not library[name]:
            raise ProtocolError(f"the service has no video of domain {name!r}")
    return library
