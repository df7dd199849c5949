"""The broker: messages that start workers. A message carries only the ID of a task, sync or job.

Messages may be lost or duplicated; the catalog decides what runs (``service.tasks.lifecycle``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import ChannelError, OperationalError
from redis.exceptions import RedisError

from service.core.settings import settings

PROBE, SYNC, MAINTAIN = "cinestrata.probe", "cinestrata.sync", "cinestrata.maintain"
LEARN, APPEND, EMBED = "cinestrata.learn", "cinestrata.append", "cinestrata.embed"
CPU_QUEUE, GPU_QUEUE = "cpu", "gpu"
_QUEUES = dict.fromkeys((PROBE, SYNC, MAINTAIN), CPU_QUEUE) | dict.fromkeys((LEARN, APPEND, EMBED), GPU_QUEUE)
_VISIBILITY_SECONDS = 12 * 3600  # Redis redelivers an unacknowledged message after this time
_UNREACHABLE = (OperationalError, RedisError, OSError)

log = structlog.get_logger(__name__)


def _configuration() -> dict[str, Any]:
    configured = settings()
    # The smallest of these three values applies, including the default of any unset one: set them all.
    visibility = {"visibility_timeout": _VISIBILITY_SECONDS}
    return {
        "broker_url": configured.redis_url,
        "broker_transport_options": visibility | {"socket_connect_timeout": 3},
        "result_backend_transport_options": visibility,
        "visibility_timeout": _VISIBILITY_SECONDS,
        "broker_connection_retry_on_startup": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "task_default_queue": CPU_QUEUE,
        "task_routes": {name: {"queue": queue} for name, queue in _QUEUES.items()},
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
    }


celery_app = Celery("cinestrata", set_as_current=False)
celery_app.add_defaults(_configuration)  # a function, so that importing this module reads no settings


def queue_length(queue: str) -> int | None:
    """Count the messages in a queue; None if the broker is unreachable."""
    try:
        with _connection() as connection:
            channel = connection.default_channel
            return int(channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0  # an empty queue does not exist
    except _UNREACHABLE:
        return None


def is_reachable() -> bool:
    """Check whether the broker responds."""
    return queue_length(CPU_QUEUE) is not None


def _connection() -> Any:
    # Short timeouts: POST /tasks must not wait for an unreachable broker, and the reconciler resends anyway.
    return celery_app.connection_for_write(
        settings().redis_url, transport_options={"max_retries": 1, "interval_start": 0, "socket_timeout": 3}
    )


def _send(name: str, task_id: str) -> bool:
    """Tell the workers that a task, sync or job is due; False if the broker is unreachable."""
    try:
        with _connection() as connection:
            celery_app.send_task(
                name, args=[task_id], queue=_QUEUES[name], connection=connection, retry=False
            )
    except _UNREACHABLE as error:
        log.warning("message_not_sent", task=task_id, name=name, error=str(error))
        return False
    return True


# The reconciler sends a message later if the broker is unreachable.
send_probe, send_learn = partial(_send, PROBE), partial(_send, LEARN)
send_append, send_embed = partial(_send, APPEND), partial(_send, EMBED)
send_sync, send_maintenance = partial(_send, SYNC), partial(_send, MAINTAIN)
