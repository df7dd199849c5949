"""GPU memory as ``nvidia-smi`` reports it; the driver of the test is a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.maintenance import read_gpu_memory


def _install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_devices_are_read_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "printf '0, 1024, 81559\\n1, [N/A], [N/A]\\n2, 5, 10\\n'", monkeypatch)
    found = [(gpu.device, gpu.used_bytes, gpu.total_bytes) for gpu in read_gpu_memory()]
    assert found == [(0, 1024 * 1024**2, 81559 * 1024**2), (2, 5 * 1024**2, 10 * 1024**2)]


@pytest.mark.parametrize(
    "script", ["echo No devices were found; exit 6", "echo '0, \u0661, 2'", "exec missing"]
)
def test_driver_without_a_device_reports_none(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, script, monkeypatch)
    assert read_gpu_memory() == []


def test_machine_without_a_driver_reports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpu_memory() == []
