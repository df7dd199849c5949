"""Tests of the admission control."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack

import pytest

from service.core.errors import TooManyRequests
from service.search.admission import AdmissionControl


class _Clock:
    """Clock that a test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Requests:
    """Admitted requests, which a test answers one after the other."""

    def __init__(self, admission: AdmissionControl, clock: _Clock) -> None:
        self._admission, self._clock = admission, clock
        self._waiting: deque[ExitStack] = deque()

    def admit(self, count: int) -> None:
        for _ in range(count):
            with ExitStack() as request:
                request.enter_context(self._admission.admit(1))
                self._waiting.append(request.pop_all())

    def answer(self, count: int, seconds: float) -> None:
        """Answer requests, each after a time in seconds."""
        for _ in range(count):
            self._clock.now += seconds
            self._waiting.popleft().close()

    def fail(self, seconds: float) -> None:
        """Let a request fail after a time in seconds."""
        self._clock.now += seconds
        with pytest.raises(KeyError), self._waiting.popleft():
            raise KeyError


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def admission(clock: _Clock) -> AdmissionControl:
    return AdmissionControl(1000, max_seconds=2.0, saturated=10, clock=clock)


@pytest.fixture
def requests(admission: AdmissionControl, clock: _Clock) -> _Requests:
    return _Requests(admission, clock)


def test_the_number_of_searches_is_limited_but_a_single_request_of_any_size_is_admitted() -> None:
    admission = AdmissionControl(3)
    with admission.admit(2), admission.admit(1):
        with pytest.raises(TooManyRequests, match="3 searches are waiting") as refused, admission.admit(1):
            pass
        assert refused.value.headers == {"Retry-After": "1"}
        with pytest.raises(TooManyRequests, match="3 searches are waiting"):
            admission.check()
    with admission.admit(100), pytest.raises(TooManyRequests), admission.admit(1):
        pass
    with pytest.raises(KeyError), admission.admit(3):
        raise KeyError
    with admission.admit(3):
        pass


def test_searches_are_refused_when_they_would_take_too_long_at_the_measured_speed(
    admission: AdmissionControl, requests: _Requests
) -> None:
    requests.admit(119)
    requests.answer(100, seconds=0.1)  # ten answers per second
    requests.admit(1)
    with pytest.raises(TooManyRequests, match=r"about 2\.1 seconds, and the limit is 2\.") as refused:
        admission.check()
    assert refused.value.headers == {"Retry-After": "1"}
    with pytest.raises(TooManyRequests, match=r"about 2\.1 seconds"):
        requests.admit(1)


def test_the_estimate_follows_the_speed(admission: AdmissionControl, requests: _Requests) -> None:
    requests.admit(620)
    requests.answer(100, seconds=0.15)
    with pytest.raises(TooManyRequests, match="about 78"):
        admission.check()
    requests.answer(500, seconds=0.03)
    admission.check()


def test_running_batches_and_clips_do_not_slow_down_the_estimate(
    admission: AdmissionControl, requests: _Requests, clock: _Clock
) -> None:
    """All answers of a batch come at its end, and a single search needs none of its threads."""
    with admission.admit(256), admission.admit(16), admission.admit(16):
        for _ in range(20):
            requests.admit(1)
            requests.answer(1, seconds=0.05)
            clock.now += 0.5
        requests.admit(20)
        requests.answer(10, seconds=0.05)
        admission.check()


def test_answers_of_a_batch_share_the_time_that_it_took(
    admission: AdmissionControl, requests: _Requests, clock: _Clock
) -> None:
    for _ in range(50):  # more than half of the answers count: sixty per second
        requests.admit(10)
        clock.now += 0.1
        requests.answer(10, seconds=0.0)
    requests.admit(100)
    admission.check()
    with pytest.raises(TooManyRequests):
        requests.admit(30)


def test_requests_that_fail_are_no_answers(admission: AdmissionControl, requests: _Requests) -> None:
    requests.admit(119)
    for _ in range(33):  # an answer in 0.3 seconds
        requests.fail(seconds=0.1)
        requests.fail(seconds=0.1)
        requests.answer(1, seconds=0.1)
    with pytest.raises(TooManyRequests, match="about 6"):
        admission.check()


def test_the_speed_of_a_process_that_is_not_saturated_is_not_measured(
    admission: AdmissionControl, requests: _Requests
) -> None:
    for _ in range(100):
        requests.admit(1)
        requests.answer(1, seconds=1.0)
    requests.admit(100)
    admission.check()


def test_a_speed_is_forgotten_and_never_refuses_few_searches(
    admission: AdmissionControl, requests: _Requests, clock: _Clock
) -> None:
    requests.admit(40)
    requests.answer(28, seconds=10.0)
    with pytest.raises(TooManyRequests, match="about 130"):
        admission.check()
    requests.answer(3, seconds=0.0)
    admission.check()
    clock.now += 61
    admission.check()
