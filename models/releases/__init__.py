"""Releases: their state in memory, their files, their lineage and their probe queries."""
