"""Benchmarks of search: latency, throughput, memory, scan speed, query encoding and release changes."""
