"""deploy/prometheus and deploy/grafana: expressions over metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from service.library import prometheus_metrics

# Exported only by a process with a measured library, or with a GPU.
MEASURE_GAUGES = {
    "cinestrata_recall",
    "cinestrata_forgetting",
    "cinestrata_router_accuracy",
    "cinestrata_gpu_memory_used_bytes",
    "cinestrata_gpu_memory_total_bytes",
}
CATALOG_GAUGES = {
    "cinestrata_active_tasks",
    "cinestrata_tasks",
    "cinestrata_shards",
    "cinestrata_vectors",
    "cinestrata_shard_bytes",
    "cinestrata_alerts",
}


@pytest.fixture(scope="module")
def expressions(root: Path) -> list[str]:
    """PromQL expressions of the dashboard and of the alerts."""
    panels = json.loads((root / "deploy/grafana/cinestrata.json").read_text())["panels"]
    rules = yaml.safe_load((root / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [
        rule["expr"] for rule in rules
    ]


def test_expressions_use_exported_metrics(expressions: list[str]) -> None:
    page, _ = prometheus_metrics.render()
    exported = set(re.findall(r"^# HELP (cinestrata_\w+)", page.decode(), re.MULTILINE))
    exported |= CATALOG_GAUGES | MEASURE_GAUGES  # exported only where a catalog exists
    used = {name for expression in expressions for name in re.findall(r"cinestrata_\w+", expression)}
    assert used >= MEASURE_GAUGES
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= exported
