"""Tests of the admission control."""

from __future__ import annotations

import pytest

from service.core.errors import TooManyRequests
from service.search.search_load import AdmissionControl


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
