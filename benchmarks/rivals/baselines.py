"""Two baselines that change one thing of a method of the service: Base-MoCo and joint training."""

from __future__ import annotations

from trainer.methods.finetune import Finetune
from trainer.methods.shared.momentum import MomentumMethod


class BaseMoco(MomentumMethod):
    """Momentum contrast as in BMU-MoCo, without the momentum encoders' pull (bmu-moco, section 3.3)."""

    name = "base_moco"


class Joint(Finetune):
    """Fine-tuning of both towers on the videos of all tasks at once, which the papers call the upper bound.

    Joint training keeps every video, trains on all of them from the pre-trained weights, and embeds all of them again.
    It is not a continual method, and the service, which never reads old videos, does not offer it. The class trains
    exactly like sequential fine-tuning; a benchmark makes it joint by passing the union of all tasks as one task, with
    as many steps as other methods take for all tasks together. Its batches mix the tasks.
    """

    name = "joint"
