"""Routing of queries to tasks, and confidence in results. Settings import this module, so it imports no torch."""

# Cosine per nat of unbounded routing evidence, where no words count: in the recall matrix, and in the calibration. It
# lets routing evidence decide between shards whose cosines are not comparable because differently conditioned encoders
# made them. Chosen on rendered videos.
DEFAULT_PRIOR = 0.04
