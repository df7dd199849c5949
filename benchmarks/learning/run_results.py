"""What a run came to, and its place on disk: one JSON file for each method and seed."""

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
from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from trainer.methods import METHODS

__all__ = ["RunResult", "read_result", "read_results", "result_path", "to_json_value", "write_result"]

Matrix = list[list[float | None]]
_FOLDER = "results"


@dataclass
class RunResult:
    """One method with one seed.

    Attributes:
        label: what tables call it.
        data: identity of what it was measured on; only results of the same data stand in one table.
        run: identity of everything it depends on besides code: data, method, settings, seed.
        tasks: ids, in the order in which they were learned.
        rows: after each task the whole :class:`trainer.evaluation.recall_row.RecallRow` as to_json_value values (recalls 0..1); None
            where nothing was measured: joint training, which learns all tasks at once, has the last row alone.
        steps: optimiser steps per task.
        losses: mean loss of each epoch, per task.
        before: recall of each task in its local gallery just before it was learned, by the release before; None for
            the first one.
        seconds: wall time by phase and task. Phases are training, indexing and evaluation, as in a worker; research is
            what all further figures of ``rows`` take (in older results it is part of evaluation), and transfer, from
            the second task on, what ``before`` takes.
        peak_mib: likewise, most memory in use; ``memory`` says how it was measured.
        settings: all settings of the method, as they were validated.
        facts: versions, command, commit, machine, sizes: what the figures cannot be read without.
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
    settings: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def modes(self) -> list[str]:
        """Query modes that were measured."""
        return list(self._last["recalls"])

    @property
    def sequential(self) -> bool:
        """Whether there was a release after every task; without, nothing can be said of forgetting."""
        return None not in self.rows

    def matrix(self, mode: str, gallery: str) -> Matrix:
        """A[i][t]: Recall@1 in percent of release i on the queries of task t; None where there is nothing."""
        return [[self._r1(row, mode, gallery, task) for task in self.tasks] for row in self.rows]

    def measures(self, mode: str, gallery: str) -> dict[str, float | None]:
        """R@1, R@5, R@10 (percent), MedR and MeanR after the last task, and BWF, FR and HM.

        In a *global* gallery the first five are over the queries of all tasks together, as in ctvr-ffa-tame; in a
        *local* one they are means over the tasks, as in bmu-moco. BWF, FR and HM need the recall of every task when
        it had just been learned, and are None without it.
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
        """R@1 of video to text after the last task in percent, mean over the tasks."""
        recalls = self._last["to_text"][mode][gallery].values()
        return _mean([100 * recall["r1"] for recall in recalls if recall is not None])

    def mean_ap(self, mode: str, gallery: str, k: int) -> float | None:
        """mAP@k of text to video after the last task in percent, mean over the tasks that have classes."""
        found = self._last["mean_ap"][mode][gallery].values()
        return _mean([100 * at[str(k)] for at in found if at is not None])

    def drift(self, mode: str) -> float | None:
        """How far the queries of earlier tasks have moved since their task was learned, mean angle in degrees."""
        return _mean([angle for angle in self._last["drift"].get(mode, {}).values() if angle is not None])

    def routing(self, m: int) -> float | None:
        """Routing accuracy@m of the last release in percent, mean over the tasks."""
        return _mean([100 * at[str(m)] for at in self._last["routing_at"].values() if at is not None])

    def hubness(self, mode: str) -> float | None:
        """Skewness of N_10 over the held-out videos of all tasks, after the last one."""
        skewed: float | None = self._last["hubness"].get(mode)
        return skewed

    @property
    def order(self) -> tuple[bool, bool, str, int]:
        """Where it stands in a table: zero-shot first, joint training last, seeds together."""
        method = METHODS.get(self.method)
        return (
            method is None or method.is_trainable,
            method is not None and method.requires_all_videos,
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
    """Anything made of data classes, mappings, sequences and numpy's values as what JSON can hold.

    What is no finite number becomes None.
    """
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
    """Where the result of a run belongs."""
    return folder / _FOLDER / f"{re.sub(r'[^A-Za-z0-9._=@+-]', '_', label)}-seed{seed}.json"


def write_result(folder: Path, result: RunResult) -> Path:
    """Write a result, all of it or nothing, with the figures that follow from it."""
    path = result_path(folder, result.label, result.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    galleries = {mode: list(result._last["recalls"][mode]) for mode in result.modes}
    content = to_json_value(result) | {
        "summary": {m: {g: result.measures(m, g) for g in names} for m, names in galleries.items()},
        "matrices": {m: {g: result.matrix(m, g) for g in names} for m, names in galleries.items()},
    }
    staged = path.with_suffix(f".{os.getpid()}.staged")
    staged.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    staged.replace(path)
    return path


def read_result(path: Path) -> RunResult | None:
    """A result; None when there is no file, or not one of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return RunResult(**{f.name: content[f.name] for f in fields(RunResult)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_results(folder: Path, data: str | None = None) -> list[RunResult]:
    """All results below a folder that ``bench run`` wrote to, in the order of tables.

    Args:
        data: only those that were measured on this.

    Raises:
        ProtocolError: there are none, or they were not measured on the same data.
    """
    found = [r for path in sorted((folder / _FOLDER).glob("*.json")) if (r := read_result(path))]
    chosen = sorted((r for r in found if data in (None, r.data)), key=lambda r: r.order)
    if not chosen:
        raise ProtocolError(
            f"{folder} holds no results; make some with: cinestrata bench run <protocol> --out {folder}"
        )
    if len({(r.protocol, r.data) for r in chosen}) > 1:
        listed = ", ".join(sorted({f"{r.protocol} ({r.data})" for r in chosen}))
        raise ProtocolError(
            f"{folder} holds results that were measured on different data: {listed}. Keep one folder for each"
        )
    return chosen


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
