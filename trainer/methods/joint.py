"""Joint training: both towers on the videos of all tasks at once; the upper bound of the papers' tables.

It keeps every video that it was ever given, trains afresh on all of them, and embeds all of them again. So it is
no continual method, and a service that must not read old videos cannot offer it. As a plain method it trains like
sequential fine-tuning; what makes it joint is that a benchmark gives it the union of all tasks as one, with as
many steps as the others get for all tasks together.
"""

from __future__ import annotations

from trainer.methods.finetune import Finetune

__all__ = ["Joint"]


class Joint(Finetune):
    """Fine-tune both towers once, on everything."""

    name = "joint"
    requires_all_videos = True
