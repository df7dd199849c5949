"""Releases: their state in memory, files, lineage and self-test queries."""
