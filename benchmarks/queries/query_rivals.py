"""The product's rivals on the same videos and texts: full-text search, alone and with vectors, zero-shot, a ridge.

BM25 is that of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), over all texts
that the library stores for a video. The convex combination is that of Bruch, Gai and Ingber, "An Analysis of Fusion
Functions for Hybrid Retrieval" (TOIS 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.clips.ridge_rival import (
    FEATURE_BACKBONE,
    DomainFeatures,
    RidgeFit,
    RidgeSettings,
    extract_features,
    select_settings,
    word_evidence,
)
from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import Progress, SourceTask, SourceVideo, prepare_source_tasks
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.queries.library_videos import Library, LibraryVideo
from index.arrays import batches
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.routing import DEFAULT_PRIOR
from trainer.video_embedding import embed_clips

Floats = npt.NDArray[np.floating]

_K1, _B = 1.2, 0.75
_NO_RESULT = -np.inf


class Bm25:
    """BM25 scores for videos with texts.

    Args:
        documents: For each of N videos, all its texts, joined.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(caption_words(document)) for document in documents]
        lengths = np.array([count.total() for count in counts], np.float64)
        norms = _K1 * (1 - _B + _B * lengths / max(1.0, lengths[lengths > 0].mean()))
        self._count = len(documents)
        self._postings: dict[str, tuple[list[int], list[float]]] = {}
        for row, count in enumerate(counts):
            for word, number in count.items():
                rows, weights = self._postings.setdefault(word, ([], []))
                rows.append(row)
                weights.append(number * (_K1 + 1) / (number + norms[row]))

    def __call__(self, text: str) -> Floats:
        """Score each video, ``[N]``; −∞ if it has no word of the text."""
        scores = np.zeros(self._count)
        for word in set(caption_words(text)) & self._postings.keys():
            rows, weights = self._postings[word]
            idf = np.log(1 + (self._count - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += idf * np.array(weights)
        return np.where(scores > 0, scores, _NO_RESULT)


def stored_text(video: LibraryVideo, *, with_names: bool) -> str:
    """Join all texts that the library stores for a video."""
    names = [video.name, *_values(video.metadata)] if with_names else []
    return " ".join([*video.stored, *names]).replace("_", " ")


def _values(value: object) -> list[str]:
    """List the texts and numbers in metadata."""
    if isinstance(value, Mapping | list):
        parts = value.values() if isinstance(value, Mapping) else value
        return [text for part in parts for text in _values(part)]
    return [] if isinstance(value, bool) or value is None else [str(value)]


def combine(full_text: Floats, visual: Floats, weight: float) -> Floats:
    """Combine two lists of scores ``[N]`` convexly; −∞ in ``visual`` means outside the gallery.

    Both are scaled to 0..1: BM25 from its theoretical minimum, 0, the other from its lowest score in the gallery.

    Args:
        weight: Weight of ``full_text``, 0..1.
    """
    inside = visual > _NO_RESULT
    words, looks = np.maximum(full_text[inside], 0.0), visual[inside]
    scores = np.full(len(visual), _NO_RESULT)
    scores[inside] = weight * words / max(words.max(), 1e-9)
    scores[inside] += (1 - weight) * (looks - looks.min()) / max(np.ptp(looks), 1e-9)
    return scores


@dataclass(frozen=True)
class FrozenFeatures:
    """What frozen towers compute for all videos, independent of captions and of the order of domains.

    Attributes:
        ridge: Features for the ridge by domain; :class:`JointRidge` sets the captions.
        vectors: The backbone's vectors by domain.
        encode: Encodes texts with the backbone as vectors ``[n, dim]``.
        engine: Library that the backbone runs in.
    """

    ridge: Mapping[str, DomainFeatures]
    vectors: Mapping[str, Floats]
    encode: Callable[[Sequence[str]], Floats]
    engine: str


def read_features(
    library: Library, backbone: str, cache: Path, *, workers: int, progress: Progress
) -> FrozenFeatures:
    """Decode all videos, and compute what the cache lacks.

    Raises:
        ProtocolError: Videos cannot be decoded; the message names them.
    """
    sources = [
        SourceTask(
            name,
            name,
            tuple(
                SourceVideo(v.id, v.captions, "test" if v.is_hidden else "train", FileFrames(v.file))
                for v in videos
            ),
        )
        for name, videos in library.items()
    ]
    spec = frame_spec(backbone, None)
    rival_spec = FrameSpec(spec.frames, frame_spec(FEATURE_BACKBONE, spec.frames).size)
    tasks, rival_tasks = (
        prepare_source_tasks(sources, part, cache, workers=workers, progress=progress)
        for part in (spec, rival_spec)
    )
    towers = load_backbone(FEATURE_BACKBONE, spec.frames)
    ridge = {}
    for task in rival_tasks:
        names = "".join([towers.fingerprint, *(clip.frames_path.stem for clip in task.clips)])
        path = cache / f"ridge-features-{blake2b(names.encode(), digest_size=16).hexdigest()}.npy"
        if path.exists():
            ridge[task.task_id] = DomainFeatures(task.task_id, np.load(path), (), np.zeros(0, np.bool_))
        else:
            (ridge[task.task_id],) = extract_features(towers, [task])
            np.save(path, ridge[task.task_id].features)
    frozen = load_backbone(backbone)
    remember_outputs(frozen, cache)
    vectors = {
        task.task_id: embed_clips(lambda frames: encode_frames(frozen, frames)[0], task.clips)
        for task in tasks
    }

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> Floats:
        parts = [encode_texts(frozen, frozen.tokenize(part))[0].numpy() for part in batches(texts, 64)]
        return np.concatenate(parts)

    return FrozenFeatures(ridge, vectors, encode, frozen.engine)


class JointRidge:
    """One ridge over all of a library's domains, with routing evidence from its words.

    Args:
        features: Features of its videos.
        settings: Settings; by default the best in cross-validation on the captioned videos.
    """

    def __init__(
        self, library: Library, features: FrozenFeatures, settings: RidgeSettings | None = None
    ) -> None:
        self._domains = [
            replace(
                features.ridge[name],
                captions=tuple(video.stored for video in videos),
                held_out=np.array([video.is_hidden for video in videos]),
            )
            for name, videos in library.items()
        ]
        self.settings = settings or select_settings(self._domains, joint=True, prior=DEFAULT_PRIOR)
        self._fit = RidgeFit(self._domains, self.settings)
        self._vectors = np.concatenate([self._fit.embed(domain.features) for domain in self._domains])
        self._owners = np.repeat(
            np.arange(len(self._domains)), [len(domain.features) for domain in self._domains]
        )

    def cosines(self, texts: Sequence[str]) -> Floats:
        """Compute the cosine of each text with all videos, in library order, ``[n, N]``."""
        return np.asarray(self._fit.encode(texts) @ self._vectors.T)

    def evidence(self, texts: Sequence[str]) -> Floats:
        """Compute the term for the words of each video's domain, likewise."""
        return np.asarray(DEFAULT_PRIOR * word_evidence(self._domains, texts)[:, self._owners])
