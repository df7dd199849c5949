"""Base-MoCo: momentum contrast as in BMU-MoCo, without the momentum encoders' pull (bmu-moco, section 3.3)."""

from __future__ import annotations

from trainer.methods.shared.momentum import MomentumMethod


class BaseMoco(MomentumMethod):
    """Fine-tuning with momentum encoders that follow the encoders."""

    name = "base_moco"
