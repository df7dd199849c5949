"""Encoder families: one module per way in which a release conditions its encoders."""
