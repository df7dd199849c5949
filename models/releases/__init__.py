"""Releases: their state in memory, files, lineage and probe queries."""
