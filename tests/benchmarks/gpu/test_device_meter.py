"""Utilization of a GPU, with a driver whose library is an object of the test."""

from __future__ import annotations

import ctypes
from threading import Event
from typing import Any

import pytest

from benchmarks.gpu.device_meter import UtilizationSampler


class _Driver:
    """Library of a driver with one GPU, which is busy for 30, then for 50 percent of the time."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.was_sampled_twice, self.is_open = Event(), False
        self._percents = iter([30, 50])

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:  # noqa: N802
        device._obj.value = 7
        return 0 if uuid == b"GPU-12ab" else 2

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, rates: Any) -> int:  # noqa: N802
        assert device.value == 7
        percent = next(self._percents, None)
        if percent is None:
            self.was_sampled_twice.set()
            return 999
        rates._obj.gpu = percent
        return self.status


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, 0.4), (3, None)],
)
def test_samples_of_the_driver_are_averaged(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: float | None
) -> None:
    driver = _Driver(status)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    sampler = UtilizationSampler("12ab")
    assert driver.was_sampled_twice.wait(60)
    assert sampler.end() == (pytest.approx(expected) if expected else None)
    assert not driver.is_open


def test_gpu_that_the_driver_does_not_know_has_no_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert UtilizationSampler("34cd").end() is None


def test_machine_without_a_driver_has_no_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert UtilizationSampler("12ab").end() is None
