"""Decoder processes that outlive their owner and serve the next one: a start takes longer than a test's videos."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from media.child_process import ChildOwner, ChildProcess

_start, _send, _receive = ChildProcess.start, ChildProcess.send, ChildProcess.receive
_Key = tuple[Any, ...]
_idle: dict[_Key, list[subprocess.Popen[bytes]]] = {}
_busy: set[ChildProcess] = set()  # they owe a response


def share_children() -> None:
    """Let owners leave their idle child to the next owner of one with the same program and environment."""
    ChildProcess.start = _start_or_take  # type: ignore[method-assign]
    ChildProcess.send = _send_request  # type: ignore[method-assign]
    ChildProcess.receive = _receive_response  # type: ignore[method-assign]
    ChildOwner.__exit__ = _leave  # type: ignore[method-assign]


def _key(child: ChildProcess) -> _Key:
    variables = [os.environ.get(name) for name in child._variables]
    # A forked test has the pipes of its parent's children.
    return os.getpid(), sys.executable, child._module, child._nice, *variables


def _start_or_take(child: ChildProcess) -> None:
    waiting = _idle.get(_key(child), [])
    while waiting and child._process is None:
        process = waiting.pop()
        if process.poll() is None:
            child._process = process
            return
    _start(child)


def _send_request(child: ChildProcess, request: dict[str, Any]) -> None:
    _busy.add(child)
    _send(child, request)


def _receive_response(child: ChildProcess, seconds: float) -> dict[str, Any]:
    response = _receive(child, seconds)
    _busy.discard(child)
    return response


def _leave(owner: ChildOwner, *_: object) -> None:
    child = owner._child
    # A reader would keep its models in memory until the last test.
    if child._module == "media.decoder_process" and child.is_running and child not in _busy:
        _idle.setdefault(_key(child), []).append(child._process)
        child._process = None
    owner.close()
    _busy.discard(child)
