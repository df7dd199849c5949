"""Results of benchmark runs, one JSON file per method variant and seed."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.errors import ProtocolError
from benchmarks.rivals import METHODS
from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean

Matrix = list[list[float | None]]
_FOLDER = "results"


@dataclass
class RunResult:
    """The result of one method variant with one seed.

    Attributes:
        data: Identity of the evaluated data; a table compares only results on the same data.
        run: Identity of everything that determines the result except the code: data, method, settings, seed.
        tasks: Task IDs in the order of learning.
        rows: After each task, the :class:`trainer.evaluation.recall_row.RecallRow` as JSON values (recalls 0..1), with
            the mAP of labeled pairs (``pair_map``) if the data has pairs and the method a multi-modal encoder. Joint
            training learns all tasks at once: only its last row exists, the others are None.
        losses: Mean loss of each epoch, per task.
        before: Recall of each task in its local gallery with the release before that task; None for the first task.
        seconds: Wall time by phase and task. Training, indexing and evaluation are those of the learning job. Research
            is the time for all other measures in ``rows``; transfer, from the second task on, is that for ``before``.
        memory: Which measure ``peak_mib`` uses.
        parameters: Sizes as in :class:`benchmarks.learning.run_costs.ParameterCounts`.
        facts: Command, commit, versions, machine, protocol and sizes.
    """

    protocol: str
    label: str
    method: str
    seed: int
    data: str
    run: str
    tasks: list[str]
    rows: list[dict[str, Any] | None]
    steps: list[int] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    before: list[dict[str, Any] | None] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_mib: dict[str, list[float]] = field(default_factory=dict)
    peak_device_mib: dict[str, list[float]] = field(default_factory=dict)
    memory: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def modes(self) -> list[str]:
        """Evaluated query modes."""
        return list(self._last["recalls"])

    def galleries(self, mode: str) -> list[str]:
        """List the galleries measured in a query mode."""
        return list(self._last["recalls"].get(mode, {}))

    @property
    def sequential(self) -> bool:
        """Whether there is a release after every task, which measures of forgetting require."""
        return None not in self.rows

    def matrix(self, mode: str, gallery: str) -> Matrix:
        """Build the recall matrix A[i][t]: R@1 in percent of release i on task t's queries; None where not measured."""
        return [[self._r1(row, mode, gallery, task) for task in self.tasks] for row in self.rows]

    def measures(self, mode: str, gallery: str) -> dict[str, float | None]:
        """Compute R@1, R@5, R@10 (percent), MedR and MeanR after the last task, and BWF, FR and HM.

        In the *global* gallery, the first five are taken over the queries of all tasks together, as in ctvr-ffa-tame;
        in the *local* gallery, they are means over the tasks, as in bmu-moco. BWF, FR and HM need each task's recall
        right after learning it, and are None without it.
        """
        if gallery.startswith("global"):
            recalls = [self._last["pooled"][mode][gallery]]
        else:
            recalls = [self._last["recalls"][mode][gallery].get(task) for task in self.tasks]
        figures = {
            measure: _mean([factor * recall[measure] for recall in recalls if recall is not None])
            for measure, factor in (("r1", 100), ("r5", 100), ("r10", 100), ("medr", 1), ("meanr", 1))
        }
        matrix = self.matrix(mode, gallery)
        figures["bwf"] = backward_forgetting(matrix)
        figures["fr"] = forgetting_rate(matrix)
        figures["hm"] = harmonic_mean(matrix) if self.sequential else None
        return figures

    def to_text(self, mode: str, gallery: str) -> float | None:
        """Compute video-to-text R@1 after the last task in percent, averaged over the tasks."""
        recalls = self._last["to_text"][mode][gallery].values()
        return _mean([100 * recall["r1"] for recall in recalls if recall is not None])

    def both_directions(self, mode: str, gallery: str) -> dict[str, float | None]:
        """Collect the recalls after the last task in both directions, in percent.

        In the *global* gallery, they are taken over all queries together (ctp, table 1); in the *local* gallery, they
        are means over the tasks (continual-cross-modal-retrieval, table 1).

        Returns:
            ``tr1``, ``tr5``, ``tr10`` (a held-out video searches for captions), ``ir1``, ``ir5``, ``ir10`` (a caption
            searches for held-out videos), and their mean ``rm``.
        """
        to_video = self.measures(mode, gallery)
        to_text = [recall for recall in self._last["to_text"][mode][gallery].values() if recall]
        weights = [recall["queries"] if gallery == "global" else 1 for recall in to_text]
        figures: dict[str, float | None] = {}
        for k in ("r1", "r5", "r10"):
            hits = sum(weight * recall[k] for weight, recall in zip(weights, to_text, strict=True))
            figures[f"t{k}"] = 100 * hits / sum(weights) if weights else None
        figures |= {f"i{k}": to_video[k] for k in ("r1", "r5", "r10")}
        present = [figure for figure in figures.values() if figure is not None]
        figures["rm"] = _mean(present) if len(present) == len(figures) else None
        return figures

    def pair_mean_ap(self, k: int) -> float | None:
        """Get mAP@k of labeled pairs by their fused vectors after the last task, in percent; None if not measured."""
        by_k = self._last.get("pair_map")
        return None if by_k is None else 100 * by_k[str(k)]

    def mean_ap(self, mode: str, gallery: str, k: int) -> float | None:
        """Compute text-to-video mAP@k after the last task in percent, averaged over the tasks with categories."""
        precisions = self._last["mean_ap"][mode][gallery].values()
        return _mean([100 * by_k[str(k)] for by_k in precisions if by_k is not None])

    def drift(self, mode: str) -> float | None:
        """Compute the mean angle in degrees between current and original query vectors of earlier tasks."""
        return _mean([angle for angle in self._last["drift"].get(mode, {}).values() if angle is not None])

    def routing(self, m: int) -> float | None:
        """Compute the last release's routing accuracy@m in percent, averaged over the tasks."""
        return _mean([100 * by_m[str(m)] for by_m in self._last["routing_at"].values() if by_m is not None])

    def hubness(self, mode: str) -> float | None:
        """Compute the skewness of N_10 over the held-out videos of all tasks, after the last task."""
        skewness: float | None = self._last["hubness"].get(mode)
        return skewness

    @property
    def order(self) -> tuple[bool, bool, str, int]:
        """Sort key for tables: zero-shot first, joint training last, a variant's seeds together."""
        method = METHODS.get(self.method)
        return (
            method is None or method.is_trainable,
            bool(self.facts.get("jointly")),
            self.label,
            self.seed,
        )

    @property
    def _last(self) -> dict[str, Any]:
        return self.rows[-1] or {"recalls": {}}

    @staticmethod
    def _r1(row: Mapping[str, Any] | None, mode: str, gallery: str, task: str) -> float | None:
        recall = row["recalls"][mode][gallery].get(task) if row else None
        return None if recall is None else 100 * recall["r1"]


