"""Set up a process: log lines for a terminal or as JSON, priorities of threads, and memory of the C library."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal

import structlog
from asgi_correlation_id import correlation_id
from structlog.tracebacks import ExceptionDictTransformer

_LOWEST_PRIORITY = 19  # niceness
_M_ARENA_MAX = -8  # of mallopt(3)
_MAX_ARENAS = 2


def configure_logging(log_format: Literal["console", "json"], level: str) -> None:
    """Send events of structlog, logging and ``warnings`` to standard error; as JSON, also uncaught exceptions."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _complete_event,
        structlog.processors.StackInfoRenderer(),
    ]
    # Neither format shows local variables in tracebacks: they may hold keys or user data.
    renderers: list[structlog.typing.Processor] = (
        [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=str),
        ]
        if log_format == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it names each of its plug-ins
    if log_format == "json":
        sys.excepthook = _log_uncaught_exception
        threading.excepthook = _log_thread_exception


def _complete_event(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if request_id := correlation_id.get():
        event.setdefault("request_id", request_id)
    event.pop("color_message", None)  # uvicorn repeats its messages with terminal colors in this field
    return event


def _log_uncaught_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical("uncaught_exception", exc_info=(kind, error, trace))


def _log_thread_exception(details: threading.ExceptHookArgs) -> None:
    error = details.exc_value or details.exc_type()
    logging.getLogger(__name__).error(
        "uncaught_thread_exception",
        exc_info=(details.exc_type, error, details.exc_traceback),
        extra={"thread_name": details.thread.name if details.thread else None},
    )


def lower_thread_priority(increment: int = _LOWEST_PRIORITY) -> None:
    """Lower the priority of this thread and those it starts, by default to the lowest, where that is permitted."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + increment)


def share_memory_arenas() -> None:
    """Let all threads allocate from two arenas.

    By default, glibc gives threads arenas of their own, up to eight per core. A value that one thread caches in the
    place of another thread's then grows an arena without shrinking the other, and a process grows for hours before its
    caches are as large as they were meant to be. Call it before the process starts threads. ``MALLOC_ARENA_MAX`` has
    precedence, and other C libraries than glibc have no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)
