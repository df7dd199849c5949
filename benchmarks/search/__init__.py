"""Benchmarks of search: latency, throughput, memory, scan speed and query encoding."""
