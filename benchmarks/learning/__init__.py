"""Benchmarks of learning: protocols, runs of methods with several seeds, training speed, pre-training."""
