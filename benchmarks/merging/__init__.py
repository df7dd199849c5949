"""Merging benchmarks: rules that make scores of different shards comparable, and the quality of confidence."""
