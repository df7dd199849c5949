"""Benchmarks: the video world, protocols, and measurements of learning and search."""
