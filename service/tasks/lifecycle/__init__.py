"""The life of a task: ``queued → probing → training → indexing → evaluating → ready``.

``failed`` and ``cancelled`` leave from any of them. The catalog is the truth, a message is a hint: a task is
claimed by one conditional UPDATE that sets a lease and a fencing token; every later write checks the token.
"""

from __future__ import annotations

from service.tasks.lifecycle.claims import claim_probing, claim_training
from service.tasks.lifecycle.lease import Claim, TaskSnapshot
from service.tasks.lifecycle.publishing import Publication, RecallRecord, ReleaseRecord, ShardRecord
from service.tasks.lifecycle.reconciler import ReconcileReport, reconcile, send_due
from service.tasks.lifecycle.shutdown import is_stopping, request_stop

__all__ = [
    "Claim",
    "Publication",
    "RecallRecord",
    "ReconcileReport",
    "ReleaseRecord",
    "ShardRecord",
    "TaskSnapshot",
    "claim_probing",
    "claim_training",
    "is_stopping",
    "reconcile",
    "request_stop",
    "send_due",
]
