"""Fixed limits on requests. Configurable limits are in :class:`service.core.settings.Settings`.

Modules read them as attributes (``request_limits.MAX_QUERY_CHARS``), so that a test can replace one in a single place.
"""

from __future__ import annotations

_MIB = 1024**2
_GIB = 1024**3

# Searches.
MAX_QUERY_CHARS = 1000
MAX_RESULTS = 100  # per page
MAX_WAITING_TEXTS = 512  # queries that one process runs or queues
MAX_PAGED_RESULTS = 10_000  # results of a search over all pages: every page ranks those before it again
MAX_WORST_QUERIES = 50  # per domain report
MAX_CLIP_BYTES = 256 * _MIB  # clip or picture to search with
MAX_CLIP_SECONDS = 30.0  # to decode it
MAX_FEEDBACK = 10_000  # entries per caller
MAX_FEEDBACK_ON_A_VIDEO = 100  # of these

# Tasks.
MAX_VIDEOS_PER_TASK = 100_000
MAX_VIDEO_BYTES = 4 * _GIB
MAX_CAPTIONS = 64  # per video
MAX_CAPTION_CHARS = 2000
MAX_CUE_CHARS = 2000
MAX_TRANSCRIPT_CHARS = 1_000_000  # over all cues in a video
MAX_SETTINGS_BYTES = 4096  # of a task's method settings, as JSON
MAX_METADATA_BYTES = 16_384  # per video, as JSON
MAX_TEXT_LINES = 1_000_000  # in a caption table or other text; a line may hold all captions of a video
MAX_TABLE_BYTES = 256 * _MIB  # for a caption table
MAX_DOCUMENT_BYTES = 64 * _MIB  # for a caption table that is one JSON document, parsed as a whole
MAX_DOCUMENT_VALUES = 5_000_000  # objects, lists and items in it, each of which takes up to 72 bytes
MAX_ARCHIVE_FILES = 100_001  # the videos of a task and the manifest
MAX_UNPACKED_BYTES = 16 * _GIB
MAX_PENDING_UPLOADS = 100_000  # resumable uploads not yet used by a task
MAX_PENDING_BYTES = 256 * _GIB  # taken by these uploads together
