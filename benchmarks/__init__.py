"""Benchmarks: the video world, protocols, and measurements of learning, merging and search."""
