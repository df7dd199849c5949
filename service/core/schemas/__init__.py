"""Request and response bodies of the API, one module per resource."""

from __future__ import annotations

from service.core.schemas.health import Readiness
from service.core.schemas.library import (
    LibraryOverview,
    RecallFigures,
    RecallMatrix,
    ReleaseSummary,
    ShardSummary,
    WorkerLease,
)
from service.core.schemas.model_types import Matrix, Split, State
from service.core.schemas.search import (
    MomentMatch,
    SearchBatch,
    SearchBatchResponse,
    SearchQuery,
    SearchResponse,
    SearchResult,
    SearchTiming,
    TaskRouting,
)
from service.core.schemas.tasks import (
    AppendSpec,
    Drift,
    RejectedVideo,
    RelearnSpec,
    TaskDetails,
    TaskEvent,
    TaskProgress,
    TaskSpec,
    VideoCounts,
    VideoSpec,
)
from service.core.schemas.uploads import (
    CaptionTable,
    LocalFile,
    LocalText,
    OmittedPath,
    PreviewProblem,
    PreviewRequest,
    UploadPreview,
)
from service.core.schemas.video_search import (
    CaptionMatch,
    CaptionsResponse,
    ClipSearchResponse,
    ClipTiming,
    SimilarVideosResponse,
)
from service.core.schemas.videos import (
    DeletionRequest,
    DeletionResult,
    VideoDetails,
    VideoMoment,
    VideoPage,
    VideoSummary,
)

__all__ = [
    "AppendSpec",
    "CaptionMatch",
    "CaptionTable",
    "CaptionsResponse",
    "ClipSearchResponse",
    "ClipTiming",
    "DeletionRequest",
    "DeletionResult",
    "Drift",
    "LibraryOverview",
    "LocalFile",
    "LocalText",
    "Matrix",
    "MomentMatch",
    "OmittedPath",
    "PreviewProblem",
    "PreviewRequest",
    "Readiness",
    "RecallFigures",
    "RecallMatrix",
    "RejectedVideo",
    "RelearnSpec",
    "ReleaseSummary",
    "SearchBatch",
    "SearchBatchResponse",
    "SearchQuery",
    "SearchResponse",
    "SearchResult",
    "SearchTiming",
    "ShardSummary",
    "SimilarVideosResponse",
    "Split",
    "State",
    "TaskDetails",
    "TaskEvent",
    "TaskProgress",
    "TaskRouting",
    "TaskSpec",
    "UploadPreview",
    "VideoCounts",
    "VideoDetails",
    "VideoMoment",
    "VideoPage",
    "VideoSpec",
    "VideoSummary",
    "WorkerLease",
]
