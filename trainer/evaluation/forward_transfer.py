"""How well a task is found before it is learned: A[t−1][t], from which forward transfer follows."""

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

    The release has no shard of the task and, where its queries are conditioned on a task, no condition for it. Both are
    had as the product has them for a task that it indexes without learning: videos by the release's newest video
    encoder, queries as if for the task that it learned last. For fine-tuned towers this is simply both towers.
    :func:`models.forgetting_measures.forward_transfer` sets the recalls of all tasks against zero-shot ones.

    Args:
        encoder, encode_videos: of release t−1.
        newest: id of the task that it learned last.
        clips: the held-out videos of task t.
        queries: their captions.
    """
    if not queries:
        return None
    texts = encoder.encode([query.text for query in queries], [newest], "latest")[:, 0]
    truth = [query.vector_id for query in queries]
    return compute_recall(texts, truth, embed_clips(encode_videos, clips), [clip.vector_id for clip in clips])
