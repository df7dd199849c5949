"""Benchmark routing evidence on the captions of published splits."""
