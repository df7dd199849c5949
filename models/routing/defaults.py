"""Default values of routing, for settings; imports no torch."""

from __future__ import annotations

__all__ = ["DEFAULT_PRIOR"]

# Cosine per nat of routing evidence. It lets routing evidence decide between shards whose cosines are not comparable,
# because differently conditioned encoders made them. Chosen on another seed of the video world than the reported one.
DEFAULT_PRIOR = 0.04
