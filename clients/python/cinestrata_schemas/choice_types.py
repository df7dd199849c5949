"""Choice types shared by the API, the command line and the catalog.

The command line declares its options with them, so this module imports nothing else.
"""

from __future__ import annotations

from typing import Literal

QueryMode = Literal["pinned", "latest"]
# Kinds of searchable text: a transcript is given or edited, speech is heard, and text on the screen is read. People
# confirmed that a *confirmed* one describes the video.
TextKind = Literal["caption", "transcript", "speech", "screen", "confirmed", "metadata", "name"]
# Where a timed text comes from, in order of precedence; a *person* wrote or corrected it.
TextSource = Literal["person", "subtitles", "chapters", "speech", "screen"]
# What is read from a video: *file* includes its subtitles, chapters and tags; a text names one of the first two.
ReadSource = Literal[TextSource, "file"]
SubtitleFormat = Literal["srt", "vtt"]
SearchScope = Literal["task", "all"]  # which domains to compare a video with
AccessScope = Literal["search", "ingest", "admin"]  # each includes the previous ones
ActorKind = Literal["user", "key", "environment", "anonymous", "cli", "worker", "system"]

TaskState = Literal["queued", "probing", "training", "indexing", "evaluating", "ready", "failed", "cancelled"]
TaskKind = Literal["domain", "append", "upgrade"]
Gallery = Literal["local", "global", "local_all", "global_all"]

Verdict = Literal["right", "wrong"]  # on a video, for a text
VideoStatus = Literal["pending", "accepted", "rejected"]
Split = Literal["train", "val", "test"]
EffectiveSplit = Literal["train", "val", "test", "appended", "fold"]
# Where the videos that measure a domain come from: a given or a derived test split, or a learned fold.
HeldOut = Literal["given", "derived", "cross_fitted"]
# The captions of a fold are learned, and measured by a model trained without them.
LEARNED_SPLITS = ("train", "fold")
VanishedVideos = Literal["keep", "delete"]  # what to do with videos whose file is gone

# Orders of lists; a leading - reverses one.
TaskSort = Literal["position", "-position", "name", "-name", "created", "-created", "learned", "-learned"]
VideoSort = Literal["added", "-added", "id", "-id", "duration", "-duration", "bytes", "-bytes"]
ShardSort = Literal["created", "-created", "count", "-count", "bytes", "-bytes"]
ReleaseSort = Literal["learned", "-learned", "created", "-created", "bytes", "-bytes"]
TimeSort = Literal["time", "-time"]
