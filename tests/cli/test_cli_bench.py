"""The command ``cinestrata bench``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.learning.protocol import protocol_names
from tests.benchmarks.conftest import clip_folder
from tests.cli.invocation import run

__all__ = ["clip_folder"]


def bench(*arguments: object) -> Any:
    return run("bench", *map(str, arguments))


def test_protocols_are_listed() -> None:
    outcome = bench("run")
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.output.splitlines()] == protocol_names()


@pytest.mark.slow
def test_protocol_compares_its_methods(clip_folder: Path, tmp_path: Path) -> None:
    facts = []
    for domain in ("stripes", "disks"):
        rows: dict[str, list[list[str]]] = {"train": [], "test": []}
        for clip in sorted((clip_folder / domain).glob("*.mp4")):
            (tmp_path / f"{domain}-{clip.name}").symlink_to(clip)
            rows["test" if clip.stem.endswith("2") else "train"].append(
                [f"{domain}-{clip.stem}", f"{clip.stem[:-2]} {domain}"]
            )
        facts.append(json.dumps({"category": domain, **rows}))
    (tmp_path / "facts.gz").write_bytes(gzip.compress("\n".join(facts).encode()))
    source = {
        "kind": "ctvr",
        "facts": str(tmp_path / "facts.gz"),
        "categories_per_task": 1,
        "needs": "clips.",
    }
    protocol = {
        "title": "Small",
        "source": source,
        "backbone": "tiny",
        "frames": 2,
        "prior": 0,
        "settings": {"epochs": 1, "batch_size": 4},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(protocol))
    outcome = bench(
        *("run", tmp_path / "small.yaml", "--videos", tmp_path, "--seeds", 1, "--device", "cpu"),
        *(
            "--methods",
            "zero_shot,finetune@epochs=2",
            "--out",
            tmp_path / "out",
            "--cache",
            tmp_path / "frames",
        ),
    )
    assert outcome.exit_code == 0, outcome.output
    assert "finetune@epochs=2, seed 0: domain 2 of 2 (disks)" in outcome.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [run["label"] for run in results["runs"]] == ["zero_shot", "finetune@epochs=2"]
    zero_shot, finetune = results["runs"]
    assert zero_shot["order"] == finetune["order"] == ["task-01", "task-02"]
    assert zero_shot["ranks"]["global"] == zero_shot["ranks"]["global_raw"], "the prior is 0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vatex",), "no protocol 'vatex'"),
        (("ctvr-msrvtt-10", "--methods", "magic"), "unknown method 'magic'"),
        (("ctvr-msrvtt-10", "--methods", "finetune@epochs"), "'epochs' is not setting=value"),
        (("ctvr-msrvtt-10",), "--videos"),
        (("ctvr-actnet-20", "--videos", "nowhere"), "nowhere is not a folder"),
    ],
)
def test_invalid_arguments_are_reported_without_traceback(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = bench("run", *arguments, "--out", tmp_path / "out", "--cache", tmp_path / "frames")
    assert outcome.exit_code == 1
    assert message in outcome.output
    assert "Traceback" not in outcome.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options", [("--counts", "5,x"), ("--counts", "5", "--methods", "analytic,zero_shot")]
)
def test_invalid_numbers_of_captioned_clips_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = bench("clips", tmp_path, *options)
    assert outcome.exit_code == 2
    assert "--counts" in outcome.output


def test_routing_table_of_a_split(tmp_path: Path) -> None:
    clips = {
        noun: [{"video_id": f"{noun}{number}", "caption": f"the {noun} moves"} for number in range(2)]
        for noun in ("horse", "truck")
    }
    split = [{"train": {noun: rows}, "val": {noun: rows}} for noun, rows in clips.items()]
    (tmp_path / "two.json").write_text(json.dumps(split))
    outcome = bench("routing", tmp_path / "two.json", "--backbone", "tiny", "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in outcome.output
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in (tmp_path / "out" / "table.md").read_text()
