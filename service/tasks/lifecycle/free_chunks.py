"""Let idle workers process chunks of another worker's task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import structlog

from service.core.errors import SourceUnavailable, TaskInterruption
from service.core.request_ids import use_request_id
from service.tasks.lifecycle.chunks import ChunkClaim, Stage, claim_chunk
from service.tasks.lifecycle.reconciler import send_due

log = structlog.get_logger(__name__)


def process_free_chunks(
    task_id: str, stage: Stage, owner: str, seconds: float, process: Callable[[Iterator[ChunkClaim]], None]
) -> None:
    """Process free chunks of a task until none is left or time is up.

    Errors are logged and stored with the chunk; the task's owner decides on the task's state.

    Args:
        seconds: Time after which no more chunks are claimed, so that the next message gets its turn.
        process: Processes chunks from an iterator that claims each chunk when it is taken. Not called if no chunk is
            free.
    """
    deadline = time.monotonic() + seconds
    first = claim_chunk(task_id, stage, owner)
    if first is None:
        return

    def claim_until_deadline(release: ExitStack) -> Iterator[ChunkClaim]:
        release.pop_all()  # from here on, the block that the function enters releases the chunk
        chunk: ChunkClaim | None = first
        while chunk is not None:
            yield chunk
            chunk = claim_chunk(task_id, stage, owner) if time.monotonic() < deadline else None

    with use_request_id(first.request_id):
        log.info("task_joined", task=task_id, stage=stage)
        try:
            with ExitStack() as release:
                release.push(first)  # if processing fails before taking the chunk, give it back
                send_due()  # another worker may take the next chunk
                process(claim_until_deadline(release))
        except (TaskInterruption, SourceUnavailable) as error:
            log.info("chunk_released", task=task_id, reason=str(error))
        except Exception:
            log.exception("chunk_failed", task=task_id)
