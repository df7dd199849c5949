"""Recall with and without re-ranking by frame vectors, on the vectors of one method.

    python -m benchmarks.merging.reranking_quality --protocol world-dev --method strata --out DIR
    python -m benchmarks.merging.reranking_quality --clips FOLDER --method analytic --backbone small --out DIR

The domains are learned one after the other. After the last one, the first caption of every held-out video is searched
among the held-out videos of its own domain and of all domains, with the routing of the service. The first 100 results
are then ranked again: by text-conditioned pooling (:mod:`index.scanning.frame_pooling`), and with ``--learning-rates``
by X-Pool, whose projections are trained for each shard (:mod:`benchmarks.merging.xpool_pooling`). ``--split val``
searches the validation videos of a protocol, to select temperatures and learning rates. Vectors are rounded as the
vector store rounds them. The command writes reranking-quality.json and prints a table; the gain is that of the mean of
R@1, R@5 and R@10 in percentage points, with a 95 % bootstrap interval over the queries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.clip_domains import read_clip_domains
from benchmarks.clips.paired_bootstrap import difference_interval
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.protocol import load_protocol
from benchmarks.learning.task_preparation import prepare_source_tasks, prepare_tasks
from benchmarks.merging.xpool_pooling import XPool, train_xpool
from benchmarks.reporting.markdown_tables import format_mean, markdown_table
from index.scanning.frame_pooling import TEMPERATURE, pooled_cosines
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.evaluation_task import build_evaluation_tasks
from trainer.evaluation.gallery import Gallery, Query
from trainer.evaluation.retrieval_metrics import rank_by_id, recall_at
from trainer.methods import Method
from trainer.sequential_learning import SequentialLearner
from trainer.task_data import Clip, Split, TaskData, vector_ids
from trainer.video_embedding import embed_frames

__all__ = ["RankedQueries", "main", "measure_reranking", "rerank_scores"]

Floats = npt.NDArray[np.floating]
Vectors = npt.NDArray[np.float32]

_EPOCHS = 10  # of X-Pool
_DEPTH = 100  # re-ranked results, as in the service
_DEPTHS = (1, 5, 10)
_TEXTS = 16  # texts at a time, whose pooled videos are in memory
_ONE_VECTOR = "one vector"
_CACHE = Path("cinestrata-data/bench/frames")


@dataclass(frozen=True)
class RankedQueries:
    """Ranks of the queries of one seed in one gallery.

    Attributes:
        gallery: ``own`` or ``all``: held-out videos of the query's domain or of all domains.
        ranking: Name of the ranking.
        ranks: Rank of each query's video, by domain.
    """

    gallery: str
    ranking: str
    ranks: tuple[tuple[float, ...], ...]

    def recalls(self) -> tuple[float, ...]:
        """Mean over the domains of R@1, R@5 and R@10 in percent."""
        return tuple(float(np.mean([100 * recall_at(np.array(r), k) for r in self.ranks])) for k in _DEPTHS)

    def hit_rates(self) -> list[npt.NDArray[np.float64]]:
        """Mean of the hits at 1, 5 and 10 of each query in percent, by domain."""
        return [100 * np.mean([np.array(ranks) <= k for k in _DEPTHS], axis=0) for ranks in self.ranks]


@dataclass(frozen=True)
class _Shard:
    """Held-out videos of a task, and functions that rank them again.

    Attributes:
        gallery: Videos and queries.
        scorers: Name of a ranking → function from queries ``[Q, dim]`` to their scores ``[Q, G]``.
    """

    gallery: Gallery
    scorers: dict[str, Callable[[Vectors], Vectors]]


def rerank_scores(first: Floats, second: Floats, depth: int = _DEPTH) -> Floats:
    """Scores of rankings ``[Q, G]`` whose first results have the order of other scores.

    Args:
        first: Scores of the first stage ``[Q, G]``.
        second: Scores that order the first ``depth`` results of each query ``[Q, G]``.
        depth: Number of results to order again.
    """
    head = np.argsort(-first, axis=1, kind="stable")[:, :depth]
    rows = np.arange(len(first))[:, None]
    scores = first.astype(np.float64) - 1e6  # below every score of the head
    scores[rows, head] = second[rows, head]
    return scores


def measure_reranking(
    method: str,
    backbone: Backbone,
    tasks: Sequence[TaskData],
    settings: dict[str, object],
    split: Split,
    temperatures: Sequence[float],
    learning_rates: Sequence[float],
) -> list[RankedQueries]:
    """Learn the tasks in order, and rank the queries without and with re-ranking.

    Args:
        method: Name of the method.
        backbone: Backbone that the method adapts.
        tasks: Tasks with their frames.
        settings: Settings of the method.
        split: Split of the queries and of the searched videos.
        temperatures: Temperatures of the pooling without learned projections.
        learning_rates: Learning rates of X-Pool; empty without X-Pool, which needs the frames of all training videos.
    """
    learner = SequentialLearner(method, backbone, settings, round_vectors=True)
    shards: list[_Shard] = []
    for task in tasks:
        learner.train(task)
        shards.append(_index(learner, task, split, temperatures, learning_rates))
    assert learner.method is not None
    encoder, galleries = learner.query_encoder(), [shard.gallery for shard in shards]
    vectors = [gallery.shard.vectors(gallery.held_out) for gallery in galleries]
    sizes = [len(part) for part in vectors]
    starts = np.cumsum([0, *sizes]).tolist()  # column numbers identify videos
    ranks: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    evaluated = build_evaluation_tasks(encoder, galleries, learner.method.profiles.to_dense(), DEFAULT_PRIOR)
    for number, part in enumerate(evaluated):
        place = {video: column for column, video in enumerate(part.gallery.held_out.tolist(), starts[number])}
        truth = [place[query.vector_id] for query in part.gallery.queries]
        queries = encoder.encode(part.texts, [task.task_id for task in tasks], encoder.modes[-1])
        lifts = np.repeat(part.prior * part.evidence, sizes, axis=1)
        first = lifts + np.concatenate([queries[:, j] @ videos.T for j, videos in enumerate(vectors)], axis=1)
        for ranking in (_ONE_VECTOR, *shards[0].scorers):
            second = first
            if ranking != _ONE_VECTOR:
                scores = [shard.scorers[ranking](queries[:, j]) for j, shard in enumerate(shards)]
                second = lifts + np.concatenate(scores, axis=1)
            for gallery, columns in (
                ("own", range(starts[number], starts[number + 1])),
                ("all", range(starts[-1])),
            ):
                found = rank_by_id(rerank_scores(first[:, columns], second[:, columns]), columns, truth)
                ranks.setdefault((gallery, ranking), []).append(tuple(found.tolist()))
    return [RankedQueries(*key, tuple(by_task)) for key, by_task in ranks.items()]


def _index(
    learner: SequentialLearner,
    task: TaskData,
    split: Split,
    temperatures: Sequence[float],
    learning_rates: Sequence[float],
) -> _Shard:
    """Embed the videos of a learned task."""
    shard = learner.index(task)
    assert learner.method is not None
    clips = [clip for clip in task.clips if clip.split == split]
    captioned = tuple(Query(clip.captions[0], clip.vector_id) for clip in clips if clip.captions)
    frames = _embed_frames(learner.method, clips)
    scorers: dict[str, Callable[[Vectors], Vectors]] = {
        f"frames, τ {value:g}": partial(_pooled, frames=frames, temperature=value) for value in temperatures
    }
    scorers |= _learned_scorers(learner, task, frames, learning_rates) if learning_rates else {}
    return _Shard(Gallery(task.task_id, shard, vector_ids(clips), captioned), scorers)


def _learned_scorers(
    learner: SequentialLearner, task: TaskData, frames: Vectors, learning_rates: Sequence[float]
) -> dict[str, Callable[[Vectors], Vectors]]:
    """X-Pool trained on the training videos of a task, for each learning rate."""
    assert learner.method is not None
    scorers: dict[str, Callable[[Vectors], Vectors]] = {}
    pairs = [(row, caption) for row, clip in enumerate(task.train) for caption in clip.captions]
    texts = learner.query_encoder().encode([caption for _, caption in pairs], [task.task_id])[:, 0]
    train_frames = _embed_frames(learner.method, task.train)
    for rate in learning_rates:
        model = train_xpool(
            torch.from_numpy(texts),
            torch.from_numpy(train_frames),
            [row for row, _ in pairs],
            epochs=_EPOCHS,
            learning_rate=rate,
        )
        scorers[f"X-Pool, learning rate {rate:g}"] = partial(_learned, frames=frames, model=model)
    return scorers


def _embed_frames(method: Method, clips: Sequence[Clip]) -> Vectors:
    """Frame vectors ``[n, M, dim]`` of clips, as the vector store rounds them."""
    return embed_frames(method.encode_videos, clips).astype(np.float16).astype(np.float32)


def _pooled(queries: Vectors, frames: Vectors, temperature: float) -> Vectors:
    return np.stack([pooled_cosines(query, frames, temperature) for query in queries])


@torch.inference_mode()
def _learned(queries: Vectors, frames: Vectors, model: XPool) -> Vectors:
    videos = torch.from_numpy(frames)
    parts = [model(part, videos) for part in torch.from_numpy(queries).split(_TEXTS)]
    return np.asarray(torch.cat(parts).numpy(), np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print the table and write reranking-quality.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merging.reranking_quality", description=(__doc__ or "").split("\n")[0]
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--protocol", help="name or path of a protocol")
    source.add_argument("--clips", type=Path, help="folder of domains, as for `cinestrata bench clips`")
    parser.add_argument("--method", default="analytic", help="name of the method")
    parser.add_argument("--backbone", help="name of the backbone (default: that of the protocol, or small)")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="searched videos")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[TEMPERATURE], help="of the pooling")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[], help="of X-Pool")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of decoded frames")
    parser.add_argument("--out", type=Path, required=True, help="folder of reranking-quality.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.protocol:
        protocol = load_protocol(options.protocol)
        backbone = load_backbone(options.backbone or protocol.backbone, protocol.frames)
        tasks = prepare_tasks(protocol, backbone.spec, options.cache)
        settings = protocol.settings_of(MethodVariant.model_validate({"method": options.method}))
    else:
        backbone, settings = load_backbone(options.backbone or "small", None), {}
        tasks = prepare_source_tasks(read_clip_domains(options.clips), backbone.spec, options.cache)
    runs = [
        measure_reranking(
            options.method,
            backbone,
            tasks,
            {**settings, "seed": seed},
            options.split,
            options.temperatures,
            options.learning_rates,
        )
        for seed in range(options.seeds)
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {
        **{name: str(value) for name, value in vars(options).items()},
        "runs": [[asdict(ranked) for ranked in run] for run in runs],
    }
    (options.out / "reranking-quality.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(_table(runs))


def _table(runs: Sequence[Sequence[RankedQueries]]) -> str:
    rows = []
    for rankings in zip(*runs, strict=True):
        gallery, ranking, gain = rankings[0].gallery, rankings[0].ranking, ""
        if ranking != _ONE_VECTOR:
            plain = [next(r for r in run if (r.gallery, r.ranking) == (gallery, _ONE_VECTOR)) for run in runs]
            gain = "{:+.1f} ({:+.1f} to {:+.1f})".format(
                *difference_interval(_means(rankings), _means(plain))
            )
        recalls = zip(*(ranked.recalls() for ranked in rankings), strict=True)
        rows.append([gallery, ranking, *(format_mean(values, "{:.1f}") for values in recalls), gain])
    return markdown_table(["videos", "ranking", "R@1", "R@5", "R@10", "gain"], rows)


def _means(rankings: Sequence[RankedQueries]) -> list[list[float]]:
    """Mean hit rate of each query over the seeds, by domain."""
    return [
        np.mean(parts, axis=0).tolist()
        for parts in zip(*(ranked.hit_rates() for ranked in rankings), strict=True)
    ]


if __name__ == "__main__":
    main()
