"""The life cycle of a task: ``queued → probing → training → indexing → evaluating → ready``.

``failed`` and ``cancelled`` can follow every state but ``ready``. The catalog is the truth; a message is only a hint.
One conditional UPDATE claims a task and sets a lease and a fencing token, and every later write checks the token.
"""

from __future__ import annotations

from service.tasks.lifecycle.chunks import (
    ChunkClaim,
    claim_chunk,
    plan_chunks,
    process_free_chunks,
    read_totals,
)
from service.tasks.lifecycle.claims import Claim, claim_append, claim_probing, claim_training
from service.tasks.lifecycle.publishing import AppendPublication, Publication
from service.tasks.lifecycle.state_machine import ReconcileReport, reconcile, send_due

__all__ = [
    "AppendPublication",
    "ChunkClaim",
    "Claim",
    "Publication",
    "ReconcileReport",
    "claim_append",
    "claim_chunk",
    "claim_probing",
    "claim_training",
    "plan_chunks",
    "process_free_chunks",
    "read_totals",
    "reconcile",
    "send_due",
]
