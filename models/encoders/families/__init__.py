"""Encoder families: one file for each way in which a release conditions its encoders."""
