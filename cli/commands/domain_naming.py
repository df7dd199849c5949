"""Names of domains, from the folder, file or URI of their videos."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath, PurePosixPath

from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from media import MediaError
from media.sources.media_source import SourceUri, is_source_uri
from media.video_limits import VIDEO_SUFFIXES
from service.core.errors import InvalidInput
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_FILE_ENDINGS = (*ARCHIVE_SUFFIXES, *TABLE_SUFFIXES, *TYPED_SUFFIXES, *VIDEO_SUFFIXES)
_MANIFEST_NAMES = (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES, "metadata.jsonl", "metadata.csv")


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
