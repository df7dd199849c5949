"""Searchable snapshots: one index generation each, with its releases, shards and query encoder."""
