"""Search benchmarks: latency, throughput, memory, scan speed, query encoding and release changes."""