def to_json_value(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences and numpy values to JSON values; non-finite numbers become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return to_json_value(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [to_json_value(item) for item in value]
    return str(value)


def result_path(folder: Path, label: str, seed: int) -> Path:
    """Build the path of a run's result."""
    return folder / _FOLDER / f"{re.sub(r'[^A-Za-z0-9._=@+-]', '_', label)}-seed{seed}.json"


def write_result(folder: Path, result: RunResult) -> Path:
    """Write a result atomically, with its summary and recall matrices."""
    path = result_path(folder, result.label, result.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    galleries = {mode: result.galleries(mode) for mode in result.modes}
    content = to_json_value(result) | {
        "summary": {m: {g: result.measures(m, g) for g in names} for m, names in galleries.items()},
        "matrices": {m: {g: result.matrix(m, g) for g in names} for m, names in galleries.items()},
    }
    staged = path.with_suffix(f".{os.getpid()}.staged")
    staged.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    staged.replace(path)
    return path


def read_result(path: Path) -> RunResult | None:
    """Read a result; None if the file does not exist or is not a result."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return RunResult(**{f.name: content[f.name] for f in fields(RunResult) if f.name in content})
    except (OSError, ValueError, TypeError):
        return None


def read_results(folder: Path, data: str | None = None) -> list[RunResult]:
    """Read all results in an output folder of ``bench run``, in table order.

    Args:
        data: Identity of the data; read only results on this data.

    Raises:
        ProtocolError: The folder has no results, or results on different data.
    """
    found = [r for path in sorted((folder / _FOLDER).glob("*.json")) if (r := read_result(path))]
    chosen = sorted((r for r in found if data in (None, r.data)), key=lambda r: r.order)
    if not chosen:
        raise ProtocolError(
            f"{folder} has no results; create them with: cinestrata bench run <protocol> --out {folder}"
        )
    if len({(r.protocol, r.data) for r in chosen}) > 1:
        listed = ", ".join(sorted({f"{r.protocol} ({r.data})" for r in chosen}))
        raise ProtocolError(
            f"{folder} has results of different data: {listed}. Use a separate folder for each"
        )
    return chosen


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
