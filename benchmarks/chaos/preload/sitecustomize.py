"""Every Python process of a chaos run loads this file, because its PYTHONPATH begins with this folder."""

from benchmarks.chaos.process_faults import install

install()
