"""The life of a task: ``queued → probing → training → indexing → evaluating → ready``.

``failed`` and ``cancelled`` leave from any of them. The catalog is the truth, a message is a hint: a task is
claimed by one conditional UPDATE that sets a lease and a fencing token; every later write checks the token.
"""

from __future__ import annotations

from service.tasks.lifecycle.claims import claim, claim_probe
from service.tasks.lifecycle.lease import Claim, TaskSnapshot
from service.tasks.lifecycle.publishing import Publication, RecallFacts, ReleaseFacts, ShardFacts
from service.tasks.lifecycle.reconciler import Reconciled, reconcile, send_due
from service.tasks.lifecycle.stopping import is_stopping, request_stop

__all__ = [
    "Claim",
    "Publication",
    "RecallFacts",
    "Reconciled",
    "ReleaseFacts",
    "ShardFacts",
    "TaskSnapshot",
    "claim",
    "claim_probe",
    "is_stopping",
    "reconcile",
    "request_stop",
    "send_due",
]
