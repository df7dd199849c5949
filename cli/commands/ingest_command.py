"""``cinestrata ingest``: create a task, or append to a domain, from a manifest, folder or archive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath

from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from cli.commands.task_commands import find_task, report_created
from cli.commands.video_sending import LearnedDomain, NewDomain, VideoTarget
from cli.commands.video_sources import open_source
from cli.console import console, refuse_call
from cli.service_client import connect
from cli.shared_options import parse_settings
from media import MediaError
from media.sources.media_source import SourceUri, is_source_uri
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_MANIFEST_NAMES = (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES, "metadata.jsonl", "metadata.csv")


def run_ingest(
    source: str | Path,
    name: str | None,
    into: str | None,
    method: str | None,
    assignments: Sequence[str],
    wait: bool,
    in_place: bool,
    encoding: str | None,
    captions_from_names: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Create a task or an append and follow its progress. Exits with status 1 if it does not become ready.

    Args:
        source: Path of a manifest, folder of videos, or archive with a manifest; or URI of a folder or manifest.
        name: Name of the domain; None: derived from the path.
        into: Name or ID of the task whose domain receives the videos; None creates a domain.
        method: Learning method; None: the service's default.
        assignments: Settings of the method as ``name=value``.
        wait: Whether to follow the task until it reaches a final state.
        in_place: Whether to send paths instead of file contents, for a service that reads the same files.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether to use the file name as the caption of a video without captions.
        url: URL of a running service; None: use the data folder in this process.
        data: Data folder; None: from the environment.
    """
    if into and (name or method or assignments):
        refuse_call(
            "--into cannot be combined with --name, --method or --set.",
            "The domain keeps its name and its release.",
        )
    path = None if isinstance(source, str) and is_source_uri(source) else Path(source)
    is_archive = path is not None and path.is_file() and path.name.endswith(_ARCHIVE_SUFFIXES)
    if is_archive and (encoding or captions_from_names):
        refuse_call(
            "--encoding and --captions-from-names cannot be combined with an archive.",
            "Unpack it and pass the folder.",
        )
    settings = parse_settings(assignments)
    client = connect(url, data)
    target: VideoTarget
    if into:
        target = LearnedDomain(client, find_task(client, into).id)
    else:
        target = NewDomain(client, name or default_name(source), method, settings)
    if path is not None and is_archive:
        with path.open("rb") as archive, console.status("Sending the archive …"):
            task = target.send_archive(archive, path.name)
    else:
        opened = open_source(source, encoding, captions_from_names, in_place, is_remote=url is not None)
        opened.require_all()
        task = opened.send(target, opened.videos)
    report_created(client, task, wait)


def default_name(source: str | Path) -> str:
    """Derive the name of a domain from its file, folder or URI.

    Raises:
        InvalidInput: the URI is malformed.
    """
    path: PurePath = Path(source).resolve()
    if isinstance(source, str) and is_source_uri(source):
        try:
            uri = SourceUri.parse(source)
        except MediaError as error:
            raise InvalidInput.at("source", f"{error.reason}.") from error
        path = PurePosixPath(uri.host, *uri.segments)
    stem = path.parent.name if path.name in _MANIFEST_NAMES else path.name.split(".")[0]
    name = normalize_name("".join(c if name_problem(f"a{c}a") is None else "-" for c in normalize_name(stem)))
    name = re.sub("-{2,}", "-", name)[:MAX_NAME_CHARS].strip()
    return name if name_problem(name) is None else "videos"
