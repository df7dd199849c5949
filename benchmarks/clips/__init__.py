"""Benchmark on a user's own clips: a method against a ridge regression on frozen features of the same frames."""
