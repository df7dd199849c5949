"""Addresses that webhooks may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.webhooks.deliveries import check_url, send_message


@pytest.fixture
def plain(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Settings:
    return settings_factory(tmp_path, upgraded=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://user:secret@example.com/hook",
        "file:///etc/passwd",
        "s3://bucket/hook",
        "gopher://example.com",
        "https://example.com/../hook",
        "https://exa mple.com/",
        "https://",
        "javascript:alert(1)",
        "//example.com",
        "https://example.com:99999/",
        "https://127.0.0.1/hook",
        "https://127.1/hook",
        "https://2130706433/hook",
        "https://0x7f000001/hook",
        "https://0177.0.0.1/hook",
        "https://10.0.0.1/hook",
        "https://169.254.169.254/hook",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://[fe80::1]/hook",
        "https://localhost/hook",
        "https://hooks.localhost/hook",
        "https://0.0.0.0/hook",
    ],
)
def test_address_is_refused(plain: Settings, url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_url(url)
    assert [error.field for error in refused.value.errors] == ["url"]
    assert "secret" not in refused.value.detail


def test_private_address_is_not_connected(plain: Settings) -> None:
    names = ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1")
    for host in (*names, "2130706433", "0x7f000001", "[::ffff:10.0.0.1]"):
        answer = send_message(f"https://{host}/hook", {}, b"{}")
        assert answer.status is None
        assert answer.is_forbidden or "cannot be resolved" in answer.text
        assert re.search("not public|cannot be resolved|not an allowed", answer.text)


def test_public_address_and_that_of_a_prefix_are_allowed_but_no_metadata_service(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    targets = "private+https://10.0.0.1/,private+https://169.254.169.254/"
    settings_factory(tmp_path, upgraded=False, webhook_targets=targets)
    for allowed in ("10.0.0.1", "93.184.215.14", "[2606:4700::1111]"):
        check_url(f"https://{allowed}/hook")
    with pytest.raises(InvalidInput, match="not a public address"):
        check_url("https://169.254.169.254/hook")


def test_internal_target_needs_a_prefix(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    settings_factory(tmp_path, upgraded=False, webhook_targets="private+http://hooks.internal:8080/in/")
    check_url("http://hooks.internal:8080/in/cinestrata?key=1")
    for url in ("http://hooks.internal:8080/other", "http://hooks.internal/in/x"):
        with pytest.raises(InvalidInput):
            check_url(url)


@pytest.mark.parametrize(
    "prefix", ["s3://bucket/", "private+s3://bucket/", "hooks.internal", "http://127.0.0.1/"]
)
def test_malformed_prefix_is_refused_at_start(
    tmp_path: Path, settings_factory: Callable[..., Settings], prefix: str
) -> None:
    with pytest.raises(ValidationError):
        settings_factory(tmp_path, upgraded=False, webhook_targets=prefix)
