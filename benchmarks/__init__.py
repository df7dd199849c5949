"""Benchmarks: protocols, and measurements of learning and search."""
