"""``cinestrata ingest``: create a task, or append to a domain, from a manifest, folder or archive."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath

import typer

from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from cli.commands.task_commands import find_task, report_created
from cli.commands.video_sending import LearnedDomain, NewDomain, VideoTarget
from cli.commands.video_sources import open_source, print_left_out
from cli.console import LEFT_OUT, console, refuse_call
from cli.service_client import connect
from cli.shared_options import parse_settings
from media import MediaError
from media.sources.media_source import SourceUri, is_source_uri
from media.video_limits import VIDEO_SUFFIXES
from service.core.errors import InvalidInput
from service.syncs.source_listing import explain_left_out
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_FILE_ENDINGS = (*_ARCHIVE_SUFFIXES, *TABLE_SUFFIXES, *TYPED_SUFFIXES, *VIDEO_SUFFIXES)
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
    strict: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Create a task or an append and follow its progress.

    Exits with status 1 if it does not become ready, and with status 3 if files were left out.

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
        strict: Whether to send nothing if a file cannot be used.
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
    left_out: dict[str, str] = {}
    if path is not None and is_archive:
        with path.open("rb") as archive, console.status("Sending the archive …"):
            task = target.send_archive(archive, path.name)
    else:
        opened = open_source(source, encoding, captions_from_names, in_place, is_remote=url is not None)
        if strict:
            opened.listing.require_all()
        left_out = explain_left_out(opened.listing.left_out)
        print_left_out(left_out)
        task = opened.send(target, opened.listing.videos)
    report_created(client, task, wait)
    if left_out:
        raise typer.Exit(LEFT_OUT)


def default_name(source: str | Path) -> str:
    """Derive the name of a domain from its folder, file or URI. Only known file endings are removed.

    Raises:
        InvalidInput: the URI is malformed.
    """
    path: PurePath = Path(os.path.abspath(source))  # a link has its own name
    is_folder = Path(path).is_dir()
    if isinstance(source, str) and is_source_uri(source):
        try:
            uri = SourceUri.parse(source)
        except MediaError as error:
            raise InvalidInput.at("source", f"{error.reason}.") from error
        path = PurePosixPath(uri.host, *uri.segments)
    stem = path.name
    if not is_folder and path.name in _MANIFEST_NAMES:
        stem = path.parent.name
    elif not is_folder:
        ending = next((end for end in _FILE_ENDINGS if stem.lower().endswith(end)), "")
        stem = stem[: len(stem) - len(ending)]
    name = normalize_name("".join(c if name_problem(f"a{c}a") is None else "-" for c in normalize_name(stem)))
    name = re.sub("-{2,}", "-", name)[:MAX_NAME_CHARS].strip()
    return name if name_problem(name) is None else "videos"
