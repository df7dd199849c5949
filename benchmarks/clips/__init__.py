"""Benchmark of a user's own clips: a method against a ridge regression on frozen features, on the same frames."""
