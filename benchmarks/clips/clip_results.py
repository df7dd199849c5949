"""The result of one run of a method or a rival on a sequence of domains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from trainer.evaluation.recall_row import GalleryName

Matrix = list[list[float | None]]

# Galleries in the tables: held-out and all videos of a query's own shard; held-out videos of all shards, with and
# without routing evidence.
GALLERIES: tuple[GalleryName, ...] = ("local", "local_all", "global", "global_raw")


@dataclass(frozen=True)
class ClipRun:
    """Ranks and costs of one run.

    Attributes:
        label: Name of the method variant or rival.
        seed: Seed of the method and of the domain order.
        order: Domains in the order of learning.
        ranks: Rank of each query's clip, from 1, by gallery and domain.
        routed: Whether each query's own domain has the largest routing evidence, by domain.
        seconds: Wall time by phase (training, indexing, evaluation): one value per domain in the order of learning, or
            a single value for joint training.
        peak_mib: Peak resident memory of the process in MiB, in the form of ``seconds``.
        clips: Number of clips by domain.
        matrices: R@1 in percent by gallery ("local", "global"), for release i on domain t's queries; empty for a joint
            solution.
        evidence: Routing evidence of each query for the domains in ``order``, by domain; empty for a rival.
        settings: Settings of a rival, in words.
        trained: Number of parameters that gradient steps change in one task.
        stored: Number of values stored in the last release, or in the encoders of all shards, without the backbone.
    """

    label: str
    seed: int
    order: tuple[str, ...]
    ranks: Mapping[str, Mapping[str, Sequence[float]]]
    routed: Mapping[str, Sequence[bool]]
    seconds: Mapping[str, Sequence[float]]
    clips: Mapping[str, int]
    peak_mib: Mapping[str, Sequence[float]] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    evidence: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    settings: str = ""
    trained: int = 0
    stored: int = 0

    def recall(self, gallery: str, k: int) -> float:
        """Compute R@k in percent, averaged over the domains."""
        return domain_mean([self.hits(gallery, k)[name] for name in sorted(self.order)])

    def query_recall(self, gallery: str, k: int) -> float:
        """Compute R@k in percent, averaged over the queries of all domains."""
        return query_mean([self.hits(gallery, k)[name] for name in sorted(self.order)])

    def hits(self, gallery: str, k: int) -> dict[str, list[float]]:
        """Score each query 100 if its clip is among the first k, otherwise 0; by domain."""
        return {name: [100.0 * (rank <= k) for rank in ranks] for name, ranks in self.ranks[gallery].items()}

    def routing(self) -> float | None:
        """Compute routing accuracy@1 in percent, averaged over the domains; None without routing evidence."""
        if not self.routed:
            return None
        return domain_mean([[100.0 * hit for hit in hits] for hits in self.routed.values()])

    def forgetting(self, gallery: str) -> float | None:
        """Compute BWF of R@1 in percentage points; None for a joint solution."""
        matrix = self.matrices.get(gallery)
        return backward_forgetting(matrix) if matrix else None

    def local_measures(self) -> list[float | None]:
        """Compute FR and HM of R@1 in the own domain (bmu-moco, section 4.1); None for a joint solution."""
        matrix = self.matrices.get("local")
        return [forgetting_rate(matrix), harmonic_mean(matrix)] if matrix else [None, None]

    def median_rank(self, gallery: str) -> float:
        """Compute the median rank over the queries of all domains."""
        return statistics.median(rank for ranks in self.ranks[gallery].values() for rank in ranks)

    @property
    def seconds_per_domain(self) -> float:
        """Mean wall time to learn, embed and measure a domain."""
        return sum(map(sum, self.seconds.values())) / len(self.order)

    @property
    def peak(self) -> float | None:
        """Peak memory of the process over all domains, in MiB; None for a rival."""
        return max((max(values) for values in self.peak_mib.values()), default=None)

    @property
    def seconds_per_100_clips(self) -> float:
        """Wall time of all domains per 100 clips."""
        return 100 * sum(map(sum, self.seconds.values())) / sum(self.clips.values())


def domain_mean(values: Sequence[Sequence[float]]) -> float:
    """Average over each domain's queries, then over the domains."""
    return sum(sum(part) / len(part) for part in values) / len(values)


def query_mean(values: Sequence[Sequence[float]]) -> float:
    """Compute the mean over the queries of all domains."""
    return sum(map(sum, values)) / sum(map(len, values))
