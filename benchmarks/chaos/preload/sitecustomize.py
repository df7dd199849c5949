"""Loaded by each Python process of a chaos run, whose PYTHONPATH begins with this folder."""

from benchmarks.chaos.process_faults import install

install()
