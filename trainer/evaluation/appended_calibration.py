"""Calibration with the captions of appended videos.

No encoder has learned from these captions, but the routing profile that searches use contains them. The evidence of an
appended caption for its own task is therefore computed without that caption: its tokens are counted once less. Such
captions, with their results in the extended shard, calibrate like those of cross-fitting
(:mod:`trainer.evaluation.cross_fitting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.releases.calibration_captions import CalibrationCaption
from models.routing.router import distinct_tokens
from models.routing.token_statistics import profile_values, token_profile
from trainer.evaluation.calibration_searches import NEAREST_VIDEOS
from trainer.evaluation.cross_fitting import MAX_TASK_CAPTIONS
from trainer.evaluation.gallery import Encoder, Ids, ShardVectors, Vectors

_CHUNK = 4096  # captions tokenized at a time


@dataclass(frozen=True)
class AppendedCalibration:
    """Statistics of a task with appended videos.

    Attributes:
        profile: Routing profile ``[V]`` of the captions of training videos and appended videos.
        captions: Sample of the appended captions, with their results in the task.
    """

    profile: Vectors
    captions: tuple[CalibrationCaption, ...]


def calibrate_appended(
    encoder: Encoder,
    task: str,
    shard: ShardVectors,
    searched: Ids,
    learned: Sequence[str],
    appended: Sequence[tuple[int, str]],
    *,
    vocabulary: int,
    mode: str,
) -> AppendedCalibration:
    """Search for a sample of appended captions in their task.

    Args:
        encoder: Query encoder of the release.
        shard: Shard with the appended videos.
        searched: Vector ids of the videos that can be retrieved.
        learned: Captions of training videos.
        appended: Vector id and text of each appended caption.
        vocabulary: Size of the tokenizer's vocabulary.
        mode: Query mode.
    """
    counts = torch.zeros(vocabulary)
    texts = [*learned, *(text for _, text in appended)]
    for start in range(0, len(texts), _CHUNK):
        for tokens in encoder.tokenize(texts[start : start + _CHUNK]):
            counts[distinct_tokens(tokens)] += 1
    factor = encoder.profile_factor
    profile = token_profile(counts, factor).numpy()
    present = set(searched.tolist())
    candidates = [(video, text) for video, text in appended if video in present]
    order = np.sort(np.random.default_rng(0).permutation(len(candidates))[:MAX_TASK_CAPTIONS])
    sample = [candidates[row] for row in order.tolist()]
    if not sample:
        return AppendedCalibration(profile, ())
    tokenized = encoder.tokenize([text for _, text in sample])
    further = encoder.routing_evidence(tokenized, [task])
    queries = encoder.encode([text for _, text in sample], [task], mode)[:, 0]
    cosines = (queries @ shard.vectors(searched).T).astype(np.float64)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST_VIDEOS]
    columns = {int(video): column for column, video in enumerate(searched)}
    found = []
    for row, (video, text) in enumerate(sample):
        words = distinct_tokens(tokenized[row])
        others = counts[words] - 1  # without this caption
        evidence = profile_values(others, counts.sum() - len(words), vocabulary, factor)
        found.append(
            CalibrationCaption(
                task=task,
                video=video,
                text=text,
                words=float(evidence.sum()),
                captions=0.0 if further is None else float(further[row, 0]),
                coverage=float((others > 0).float().mean()) if len(words) else 0.0,
                score=float(cosines[row, columns[video]]),
                ids=tuple(searched[nearest[row]].tolist()),
                cosines=tuple(cosines[row, nearest[row]].tolist()),
            )
        )
    return AppendedCalibration(profile, tuple(found))
