"""Parts that all jobs of the learning worker share: the loaded backbone, the opened library, and recorded failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import structlog
import torch

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.precision import compute_device
from service.core.errors import CinestrataError, Unavailable
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.library_backbone import library_backbone
from service.storage.vector_store_selection import library_store
from service.tasks.lifecycle import Claim
from trainer.errors import ReplicaKilled, TrainingDiverged
from trainer.published_library import Library
from trainer.worker.cleanup import remove_checkpoints
from trainer.worker.failure_messages import failure_message

log = structlog.get_logger(__name__)


def task_backbone() -> Backbone:
    """The backbone of the library, as the worker computes with it."""
    backbone = load_worker_backbone(library_backbone(), settings().frames, settings().torch_threads)
    # Evaluation encodes queries in the precision in which the query service encodes them.
    backbone.query_precision = settings().query_precision
    return backbone


def open_library() -> Library:
    """The published library.

    Raises:
        ManifestError: The manifest is missing, or cannot be trusted.
    """
    library = Library(library_store(settings()))
    index_manifest.require_manifest(library.manifest)
    return library


@lru_cache(maxsize=1)
def load_worker_backbone(name: str, frames: int | None, threads: int | None) -> Backbone:
    """The worker's backbone, loaded once per process onto its compute device.

    Args:
        frames: Frames per video; None for the backbone's own number.
        threads: Number of CPU threads that torch may use; None for its default.
    """
    if threads:
        torch.set_num_threads(threads)
    return load_backbone(name, frames).to(compute_device("auto"))


@contextmanager
def recorded_failure(claim: Claim) -> Iterator[None]:
    """Fail the claimed task with a reason and a hint for known errors; other errors are left to the claim.

    Raises:
        Unavailable: A training process was killed; the next attempt resumes from the last checkpoint.
    """
    try:
        yield
    except CinestrataError:
        raise
    except ReplicaKilled as error:
        claim.log(f"The task is repeated: {error}.")
        raise Unavailable(str(error)) from error
    except Exception as error:
        message = failure_message(error, claim.task.id)
        if message is None:
            raise
        log.warning("task_exception", task=claim.task.id, exc_info=error)
        if isinstance(
            error, TrainingDiverged
        ):  # training resumed from its checkpoint would only diverge again
            with claim.transaction():
                remove_checkpoints(claim.task.id)
        claim.fail(*message)
