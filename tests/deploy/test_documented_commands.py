"""Commands in the documentation are those of the command line, the API, the Makefile and the modules."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import jsonschema_rs
import pytest
from typer.main import get_command

from api.app import create_app
from cli.main import app
from tests.deploy.documented_commands import ROOT, DocumentedCommand, block_commands, span_commands

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "clients/python/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
)
UNCHECKED = frozenset({"bash", "cp", "docker", "export", "jq", "pip", "source"})
SERVICE = "127.0.0.1:8000"
COMMAND_LINE: Any = get_command(app)


def _commands(program: str, *, with_spans: bool = True) -> list[DocumentedCommand]:
    found = [command for document in DOCUMENTS for command in block_commands(document)]
    if with_spans:
        found += [command for document in DOCUMENTS for command in span_commands(document)]
    return [command for command in found if command.words[0] == program]


def _problem(command: DocumentedCommand, error: object) -> str:
    return f"{command.place}: {' '.join(command.words)[:120]}: {error}"


def test_every_program_of_the_documents_is_checked() -> None:
    programs = {command.words[0] for document in DOCUMENTS for command in block_commands(document)}
    assert programs - UNCHECKED == {"cinestrata", "curl", "make", "python"}


def test_documented_commands_are_accepted_by_the_command_line() -> None:
    commands = _commands("cinestrata", with_spans=False)
    assert len(commands) > 40
    problems = []
    for command in commands:
        try:
            _parse(COMMAND_LINE, list(command.words[1:]))
        except Exception as error:
            problems.append(_problem(command, error))
    assert not problems


def test_commands_and_options_in_the_text_exist() -> None:
    commands = _commands("cinestrata")
    assert len(commands) > 80
    problems = []
    for command in commands:
        node: Any = COMMAND_LINE
        words = list(command.words[1:])
        while hasattr(node, "commands") and words and words[0] in node.commands:
            node = node.commands[words.pop(0)]
        options = {name for parameter in node.params for name in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"--help", "--install-completion"}
        problems += [
            _problem(command, f"no option {word}")
            for word in words
            if word.startswith("-") and word.split("=")[0] not in options and not re.fullmatch(r"-\w+", word)
        ]
        if hasattr(node, "commands") and words and not words[0].startswith("-"):
            problems.append(_problem(command, f"no command {words[0]}"))
    assert not problems


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line without executing it."""
    context = command.make_context("cinestrata", words, parent=parent)
    if hasattr(command, "commands"):
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        _parse(child, rest, context)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return create_app().openapi()


def test_documented_requests_are_those_of_the_api(document: dict[str, Any]) -> None:
    commands = _commands("curl")
    assert len(commands) > 12
    assert not [
        _problem(command, error) for command in commands for error in _request_errors(command, document)
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("http://127.0.0.1:8000/nosuch", "no route"),
        ("-X DELETE http://127.0.0.1:8000/search", "no method"),
        ("http://127.0.0.1:8000/search?query=a", "no parameter 'query'"),
        ("http://127.0.0.1:8000/tasks -d {}", "is a required property"),
        ('http://127.0.0.1:8000/tasks -d {"name":"a","video":[]}', "not allowed|unexpected|required"),
    ],
)
def test_wrong_request_is_named(document: dict[str, Any], arguments: str, error: str) -> None:
    command = DocumentedCommand("x", ("curl", *arguments.split()))
    assert re.search(error, " ".join(_request_errors(command, document)))


def _request_errors(command: DocumentedCommand, document: Mapping[str, Any]) -> Iterator[str]:
    method, address, data = _request(command.words[1:])
    url = urlsplit(address)
    if url.netloc != SERVICE:
        yield f"another address than {SERVICE}"
    operations = _operations(document, url.path)
    if not operations:
        yield f"no route {url.path}"
        return
    operation = operations.get(method.lower())
    if operation is None:
        yield f"no method {method} of {url.path}"
        return
    names = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}
    yield from (f"no parameter {name!r}" for name, _ in parse_qsl(url.query) if name not in names)
    if data is not None:
        content = operation["requestBody"]["content"]
        schema = content["application/json"]["schema"] | {"components": document["components"]}
        yield from (
            error.message for error in jsonschema_rs.validator_for(schema).iter_errors(json.loads(data))
        )


def _request(words: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Return the method, address and JSON body of a curl command."""
    method, address, data, is_get = None, "", [], False
    pending = iter(words)
    for word in pending:
        if word == "-G":
            is_get = True
        elif word in ("-X", "-I"):
            method = next(pending) if word == "-X" else "HEAD"
        elif word in ("-d", "--data-urlencode"):
            data.append(next(pending))
        elif word in ("-F", "--data-binary"):
            next(pending)
            method = method or "POST"
        elif word == "-H":
            next(pending)
        elif word != "-i":
            assert not word.startswith("-"), word
            address = word
    if is_get:
        return "GET", f"{address}?{'&'.join(data)}", None
    body = "&".join(data) if data else None
    return method or ("POST" if body else "GET"), address, body


def _operations(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the operations of a path's most specific route."""
    matching = [
        template
        for template in document["paths"]
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), f"/v1{unquote(path)}")
    ]
    return document["paths"][min(matching, key=lambda t: t.count("{"))] if matching else {}


def test_documented_make_verbs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", makefile, re.MULTILINE))
    verbs = {verb for target in targets for verb in target.split()}
    problems = []
    for command in _commands("make"):
        for word in command.words[1:]:
            name, equals, _ = word.partition("=")
            is_known = re.search(rf"\$[({{]{name}\b", makefile) if equals else name in verbs
            if not is_known:
                problems.append(_problem(command, word))
    assert not problems


def test_documented_modules_have_their_options() -> None:
    commands = [command for command in _commands("python") if command.words[1] == "-m"]
    assert len(commands) > 6
    problems = []
    for command in commands:
        module, *arguments = command.words[2:]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            problems.append(_problem(command, "no such module"))
            continue
        source = Path(spec.origin).read_text(encoding="utf-8")
        problems += [
            _problem(command, f"no option {word}")
            for word in arguments
            if word.startswith("--") and f'"{word}"' not in source
        ]
    assert not problems
