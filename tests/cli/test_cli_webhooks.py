"""Webhooks from the command line."""

from __future__ import annotations

import json

import pytest

from service.core.settings import Settings, settings
from tests.cli.invocation import run
from tests.web_files import Handler, WebFiles, send


def test_webhook_is_registered_tested_and_removed(
    folder: Settings, web_files: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_WEBHOOK_TARGETS", f"private+{web_files.url}/")
    settings.cache_clear()
    statuses = [204, 500]
    bodies: list[bytes] = []

    def receive(request: Handler) -> None:
        bodies.append(request.rfile.read(int(request.headers["Content-Length"])))
        send(request, statuses.pop(0), b"\x1b[31mno")

    web_files.handlers["/hook"] = receive
    created = run(
        "webhooks", "create", f"{web_files.url}/hook?key=hunter2", "--event", "task.ready", "--json"
    )
    webhook = json.loads(created.output)
    assert (webhook["events"], webhook["secret"][:6]) == (["task.ready"], "whsec_")
    accepted = run("webhooks", "test", webhook["id"])
    assert (accepted.exit_code, "status 204" in accepted.output) == (0, True)
    assert json.loads(bodies[0])["type"] == "webhook.test"
    refused = run("webhooks", "test", webhook["id"])
    assert (refused.exit_code, "status 500" in refused.output) == (1, True)
    assert "\x1b" not in refused.output
    listed = run("webhooks", "list")
    assert webhook["id"][:12] in listed.output
    assert "hunter2" not in listed.output
    assert "whsec_" not in listed.output
    assert run("webhooks", "remove", webhook["id"]).exit_code == 0
    assert json.loads(run("webhooks", "list", "--json").output) == []
    assert run("webhooks", "remove", webhook["id"]).exit_code == 1


@pytest.mark.slow
def test_webhook_is_named_by_its_address_or_the_beginning_of_its_id(
    folder: Settings, web_files: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_WEBHOOK_TARGETS", f"private+{web_files.url}/")
    settings.cache_clear()
    statuses = [500, 204]
    web_files.handlers["/hook"] = lambda request: send(request, statuses.pop(0), b"no" * 100)
    address = f"{web_files.url}/hook"
    (hook, other) = [
        json.loads(run("webhooks", "create", url, "--json").output)["id"]
        for url in (f"{address}?key=hunter2", f"{web_files.url}/other")
    ]
    listed = run("webhooks", "list").output
    assert {line.split()[0] for line in listed.splitlines()} >= {hook[:12], other[:12]}
    for name in (hook[:12], address, f"{address}?key=hunter2", f"{address}/"):
        changed = json.loads(run("webhooks", "set", name, "--disabled", "--json").output)
        assert (changed["id"], changed["enabled"]) == (hook, False), name
    assert "is enabled" in run("webhooks", "set", address, "--enabled").output
    ambiguous = run("webhooks", "remove", "whk_")
    assert (ambiguous.exit_code, other in ambiguous.output) == (1, True)
    assert run("webhooks", "test", address).exit_code == 1
    assert run("webhooks", "remove", "").exit_code == 1
    (message,) = json.loads(run("webhooks", "log", address, "--json").output)
    log = run("webhooks", "log", address).output
    assert f"{message['id']}" in log
    assert "webhook.test" in log
    sent = run("webhooks", "log", address, "--resend", str(message["id"]), "--json")
    assert json.loads(sent.output)["state"] == "pending"
    assert run("webhooks", "log", address, "--resend", str(message["id"])).exit_code == 1, (
        "it is pending already"
    )
    assert "No messages" in run("webhooks", "log", other).output


@pytest.mark.parametrize("address", ["http://127.0.0.1/", "https://u:p@example.com/", "ftp://example.com/"])
def test_address_that_is_not_allowed_is_refused(folder: Settings, address: str) -> None:
    refused = run("webhooks", "create", address)
    assert refused.exit_code == 2
    assert "url" in refused.output
