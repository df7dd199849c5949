"""Benchmark of the calibration of appends: disjoint splits, and both models in the library of the append."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.merging.append_calibration import divide_domains, measure_append_calibration
from models.backbones.backbone_loading import load_backbone
from trainer.task_data import TaskData


def _ids(clips: object) -> set[int]:
    return {clip.vector_id for clip in clips}  # type: ignore[attr-defined]


def test_videos_are_learned_or_appended_once(tasks: list[TaskData]) -> None:
    for seed in range(3):
        domains = divide_domains(tasks, seed)
        assert len(domains) == len(tasks)
        for task, domain in zip(tasks, domains, strict=True):
            parts = [_ids(domain.learned.clips), _ids(domain.appended), _ids(domain.held_out)]
            assert all(parts)
            assert sum(map(len, parts)) == len(set().union(*parts)) == len(task.clips)
            assert _ids(domain.grown.clips) == _ids(task.clips)
            assert {clip.split for clip in domain.learned.clips} == {"train"}
            assert {clip.split for clip in (*domain.appended, *domain.held_out)} == {None}
    assert _ids(divide_domains(tasks, 0)[0].held_out) != _ids(divide_domains(tasks, 1)[0].held_out)


def test_foreign_videos_are_those_of_the_next_domain(tasks: list[TaskData]) -> None:
    (domain,) = divide_domains(tasks[:2], 0, foreign=True)
    assert _ids(domain.learned.clips) == _ids(tasks[0].clips)
    assert _ids(domain.appended) | _ids(domain.held_out) == _ids(tasks[1].clips)
    assert len(divide_domains(tasks[:3], 0, foreign=True)) == 1, "the last domain has no successor"


def test_both_models_search_the_library_of_the_append(tasks: list[TaskData]) -> None:
    torch.set_num_threads(1)
    captioned = [
        replace(
            task,
            clips=tuple(
                replace(clip, captions=tuple(f"{task.name} clip {clip.vector_id} view {n}" for n in range(6)))
                for clip in task.clips
            ),
        )
        for task in tasks[:2]
    ]
    domains = divide_domains(captioned, 0)
    absent = {"foreign": ["a train arrives", "two cooks"]}
    release, append = measure_append_calibration(domains, load_backbone("tiny", 2), "analytic", absent, 0)
    assert (release.model, append.model) == ("release", "append")
    assert release.captions == append.captions == 6 * sum(len(domain.held_out) for domain in domains)
    assert release.refused_absent.keys() == append.refused_absent.keys() == release.refused_before.keys()
    assert set(release.refused_before) >= {"foreign", "random letters"}
    assert append.refused_before == {}
    for quality in (release, append):
        shares = [quality.answer_error, quality.answer_brier, quality.refused, quality.within_reach]
        assert all(0 <= share <= 1 for share in shares)
    assert release != replace(append, model="release", refused_before=release.refused_before)


def test_too_few_captions_give_no_measurement(tasks: list[TaskData]) -> None:
    torch.set_num_threads(1)
    domains = divide_domains(tasks[:1], 0)
    few = [
        replace(
            domain,
            learned=replace(
                domain.learned, clips=tuple(replace(c, captions=("a clip",)) for c in domain.learned.clips)
            ),
        )
        for domain in domains
    ]
    assert measure_append_calibration(few, load_backbone("tiny", 2), "analytic", {}, 0) == []
