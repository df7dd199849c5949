"""``cinestrata export``: write captions, splits, metadata and transcripts as a caption table for ``ingest``."""

from __future__ import annotations

import csv
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.uris import is_source_uri
from cinestrata_schemas.videos import VideoDetails
from cli.console import CommandGroup, console, fail, print_json, progress_bar
from cli.options import AsJson, Data, Url
from cli.service_client import PAGE, ServiceClient, connect

app = CommandGroup()

TableFormat = Literal["jsonl", "csv"]

_MAX_ROW_CHARS = 50_000  # of captions and cues in a row: CSV readers refuse cells of 131,072 characters
_SPLITS = ("train", "val", "test")  # of a table; the others follow from the library, and are not given


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write to, with one subfolder per domain.")],
    task: Annotated[
        str | None, typer.Option(help="Export only this domain (name or ID), without a subfolder.")
    ] = None,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Write metadata.jsonl or metadata.csv.")
    ] = "jsonl",
    videos: Annotated[bool, typer.Option("--videos", help="Also write the video files.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Write captions, splits, metadata and transcripts as tables that `cinestrata ingest` reads."""
    from cli.commands.task_commands import find_task
    from service.tasks.uploaded_videos import storable_paths

    client = connect(url, data)
    if task is not None:
        targets = [(find_task(client, task), folder)]
    else:
        ready = [task for task in client.list_tasks() if task.into is None and task.state == "ready"]
        # A table without videos, such as a deleted domain's, would stop the ingest of the whole folder.
        domains = [domain for domain in ready if domain.counts.accepted]
        names = storable_paths([(domain.slug or domain.id).replace("/", "-") for domain in domains])
        targets = [(domain, folder / name) for domain, name in zip(domains, names, strict=True)]
    if not targets:
        fail("The library has no domains.", "Add a domain first: cinestrata ingest.")
    tables = [target / f"metadata.{table_format}" for _, target in targets]
    if existing := next((path for path in tables if path.exists()), None):
        fail(f"{existing} exists.", "Nothing was written. Choose another folder, or move the file.")
    written = []
    for (domain, target), table in zip(targets, tables, strict=True):
        count = _export_domain(client, domain, target, table, videos)
        written.append({"domain": domain.name, "table": str(table), "videos": count})
        console.say(f"{domain.name}: {count} videos in {table}")
    print_json(written)


def _export_domain(
    client: ServiceClient, domain: TaskDetails, folder: Path, table: Path, with_videos: bool
) -> int:
    """Write a domain's table, which appears once it is complete, and return the number of videos."""
    ids = [video.id for video in client.iter_videos(task=domain.id, status="accepted", limit=PAGE)]
    with progress_bar("videos") as bar:
        details = [client.get_video(video) for video in bar.track(ids, description=f"Reading {domain.name}")]
    names = file_names([video.uri for video in details], renamed=with_videos)
    folder.mkdir(parents=True, exist_ok=True)
    if with_videos:
        with progress_bar("videos") as bar:
            for video, name in bar.track(list(zip(details, names, strict=True)), description="Writing"):
                if not is_source_uri(video.uri):
                    _write_video(client, video, folder / name)
    partial = table.with_name(f".{table.name}.part")
    try:
        # A byte order mark, because spreadsheets read a CSV without one as Windows text.
        encoding = "utf-8-sig" if table.suffix == ".csv" else "utf-8"
        with partial.open("w", encoding=encoding, newline="") as stream:
            rows = (row for video, name in zip(details, names, strict=True) for row in _rows(video, name))
            if table.suffix == ".csv":
                _write_csv(stream, rows)
            else:
                stream.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        os.replace(partial, table)
    finally:
        partial.unlink(missing_ok=True)
    return len(details)


def file_names(uris: Sequence[str], *, renamed: bool) -> list[str]:
    """Return a path for each video, relative to the folder that contains all of them; remote ones keep their URIs.

    Names of files that are written, and so ``renamed``, are valid everywhere. Equal names are always numbered.
    """
    from service.storage.library_files import UPLOAD_SCHEME
    from service.tasks.uploaded_videos import storable_paths

    local = [uri for uri in uris if not is_source_uri(uri)]
    paths = [
        uri.removeprefix(UPLOAD_SCHEME).partition("/")[2] if uri.startswith(UPLOAD_SCHEME) else uri
        for uri in local
    ]
    common = posixpath.commonpath([posixpath.dirname(path.lstrip("/")) for path in paths]) if paths else ""
    inside = [path.lstrip("/").removeprefix(common).lstrip("/") for path in paths]
    names = iter(storable_paths(inside) if renamed or len({*inside}) < len(inside) else inside)
    return [uri if is_source_uri(uri) else next(names) for uri in uris]


def _write_video(client: ServiceClient, video: VideoDetails, target: Path) -> None:
    """Write a video file, unless a file with its content is there."""
    from media.media_paths import content_hash

    if target.is_file():
        if target.stat().st_size == video.bytes and content_hash(target) == video.content_hash:
            return
        fail(f"{target} exists, and is another file.", "Name an empty folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name[:200]}.part")
    try:
        client.download_video(video.id, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _rows(video: VideoDetails, name: str) -> Iterator[dict[str, Any]]:
    """Yield a video's rows: one, or several for long captions or transcripts; an ingest merges them."""
    texts: list[tuple[str, Any]] = [("captions", caption) for caption in video.captions]
    texts += [("transcript", cue.model_dump(exclude={"id"}, exclude_none=True)) for cue in video.transcript]
    row: dict[str, Any] = {"file_name": name, "captions": []}
    if video.effective_split in _SPLITS:
        row["split"] = video.effective_split
    if video.metadata:
        row["metadata"] = video.metadata
    chars = 0
    for field, text in texts:
        size = len(json.dumps(text, ensure_ascii=False)) + 2
        if chars + size > _MAX_ROW_CHARS:
            yield row
            row, chars = {"file_name": name, "captions": []}, 0
        row.setdefault(field, []).append(text)
        chars += size
    yield row


def _write_csv(stream: TextIO, rows: Iterator[dict[str, Any]]) -> None:
    writer = csv.DictWriter(stream, ["file_name", "captions", "split", "metadata", "transcript"])
    writer.writeheader()
    for row in rows:
        cells = {
            field: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for field, value in row.items()
        }
        if len(row["captions"]) == 1 and not {"|", "[", "{"} & set(row["captions"][0]):
            cells["captions"] = row["captions"][0]
        writer.writerow(cells)
