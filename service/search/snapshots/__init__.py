"""Searchable snapshots: one index generation with its releases, shards and query encoder."""
