"""Recall of a task before it is learned, A[t−1, t], from which forward transfer is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from trainer.evaluation.gallery import Encoder, Query
from trainer.evaluation.recall_row import compute_recall
from trainer.evaluation.retrieval_metrics import Recall
from trainer.task_data import Clip
from trainer.video_embedding import embed_clips

__all__ = ["recall_before_learning"]


def recall_before_learning(
    encoder: Encoder,
    newest: str,
    encode_videos: Callable[[Tensor], Tensor],
    clips: Sequence[Clip],
    queries: Sequence[Query],
) -> Recall | None:
    """Recall of release t−1 on the held-out videos of task t, local gallery; None without queries.

    The release has no shard of the task and, if its queries are conditioned on a task, no condition for it. Both are
    obtained as the product obtains them for a task that is indexed without training: videos are embedded by the
    release's newest video encoder, and queries are encoded for the newest learned task. For fine-tuned towers these
    are simply both towers. :func:`models.forgetting_measures.forward_transfer` compares the recalls of all tasks with
    zero-shot recalls.

    Args:
        encoder: Query encoder of release t−1.
        newest: Id of the task that release t−1 learned last.
        encode_videos: Video encoder of release t−1, ``uint8 [n, M, H, W, 3]`` to unit vectors ``[n, dim]``.
        clips: Held-out videos of task t.
        queries: Captions of these videos.

    Raises:
        FramesMissing: The frames of a video are gone.
    """
    if not queries:
        return None
    texts = encoder.encode([query.text for query in queries], [newest], "latest")[:, 0]
    truth = [query.vector_id for query in queries]
    videos = embed_clips(encode_videos, clips)
    return compute_recall(texts, truth, videos, [clip.vector_id for clip in clips])
