"""Benchmark of routing evidence on the captions of published splits."""
